"""
The size of a model, from its ``config.json`` alone.

For a decoder of L layers, width H, heads of D, K of them with keys and values, and gated networks I wide, of which a
mixture has E: parameters = V H (twice unless tied) + L (H D (2 heads + 2 K) + 3 H I E + H E if E > 1 + 2 H) + H, and a
token's keys and values are 2 L K D numbers. Biases are left out; they are few. Anything else, such as latent or linear
attention, is not sized.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from ..errors import ConfigurationError
from .machine import VISIBLE, Files, MachineFacts
from .pair import METHODS, Pair, StartedServer

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
class ModelShape:
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


def shape(config: Mapping[str, Any], dtype: str = "auto") -> ModelShape | None:
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


def _sized(text: Mapping[str, Any], number: float, stored: float) -> ModelShape:
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
    return ModelShape(parameters, embedding, number, stored, layers, kv_heads, head, vocabulary, context)


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


RESERVE = 1.5  # GiB, our estimate: the CUDA runtime, the activations of a pass, the captured graphs
GRAPHS_APART = 0.5  # GiB of it where nothing is captured: --enforce-eager


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """What a model takes of each of its cards, in GiB."""

    weights: float
    tokens: float
    drafter: float
    reserve: float

    @property
    def total(self) -> float:
        return self.weights + self.tokens + self.drafter + self.reserve

    def __str__(self) -> str:
        parts = [f"{self.weights:.1f} of weights", f"{self.tokens:.1f} for the keys and values of one whole context"]
        if self.drafter:
            parts.append(f"{self.drafter:.1f} for its drafter")
        return f"{self.total:.1f} GiB ({', '.join(parts)}, {self.reserve:.1f} for all else)"


def need(one: StartedServer, model: ModelShape, drafter: ModelShape | None) -> MemoryNeed:
    """Work out what *one* takes of each card."""
    cards, number = max(1, len(one.gpus)), kept_in(one.flags)
    drafting = drafter.weights(cards) + one.context * drafter.token(cards, number) if drafter else 0.0
    reserve = GRAPHS_APART if one.flags.get("enforce-eager") else RESERVE
    return MemoryNeed(
        weights=model.weights(cards) / GIB,
        tokens=one.context * model.token(cards, number) / GIB,
        drafter=drafting / GIB,
        reserve=reserve,
    )


def cached(one: StartedServer, model: ModelShape, drafter: ModelShape | None) -> float:
    """Bytes of the keys and values of one whole context, those of the drafter included."""
    number = kept_in(one.flags)
    return one.context * (model.token(1, number) + (drafter.token(1, number) if drafter else 0.0))


def kept_in(flags: Mapping[str, object]) -> float | None:
    """Bytes of the numbers that keys and values are kept in, where a flag says it."""
    said = str(flags.get("kv-cache-dtype", "auto"))
    return BYTES["fp8"] if said.startswith("fp8") else BYTES.get(said)


INSTALL = "pip install 'stepspec[vllm]', on a CPU 'stepspec[testbed]'"
ARCTIC = "pip install arctic-inference==0.1.1, or choose ngram, which needs nothing"
ROUNDING = 1e-9
TO_BE_USED = 0.9  # of a card, by all models on it together; each server takes some memory beyond its share
SLACK = 1.0  # GiB that a card may have less than the file says: makers round
MORE = 1.15  # times what the file says: shares were chosen for a smaller card
AMBIGUOUS = ("auto", "small", "large")  # names that mean something else wherever a model is named

K = TypeVar("K", bound=Hashable)


def refuse(pair: Pair, facts: MachineFacts, methods: Collection[str] = ()) -> tuple[str, ...]:
    """
    Raise `ConfigurationError` with everything that is wrong with *pair* on this machine, each with its cure.

    Return what could not be checked, and why. No model may be served under the name of one of the *methods*.
    """
    wrong = [*_wrong(pair, facts, methods)]
    if wrong:
        raise ConfigurationError("; ".join(wrong) if len(wrong) == 1 else "".join(f"\n- {one}" for one in wrong))
    return tuple(_unchecked(pair, facts))


def warnings(pair: Pair, facts: MachineFacts) -> tuple[str, ...]:
    """Return what may work, but hardly well, each with what to change."""
    return tuple(_doubtful(pair, facts))


def _wrong(pair: Pair, facts: MachineFacts, methods: Collection[str]) -> Iterator[str]:
    if pair.started and facts.vllm is None:
        yield f"vLLM is not installed: {INSTALL}"
    yield from _addresses(pair, facts)
    yield from _names(pair, methods)
    yield from _cards(pair, facts)
    for path, one in pair.started.items():
        yield from _method(path, one, facts)
        yield from _drafter(pair, path, one, facts)
        yield from _model(path, one, facts)
        yield from _memory(pair, path, one, facts)


def _addresses(pair: Pair, facts: MachineFacts) -> Iterator[str]:
    for path, one in pair.started.items():
        if reason := facts.taken.get((one.host, one.port)):
            yield f"{path}.port: {one.host}:{one.port} cannot be had ({reason}): stop who has it, or name another"
    ports = {path: (one.host, one.port) for path, one in pair.started.items() if one.port}
    for (_, port), paths in _shared(ports):
        yield f"{paths} are to listen at port {port}: give each its own, or leave them out"


def _names(pair: Pair, methods: Collection[str]) -> Iterator[str]:
    names = {path: one.served_name for path, one in pair.started.items()}
    for name, paths in _shared(names):
        yield f"{paths} are to be served as {name!r}: give each a name of its own"
    for path, name in names.items():
        if name in (*AMBIGUOUS, *methods):
            what = "the name of a method" if name in methods else "no model's own name"
            yield f"{path}.name: {name!r} is {what}: leave `name` out, and the model is served under its own"


def _shared(wanted: Mapping[str, K]) -> Iterator[tuple[K, str]]:
    """Return what several want, and who they are."""
    for one in dict.fromkeys(wanted.values()):
        paths = [path for path, other in wanted.items() if other == one]
        if len(paths) > 1:
            yield one, " and ".join(paths)


def _cards(pair: Pair, facts: MachineFacts) -> Iterator[str]:
    there = len(facts.cards) if facts.cards is not None else None
    for card in sorted({card for one in pair.started.values() for card in one.gpus}):
        users = {path: one.memory for path, one in pair.started.items() if card in one.gpus}
        if there is not None and card >= there:
            yield f"{', '.join(users)}: there is no GPU {card}; {_known(there, facts.allotted)}"
        found = facts.cards[card] if facts.cards is not None and card < len(facts.cards) else None
        if pair.card is not None and found and found.gib is not None and found.gib < pair.card - SLACK:
            yield (
                f"card: the file says {pair.card:g} GiB, and GPU {card} has less ({found}): write `card = "
                f"{int(found.gib)}`, and raise the shares of memory or lower the context until all of it fits"
            )
        if sum(users.values()) > 1 + ROUNDING:
            shares = " + ".join(f"{path}.memory {share:g}" for path, share in users.items())
            yield f"GPU {card} is given away more than once ({shares} > 1): lower one, or put a model on another GPU"


def _known(there: int, allotment: Sequence[str] | None) -> str:
    if allotment is None:
        return f"the driver knows {there}, numbered from 0"
    if not allotment:
        return f"{VISIBLE} allots none"
    unknown = f", and the driver does not know {allotment[there]}" if there < len(allotment) else ""
    return f"{VISIBLE} allots {', '.join(allotment)}, which gpus number from 0{unknown}"


def _method(path: str, one: StartedServer, facts: MachineFacts) -> Iterator[str]:
    method, vllm = one.speculation.method, facts.vllm
    if method == "none" or vllm is None:
        return
    if vllm.methods is not None and method not in vllm.methods:
        has = ", ".join(one for one in METHODS if one in vllm.methods) or "none of ours"
        yield f"{path}.speculation: vLLM {vllm.version or '?'} has no method {method!r}; it has: {has}"
    elif method == "suffix" and not vllm.suffixes:
        yield f"{path}.speculation: suffix needs arctic-inference, which is not installed: {ARCTIC}"


def _drafter(pair: Pair, path: str, one: StartedServer, facts: MachineFacts) -> Iterator[str]:
    if one.speculation.method != "draft_model":
        return
    drafter = pair.drafter(path)
    if drafter is None:
        yield f"{path}.speculation: no model to draft is known here: name one as its model"
        return
    if drafter[0] == one.model:
        yield f"{path}.speculation: the model cannot draft for itself: name a smaller one, or choose ngram"
    if one.speculation.heterogeneous:
        return
    large, small = facts.of(one.model, one.revision), facts.of(*drafter)
    if differing := _differing(large, small):
        yield (
            f"{path}.speculation: {drafter[0]} cannot draft for {one.model}: {differing}. Set heterogeneous = true, "
            "and vLLM drafts the tokens that both have, on its V1 runner, greedily; or choose ngram"
        )


def _differing(large: Files, small: Files) -> str:
    """Say how two vocabularies differ; vLLM itself compares no more than the sizes."""
    sizes = [one and one.vocabulary for one in (_shape(large), _shape(small))]
    if None not in sizes and sizes[0] != sizes[1]:
        return f"their embeddings have {sizes[0]} and {sizes[1]} rows"
    if large.vocabulary is None or small.vocabulary is None or large.vocabulary == small.vocabulary:
        return ""
    moved = sum(small.vocabulary.get(token) != number for token, number in large.vocabulary.items())
    return f"{moved} of its {len(large.vocabulary)} tokens have another id there, or none"


def _model(path: str, one: StartedServer, facts: MachineFacts) -> Iterator[str]:
    files = facts.of(one.model, one.revision)
    if files.missing:
        yield f"{path}.model: no model at {files.missing}: a folder with a config.json is needed"
    sized = _shape(files, one.dtype)
    if sized is None:
        return
    if sized.context is not None and one.context > sized.context and "hf-overrides" not in one.flags:
        yield f"{path}.context: the model takes {sized.context} tokens, not {one.context}: lower it"
    heads = int((files.config or {}).get("num_attention_heads") or 0)
    if one.gpus and heads % len(one.gpus):
        yield f"{path}.gpus: {heads} attention heads cannot be divided among {len(one.gpus)} cards"


def _memory(pair: Pair, path: str, one: StartedServer, facts: MachineFacts) -> Iterator[str]:
    sized, drafter = _shape(facts.of(one.model, one.revision), one.dtype), _drafting(pair, path, one, facts)
    if sized is None:
        return
    if not one.gpus:
        room = one.flags.get("kv-cache-memory-bytes")
        asked = cached(one, sized, drafter)
        if isinstance(room, int) and asked > room:
            yield (
                f"{path}: the keys and values of {one.context} tokens take {asked:.0f} bytes, and "
                f"kv-cache-memory-bytes is {room}: raise it, or lower {path}.context"
            )
        return
    card = smallest(pair, one, facts)
    needed = need(one, sized, drafter)
    if card is not None and needed.total > one.memory * card:
        yield (
            f"{path} does not fit: it takes {needed} of a card, and may use {one.memory:g} of {card:.0f} GiB: raise "
            f"{path}.memory, lower {path}.context, use more gpus, or a quantised model"
        )


def smallest(pair: Pair, one: StartedServer, facts: MachineFacts) -> float | None:
    """GiB of the smallest card that *one* is on; None if nobody knows."""
    if pair.card is not None:
        return pair.card
    known = [facts.cards[card].gib for card in one.gpus if card < len(facts.cards)] if facts.cards else []
    return min((gib for gib in known if gib is not None), default=None)


def _drafting(pair: Pair, path: str, one: StartedServer, facts: MachineFacts) -> ModelShape | None:
    drafter = pair.drafter(path)
    return _shape(facts.of(*drafter), one.dtype) if drafter else None


def _shape(files: Files, dtype: str = "auto") -> ModelShape | None:
    return shape(files.config, dtype) if files.config is not None else None


def _unchecked(pair: Pair, facts: MachineFacts) -> Iterator[str]:
    if pair.started and facts.vllm is not None and facts.vllm.methods is None:
        yield f"which methods vLLM {facts.vllm.version or '?'} has: its source does not tell"
    for path, one in pair.started.items():
        drafter = pair.drafter(path)
        for model, revision in dict.fromkeys(filter(None, ((one.model, one.revision), drafter))):
            files = facts.of(model, revision)
            if files.config is None:
                yield f"{path}: the memory and the vocabulary of {model}, which is not on this machine yet"
            elif _shape(files) is None:
                yield f"{path}: the memory of {model}: its config.json describes no decoder that the formula fits"
        if one.gpus and smallest(pair, one, facts) is None:
            yield f"{path}: the memory of its GPUs: nvidia-smi does not tell; say `card = GIB` at the top of the file"


def _doubtful(pair: Pair, facts: MachineFacts) -> Iterator[str]:
    for card in sorted({card for one in pair.started.values() for card in one.gpus}):
        users = {path: one for path, one in pair.started.items() if card in one.gpus}
        total = sum(one.memory for one in users.values())
        if TO_BE_USED + ROUNDING < total <= 1 + ROUNDING:
            shares = " + ".join(f"{path}.memory {one.memory:g}" for path, one in users.items())
            yield (
                f"GPU {card} has less than a tenth of its memory left ({shares} = {total:g}): a server takes some "
                f"beyond its share, and may run out in the middle of a request; keep to {TO_BE_USED:g} in all"
            )
        if len(users) > 1:
            yield (
                f"{' and '.join(users)} share GPU {card}: while both work, each slows the other, so that drafts and "
                "verdicts at the same time (lookahead) gain less than on cards of their own; compare ahead = 0 and 1"
            )
        found = facts.cards[card] if facts.cards is not None and card < len(facts.cards) else None
        if pair.card is not None and found and found.gib is not None and found.gib > pair.card * MORE:
            yield f"GPU {card} is larger than `card = {pair.card:g}` ({found}): the shares of memory are of all of it"
    for path, one in pair.started.items():
        there = [facts.cards[card] for card in one.gpus if card < len(facts.cards)] if facts.cards else []
        if len(set(there)) > 1:
            yield f"{path}: its cards differ ({'; '.join(map(str, there))}): the smallest and slowest decides for all"
