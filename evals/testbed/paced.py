"""
The vLLM plugin of the paced architecture; its entry point stands in ``pyproject.toml``.

vLLM calls it in each of its processes, whatever the model, so this file imports nothing until it is asked to.
"""

from __future__ import annotations


def register() -> None:
    """Register the paced architecture by name; vLLM imports it for a model that asks for it."""
    from vllm import ModelRegistry

    name = "PacedQwen3ForCausalLM"
    ModelRegistry.register_model(name, f"stepspec.evals.testbed.paced_qwen3:{name}")
