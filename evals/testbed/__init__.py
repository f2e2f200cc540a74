"""
The miniature pair: tiny trained models that real vLLM serves on a CPU, with their
problems.
"""
