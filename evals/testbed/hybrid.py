"""
A hybrid model with random weights, small enough for a CPU: it shows how vLLM caches the prefixes of hybrids.

Three layers of linear attention and one of full attention, as in Qwen3-Next, with the miniature pair's tokenizer. It
writes noise. What is real is the server: its blocks of 640 tokens, its saved states, what it reads again.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stepspec.orchestrator.launcher import Server
from stepspec.orchestrator.launcher.commands import ZEROS, arguments
from stepspec.orchestrator.launcher.hybrids import CURE

from .servers import ENVIRONMENT, FLAGS, MODELS

__all__ = ["CURE", "build", "server"]

NAME = "hybrid"
CONTEXT = 4096  # tokens
SHAPE: Mapping[str, Any] = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 4,
    "layer_types": ["linear_attention", "linear_attention", "linear_attention", "full_attention"],
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "linear_num_key_heads": 1,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 128,  # vLLM's CPU build refuses smaller heads
    "linear_value_head_dim": 128,
    "num_experts": 4,  # vLLM wants at least one layer with a mixture of experts
    "num_experts_per_tok": 2,
    "mlp_only_layers": [0, 1, 2],
    "moe_intermediate_size": 64,
    "shared_expert_intermediate_size": 64,
    "max_position_embeddings": CONTEXT,
    "tie_word_embeddings": True,
}


def build(folder: Path, *, seed: int = 0) -> Path:
    """Write the model's files to *folder*, the same for the same *seed*; return the folder."""
    import torch
    from transformers import Qwen3NextConfig, Qwen3NextForCausalLM

    own = json.loads((MODELS / "large" / "config.json").read_text(encoding="utf-8"))
    shape = {**SHAPE, **{key: own[key] for key in ("vocab_size", "eos_token_id", "pad_token_id", "bos_token_id")}}
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = Qwen3NextForCausalLM(Qwen3NextConfig.from_dict(shape))
        model.bfloat16().save_pretrained(folder)
    for file in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(MODELS / "large" / file, folder / file)
    return folder


def server(model: Path, name: str = NAME, flags: Mapping[str, Any] | None = None) -> Server:
    """
    Describe the server of the hybrid in *model*, called *name*; *flags*, such as `CURE`, are added to its command.

    It opens vLLM's own route for suffix scoring, as the large model of the miniature pair does.
    """
    own: dict[str, Any] = {**FLAGS, "dtype": "bfloat16", "max-model-len": CONTEXT, "enable-scale-out": True}
    del own["block-size"]  # vLLM chooses it, so that a block holds the recurrent state
    return Server(
        name=name,
        model=model,
        served_name=f"testbed-{name}",
        args=tuple(arguments({**own, **(flags or {})})),
        env={**ENVIRONMENT, **ZEROS},
    )
