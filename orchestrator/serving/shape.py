"""
The size of a model, from its ``config.json`` alone.

For a decoder of L layers, width H, heads of D, K of them with keys and values, and gated networks I wide, of which a
mixture has E: parameters = V H (twice unless tied) + L (H D (2 heads + 2 K) + 3 H I E + H E if E > 1 + 2 H) + H, and a
token's keys and values are 2 L K D numbers. Biases are left out; they are few. Anything else, such as latent or linear
attention, is not sized.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

BYTES: Mapping[str, float] = {"float32": 4, "bfloat16": 2, "float16": 2, "fp8": 1}
ATTENTION = frozenset({"full_attention", "sliding_attention"})
OTHER = ("kv_lora_rank", "ssm_cfg", "mamba_d_state", "n_shared_experts", "first_k_dense_replace", "decoder_sparse_step")
RECURRENT = ("linear", "mamba", "conv", "recurrent")  # in the names of layers that keep a state, not keys and values
ATTENDING = ("attention", "hybrid")  # in the names of those that keep both; "linear_attention" counts as recurrent
KINDS = ("layer_types", "layers_block_type")
MIXED = ("linear_attn_config", "hybrid_override_pattern", "attn_layer_period", "attn_layer_indices", "mamba_d_ssm")
"""Settings that only the configurations of hybrids have: Kimi-Linear, Nemotron-H, Jamba, Bamba, Falcon-H1."""
GIB = 2**30


@dataclass(frozen=True, slots=True)
class Shape:
    """
    A model's size. *embedding* is how many of its *parameters* are the vocabulary's, which quantisation leaves alone.

    *number* and *stored* are the bytes of those and of all others, *vocabulary* the rows of the embedding, padding
    included.
    """

    parameters: int
    embedding: int
    number: float
    stored: float
    layers: int
    kv_heads: int
    head: int
    vocabulary: int
    context: int | None

    def weights(self, cards: int = 1) -> float:
        """Bytes of the weights on each of so many cards."""
        return (self.embedding * self.number + (self.parameters - self.embedding) * self.stored) / cards

    def token(self, cards: int = 1, number: float | None = None) -> float:
        """Bytes of a token's keys and values on each card, each of *number* bytes; a head is never divided."""
        heads = math.ceil(self.kv_heads / cards)
        return 2 * self.layers * heads * self.head * (self.number if number is None else number)


def shape(config: Mapping[str, Any], dtype: str = "auto") -> Shape | None:
    """Read a ``config.json``; None if it describes no decoder that the formula fits. *dtype* overrides its own."""
    text = {**config, **cast("Mapping[str, Any]", config.get("text_config") or {})}
    kinds: list[str] = text.get("layer_types") or []
    if any(text.get(key) for key in OTHER if key != "decoder_sparse_step") or set(kinds) - ATTENTION:
        return None
    if (text.get("decoder_sparse_step") or 1) != 1:
        return None
    number = BYTES.get(_dtype(text) if dtype == "auto" else dtype)
    stored = _stored(text, number)
    if number is None or stored is None:
        return None
    try:
        return _sized(text, number, stored)
    except (KeyError, TypeError):
        return None


def hybrid(config: Mapping[str, Any]) -> bool:
    """Whether a ``config.json`` describes a model with attention and with layers that keep a recurrent state."""
    text = {**config, **cast("Mapping[str, Any]", config.get("text_config") or {})}
    kinds = {str(kind) for key in KINDS for kind in cast("list[str]", text.get(key) or ())}
    recurrent = {kind for kind in kinds if any(word in kind for word in RECURRENT)}
    attending = {kind for kind in kinds - recurrent if any(word in kind for word in ATTENDING)}
    if kinds:
        return bool(recurrent and attending)
    return int(text.get("full_attention_interval") or 1) > 1 or any(text.get(key) for key in MIXED)


def _sized(text: Mapping[str, Any], number: float, stored: float) -> Shape:
    width, layers, heads = int(text["hidden_size"]), int(text["num_hidden_layers"]), int(text["num_attention_heads"])
    kv_heads = int(text.get("num_key_value_heads") or heads)
    head = int(text.get("head_dim") or width // heads)
    experts = int(text.get("num_experts") or text.get("num_local_experts") or 1)
    inner = int((text.get("moe_intermediate_size") if experts > 1 else None) or text["intermediate_size"])
    vocabulary = int(text["vocab_size"])
    attention = width * head * 2 * (heads + kv_heads)
    network = 3 * width * inner * experts + (width * experts if experts > 1 else 0)
    embedding = vocabulary * width * (1 if text.get("tie_word_embeddings") else 2)
    parameters = embedding + layers * (attention + network + 2 * width) + width
    context = int(text.get("max_position_embeddings") or 0) or None
    return Shape(parameters, embedding, number, stored, layers, kv_heads, head, vocabulary, context)


def _dtype(text: Mapping[str, Any]) -> str:
    named = str(text.get("dtype") or text.get("torch_dtype") or "float32")
    return "float16" if named == "float32" else named  # what vLLM's "auto" makes of it


def _stored(text: Mapping[str, Any], number: float | None) -> float | None:
    """Bytes of a weight as it is stored; None for a quantisation that does not say."""
    quantisation = text.get("quantization_config")
    if not quantisation:
        return number
    bits = 8 if quantisation.get("quant_method") == "fp8" else quantisation.get("bits")
    return float(bits) / 8 if bits else None
