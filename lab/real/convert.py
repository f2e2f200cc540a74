"""
Convert a GGUF file to bfloat16: ``python -m lab.real.convert FILE FOLDER LIB``.

FOLDER gets Hugging Face's format. The program runs in a process of its own. LIB is a folder with
the packages gguf and sentencepiece, which stepspec does not need. The tokenizer and the chat
template are those in the file.
"""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
LAYER = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}
CONFIG = {
    "hidden_size": "embedding_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "intermediate_size": "feed_forward_length",
    "max_position_embeddings": "context_length",
}
"""Names in Hugging Face's configuration, and those in the file after the architecture."""


def tensor_name(name: str) -> str | None:
    """Hugging Face's name of a tensor; None for one that follows from the others."""
    stem, _, kind = name.rpartition(".")
    if stem.startswith("blk."):
        _, number, part = stem.split(".", 2)
        return f"model.layers.{number}.{LAYER[part]}.{kind}"
    return f"{NAMES[stem]}.{kind}" if stem in NAMES else None


def convert(file: Path, folder: Path) -> None:
    torch: Any = import_module("torch")
    dequantize: Any = import_module("gguf.quants").dequantize
    reader: Any = import_module("gguf").GGUFReader(file)

    def field(key: str) -> Any:
        found = reader.fields.get(key)
        return None if found is None else found.contents()

    arch = field("general.architecture")
    config = {name: field(f"{arch}.{key}") for name, key in CONFIG.items()}
    state: dict[str, Any] = {}
    for tensor in reader.tensors:
        name = tensor_name(tensor.name)
        if name is None:
            continue
        shape = tuple(int(size) for size in reversed(tensor.shape))
        weights = torch.from_numpy(dequantize(tensor.data, tensor.tensor_type).copy()).reshape(
            shape,
        )
        state[name] = weights.to(torch.bfloat16).contiguous()
    import_module("safetensors.torch").save_file(
        state,
        folder / "model.safetensors",
        metadata={"format": "pt"},
    )
    end = field("tokenizer.ggml.eos_token_id")
    config |= {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": arch,
        "hidden_act": "silu",
        "rms_norm_eps": float(field(f"{arch}.attention.layer_norm_rms_epsilon")),
        "rope_theta": float(field(f"{arch}.rope.freq_base") or 10000.0),
        "vocab_size": state["model.embed_tokens.weight"].shape[0],
        "tie_word_embeddings": "lm_head.weight" not in state,
        "torch_dtype": "bfloat16",
        "bos_token_id": field("tokenizer.ggml.bos_token_id"),
        "eos_token_id": end,
    }
    tokenizer: Any = import_module("transformers").AutoTokenizer.from_pretrained(
        str(file.parent),
        gguf_file=file.name,
    )
    tokenizer.chat_template = field("tokenizer.chat_template") or tokenizer.chat_template
    tokenizer.save_pretrained(folder)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [end]}))
    (folder / "config.json").write_text(json.dumps(config, indent=1))


if __name__ == "__main__":
    sys.path.append(sys.argv[3])
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
