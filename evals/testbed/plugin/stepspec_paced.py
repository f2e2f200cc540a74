"""
The vLLM plugin that registers the paced architecture; the metadata beside it declares its entry
point.

Only servers with this folder on their ``PYTHONPATH`` load it: those of the miniature models.

vLLM calls plugins in each of its processes, for every model, so this module imports nothing at
import time.
"""

from __future__ import annotations


def register() -> None:
    """
    Register the paced architecture by name; vLLM imports it only for a model with this
    architecture.
    """
    from vllm import ModelRegistry

    name = "PacedQwen3ForCausalLM"
    ModelRegistry.register_model(name, f"stepspec_paced_qwen3:{name}")
