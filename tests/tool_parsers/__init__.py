"""vLLM's own parsers of answers, without a server of it."""
