# pyright: basic
"""
A hybrid with random weights, like Qwen3-Next, small enough for a CPU, and its server.

It has three layers of linear attention and one of full attention, and the miniature pair's
tokenizer. Its text is noise; it exists to test how vLLM's server caches the prefixes of hybrids:
its blocks of 640 tokens and saved states.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stepspec.evals.testbed.servers import ENVIRONMENT, FLAGS, MODELS
from stepspec.servers.launcher import ServerCommand
from stepspec.servers.launcher.commands import ZEROED_MEMORY, arguments

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
    "num_experts": 4,  # vLLM needs at least one layer with a mixture of experts
    "num_experts_per_tok": 2,
    "mlp_only_layers": [0, 1, 2],
    "moe_intermediate_size": 64,
    "shared_expert_intermediate_size": 64,
    "max_position_embeddings": CONTEXT,
    "tie_word_embeddings": True,
}


def make_hybrid(folder: Path, *, seed: int = 0) -> Path:
    """
    Write the files of a hybrid model with random weights of *seed* to *folder*; return *folder*.
    """
    import torch
    from transformers import Qwen3NextConfig, Qwen3NextForCausalLM

    config = json.loads((MODELS / "large" / "config.json").read_text(encoding="utf-8"))
    shape = {
        **SHAPE,
        **{
            key: config[key]
            for key in ("vocab_size", "eos_token_id", "pad_token_id", "bos_token_id")
        },
    }
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = Qwen3NextForCausalLM(Qwen3NextConfig.from_dict(shape))
        model.bfloat16().save_pretrained(folder)
    for file in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(MODELS / "large" / file, folder / file)
    return folder


def hybrid_server(model: Path, name: str, flags: Mapping[str, Any] | None = None) -> ServerCommand:
    """
    Describe the server *name* of the hybrid in the folder *model*; *flags*, by name, are added to
    its command.

    The server opens vLLM's own route for suffix scoring, like that of the large miniature model.
    """
    settings: dict[str, Any] = {
        **FLAGS,
        "dtype": "bfloat16",
        "max-model-len": CONTEXT,
        "kv-cache-memory-bytes": 256 * 2**20,
        "enable-scale-out": True,
    }
    # vLLM chooses the size so that a block can store the recurrent state
    del settings["block-size"]
    return ServerCommand(
        name=name,
        model=model,
        served_name=f"testbed-{name}",
        args=tuple(arguments({**settings, **(flags or {})})),
        env={**ENVIRONMENT, **ZEROED_MEMORY},
    )
