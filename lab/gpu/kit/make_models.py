"""
Make models without weights, of real shapes, for `--load-format dummy`: make_models OUT
TOKENIZER-FOLDER SHAPE...
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

COMMON: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "head_dim": 128,
    "hidden_act": "silu",
    "num_key_value_heads": 8,
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
    "rope_theta": 1000000,
    "rms_norm_eps": 1e-06,
    "torch_dtype": "bfloat16",
    "attention_bias": False,
    "use_cache": True,
}
# As in the published config.json of each model; "tiny" is for a dry run, with the vocabulary of its
# tokenizer.
SHAPES: dict[str, dict[str, Any]] = {
    "qwen3-32b": {
        "hidden_size": 5120,
        "intermediate_size": 25600,
        "num_hidden_layers": 64,
        "num_attention_heads": 64,
        "tie_word_embeddings": False,
    },
    "qwen3-1.7b": {
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "tie_word_embeddings": True,
    },
    "tiny": {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 32,
        "tie_word_embeddings": True,
        "max_position_embeddings": 8192,
        "torch_dtype": "float32",
    },
}


SMALLER_CARD = {"qwen3-32b": {"num_hidden_layers": 44}}  # for less than 100 GB of memory
MEMORY = ("nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits")


def on_smaller_card() -> bool:
    try:
        return (
            int(
                subprocess.run(MEMORY, capture_output=True, text=True, check=True).stdout.split()[0]
            )
            < 100_000
        )
    except (OSError, subprocess.CalledProcessError):
        return False


def make(out: Path, tokenizer: Path, shape: str) -> None:
    folder = out / shape
    folder.mkdir(parents=True, exist_ok=True)
    files = [
        tokenizer / name
        for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
    ]
    for file in files:
        shutil.copy(file, folder)
    words = json.loads(files[0].read_text())
    ids = {
        **words["model"]["vocab"],
        **{each["content"]: each["id"] for each in words["added_tokens"]},
    }
    config = {**COMMON, **SHAPES[shape], "eos_token_id": ids["<|im_end|>"]}
    if shape == "tiny":
        config["vocab_size"] = max(ids.values()) + 1
    if shape in SMALLER_CARD and on_smaller_card():
        config |= SMALLER_CARD[shape]
    (folder / "config.json").write_text(json.dumps(config, indent=1))


if __name__ == "__main__":
    for name in sys.argv[3:]:
        make(Path(sys.argv[1]), Path(sys.argv[2]), name)
