"""How Hugging Face's format names the tensors of a GGUF file with a Qwen2 or a Llama model."""

from __future__ import annotations

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


def tensor_name(name: str) -> str | None:
    """Hugging Face's name of a tensor; None for one that follows from the others."""
    stem, _, kind = name.rpartition(".")
    if stem.startswith("blk."):
        _, number, part = stem.split(".", 2)
        return f"model.layers.{number}.{LAYER[part]}.{kind}"
    return f"{NAMES[stem]}.{kind}" if stem in NAMES else None
