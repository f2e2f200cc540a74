"""
Models with random weights, small enough for a CPU: a tiny Qwen3 with a real vocabulary.

The tiny Qwen3 writes what trained models rarely write. One coordinate of its hidden state is nearly
constant, so that the weights of this coordinate in the output layer are biases: they give
delimiters, ends of text, grades and parts of characters a fixed share of the probability. All other
tokens share the rest about equally.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import log, sqrt
from pathlib import Path
from typing import Any

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from safetensors.numpy import save_file
from tokenizers import Tokenizer

from stepspec.evals.testbed.servers import MODELS
from stepspec.orchestrator.chain import DELIMITER, THINK_END

TEMPLATE = MODELS / "large" / "chat_template.jinja"
HALF = "\ufffd"  # the replacement for a part of a character
ENDS_OF_TURN = (
    "<|im_end|>",
    "</s>",
    "<|return|>",
    "<\uff5cend\u2581of\u2581sentence\uff5c>",
    "<end_of_turn>",
)
WIDTH = 64
LAYERS = 2
HEADS = 2
HEAD = 32
INNER = 192
CONSTANT = 8.0  # the constant coordinate of an embedding; about the norm of the others together
SPREAD = 1.2  # the standard deviation of the logits of ordinary tokens
# the size of the vocabulary is rounded up to it, as in real models: the last ids mean nothing
MULTIPLE = 128
CUES = (
    "So",
    " So",
    "So,",
    " Therefore",
    "Wait",
    " wait",
    " check",
    "Alternatively",
    " now",
    " yes",
)


@dataclass(frozen=True, slots=True)
class Group:
    """Tokens that together have a *share* of the probability, at every position."""

    share: float
    # arguments: the text of a token, and whether it is an added token
    holds: Callable[[str, bool], bool]


GROUPS: Sequence[Group] = (
    Group(0.010, lambda text, added: text == THINK_END),
    Group(0.008, lambda text, added: text in ENDS_OF_TURN),
    Group(0.005, lambda text, added: added),
    Group(0.060, lambda text, added: DELIMITER in text),
    Group(0.200, lambda text, added: HALF in text),
    Group(0.080, lambda text, added: text.isdigit() and text.isascii() and len(text) == 1),
    Group(0.060, lambda text, added: text in ("Yes", "No")),
    Group(0.050, lambda text, added: text in CUES),
    Group(0.030, lambda text, added: text.strip() in (".", "?", "!", "\u3002")),
)
"""A token belongs to the first group whose *holds* is true."""


def make_model(folder: Path, vocabulary: Path, seed: int, *, labels: int = 0) -> Path:
    """
    Write a model that vLLM can serve to *folder*: random weights of *seed*, and the
    ``tokenizer.json`` *vocabulary*.

    With *labels*, it is a reward model with that number of values, instead of a language model.
    Return *folder*.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer.from_file(str(vocabulary))
    size = -(-tokenizer.get_vocab_size() // MULTIPLE) * MULTIPLE
    end = next((mark for mark in ENDS_OF_TURN if tokenizer.token_to_id(mark) is not None), None)
    rng = np.random.default_rng(seed)
    weights = _body(rng, size) | (
        {"score.weight": _normal(rng, labels, WIDTH)} if labels else _head(rng, tokenizer, size)
    )
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    _write(
        folder / "config.json", _config(size, tokenizer.token_to_id(end) if end else None, labels)
    )
    settings = {
        "tokenizer_class": "TokenizersBackend",
        "model_max_length": 4096,
        "clean_up_tokenization_spaces": False,
    }
    _write(folder / "tokenizer_config.json", settings | ({"eos_token": end} if end else {}))
    shutil.copy(vocabulary, folder / "tokenizer.json")
    shutil.copy(TEMPLATE, folder / "chat_template.jinja")
    return folder


def biases(tokenizer: Tokenizer) -> NDArray[np.float32]:
    """
    Return the mean logit of each token, 0 for ordinary tokens, with which every group has its
    share.
    """
    added = tokenizer.get_added_tokens_decoder()
    count = tokenizer.get_vocab_size()
    texts = tokenizer.decode_batch([[number] for number in range(count)], skip_special_tokens=False)
    groups: dict[int, list[int]] = {}
    for number, text in enumerate(texts):
        index = next(
            (i for i, group in enumerate(GROUPS) if group.holds(text, number in added)), None
        )
        if index is not None:
            groups.setdefault(index, []).append(number)
    rest = 1 - sum(GROUPS[index].share for index in groups)
    ordinary = count - sum(map(len, groups.values()))
    logits = np.zeros(count, np.float32)
    for index, members in groups.items():
        logits[members] = log(GROUPS[index].share / rest * ordinary / len(members))
    return logits


def _body(rng: Generator, size: int) -> dict[str, NDArray[Any]]:
    embeddings = _normal(rng, size, WIDTH, deviation=1.0)
    embeddings[:, 0] = CONSTANT
    weights = {
        "model.embed_tokens.weight": embeddings,
        "model.norm.weight": np.ones(WIDTH, np.float16),
    }
    for layer in range(LAYERS):
        name = f"model.layers.{layer}"
        heads = HEADS * HEAD
        weights |= {
            f"{name}.input_layernorm.weight": np.ones(WIDTH, np.float16),
            f"{name}.post_attention_layernorm.weight": np.ones(WIDTH, np.float16),
            f"{name}.self_attn.q_norm.weight": np.ones(HEAD, np.float16),
            f"{name}.self_attn.k_norm.weight": np.ones(HEAD, np.float16),
            f"{name}.self_attn.q_proj.weight": _normal(rng, heads, WIDTH),
            f"{name}.self_attn.k_proj.weight": _normal(rng, HEAD, WIDTH),
            f"{name}.self_attn.v_proj.weight": _normal(rng, HEAD, WIDTH),
            f"{name}.self_attn.o_proj.weight": _normal(rng, WIDTH, heads),
            f"{name}.mlp.gate_proj.weight": _normal(rng, INNER, WIDTH),
            f"{name}.mlp.up_proj.weight": _normal(rng, INNER, WIDTH),
            f"{name}.mlp.down_proj.weight": _normal(rng, WIDTH, INNER),
        }
    return weights


def _head(rng: Generator, tokenizer: Tokenizer, size: int) -> dict[str, NDArray[Any]]:
    length = sqrt(WIDTH)  # of the normalised hidden state
    # the constant coordinate's share of that length
    share = CONSTANT / sqrt(CONSTANT**2 + WIDTH - 1)
    rows = _normal(rng, size, WIDTH, deviation=SPREAD / (length * sqrt(1 - share**2)))
    rows[:, 0] = 0
    logits = biases(tokenizer)
    rows[: len(logits), 0] = logits / (length * share)
    return {"lm_head.weight": rows}


def _normal(
    rng: Generator, rows: int, columns: int, *, deviation: float = 0.05
) -> NDArray[np.float16]:
    return (rng.standard_normal((rows, columns), np.float32) * deviation).astype(np.float16)


def _config(size: int, end: int | None, labels: int) -> Mapping[str, Any]:
    kind = {"num_labels": labels} if labels else {}
    return kind | {
        "architectures": ["Qwen3ForSequenceClassification" if labels else "Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": size,
        "hidden_size": WIDTH,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": 1,
        "head_dim": HEAD,
        "intermediate_size": INNER,
        "hidden_act": "silu",
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "attention_bias": False,
        "tie_word_embeddings": False,
        "dtype": "float16",
        "eos_token_id": end,
        "pad_token_id": 0,
    }


def _write(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
