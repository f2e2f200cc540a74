"""The miniature pair: two tiny models that vLLM serves for real, without a GPU."""
