"""
Check a pair before anything is started: sizes of models and memory, cards, addresses, names and speculation.

Decides from `MachineFacts` alone. The size of a model comes from its ``config.json``: for a decoder of L layers, width
H, heads of D, K of them with keys and values, and gated networks I wide, of which a mixture has E: parameters = V H
(twice unless tied) + L (H D (2 heads + 2 K) + 3 H I E + H E if E > 1 + 2 H) + H, and a token's keys and values are
2 L K D numbers. Biases are left out; they are few. Other architectures, such as latent or linear attention, get no
size.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from ..errors import ConfigurationError
from ..installation import VLLM_FOR_CPUS, install_command
from .machine import VISIBLE, Card, MachineFacts, ModelFiles
from .pair import METHODS, Pair, StartedServer

GIB = 2**30
BYTES: Mapping[str, float] = {"float32": 4, "bfloat16": 2, "float16": 2, "fp8": 1}  # per number of a dtype
ATTENTION = frozenset({"full_attention", "sliding_attention"})
UNSUPPORTED = ("kv_lora_rank", "ssm_cfg", "mamba_d_state", "n_shared_experts", "first_k_dense_replace")
"""Settings of architectures that the formula does not fit."""

LAYER_TYPES = ("layer_types", "layers_block_type")
RECURRENT = ("linear", "mamba", "conv", "recurrent")  # in the names of layers that keep a state, not keys and values
ATTENDING = ("attention", "hybrid")  # in the names of layers that keep both; "linear_attention" counts as recurrent
HYBRID_SETTINGS = (
    *("linear_attn_config", "hybrid_override_pattern"),
    *("attn_layer_period", "attn_layer_indices", "mamba_d_ssm"),
)
"""Settings that only the configurations of hybrids have: Kimi-Linear, Nemotron-H, Jamba, Bamba, Falcon-H1."""

RESERVE_GIB = 1.5  # our estimate: the CUDA runtime, the activations of a pass, the captured graphs
EAGER_RESERVE_GIB = 0.5  # with --enforce-eager, which captures no graphs


@dataclass(frozen=True, slots=True)
class ModelShape:
    """
    The size of a model. *embedding* of its *parameters* belong to the vocabulary and are never quantised.

    *embedding_bytes* and *weight_bytes* are the bytes of one of those and of one other parameter. *vocabulary* is the
    number of rows of the embedding, padding included. *context* is in tokens, None if the configuration has no limit.
    """

    parameters: int
    embedding: int
    embedding_bytes: float
    weight_bytes: float
    layers: int
    kv_heads: int
    head: int
    vocabulary: int
    context: int | None

    def weights(self, cards: int = 1) -> float:
        """Return the bytes of the weights on each of *cards*."""
        others = self.parameters - self.embedding
        return (self.embedding * self.embedding_bytes + others * self.weight_bytes) / cards

    def token(self, cards: int = 1, number_bytes: float | None = None) -> float:
        """Return the bytes of a token's keys and values on each card; a head is never divided."""
        heads = math.ceil(self.kv_heads / cards)
        return 2 * self.layers * heads * self.head * (self.embedding_bytes if number_bytes is None else number_bytes)


def model_shape(config: Mapping[str, Any], dtype: str = "auto") -> ModelShape | None:
    """Read a ``config.json``; None if the formula does not fit. *dtype* overrides the configuration's, unless auto."""
    text = {**config, **cast("Mapping[str, Any]", config.get("text_config") or {})}
    layer_types: list[str] = text.get("layer_types") or []
    if any(text.get(key) for key in UNSUPPORTED) or set(layer_types) - ATTENTION:
        return None
    if (text.get("decoder_sparse_step") or 1) != 1:
        return None
    embedding_bytes = BYTES.get(_dtype(text) if dtype == "auto" else dtype)
    weight_bytes = _weight_bytes(text, embedding_bytes)
    if embedding_bytes is None or weight_bytes is None:
        return None
    try:
        return _shape(text, embedding_bytes, weight_bytes)
    except (KeyError, TypeError):
        return None


def _shape(text: Mapping[str, Any], embedding_bytes: float, weight_bytes: float) -> ModelShape:
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
    return ModelShape(parameters, embedding, embedding_bytes, weight_bytes, layers, kv_heads, head, vocabulary, context)


def _dtype(text: Mapping[str, Any]) -> str:
    dtype = str(text.get("dtype") or text.get("torch_dtype") or "float32")
    return "float16" if dtype == "float32" else dtype  # as vLLM's "auto" does


def _weight_bytes(text: Mapping[str, Any], unquantised: float | None) -> float | None:
    """Return the bytes of a stored weight; None for a quantisation that does not state them."""
    quantisation = text.get("quantization_config")
    if not quantisation:
        return unquantised
    bits = 8 if quantisation.get("quant_method") == "fp8" else quantisation.get("bits")
    return float(bits) / 8 if bits else None


def is_hybrid(config: Mapping[str, Any]) -> bool:
    """Return whether a ``config.json`` describes a model with both attention and layers with a recurrent state."""
    text = {**config, **cast("Mapping[str, Any]", config.get("text_config") or {})}
    layer_types = {str(name) for key in LAYER_TYPES for name in cast("list[str]", text.get(key) or ())}
    recurrent = {name for name in layer_types if any(word in name for word in RECURRENT)}
    attending = {name for name in layer_types - recurrent if any(word in name for word in ATTENDING)}
    if layer_types:
        return bool(recurrent and attending)
    return int(text.get("full_attention_interval") or 1) > 1 or any(text.get(key) for key in HYBRID_SETTINGS)


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """The memory that a model takes of each of its cards, in GiB."""

    weights: float
    tokens: float
    drafter: float
    reserve: float

    @property
    def total(self) -> float:
        return self.weights + self.tokens + self.drafter + self.reserve

    def __str__(self) -> str:
        parts = [f"{self.weights:.1f} for weights", f"{self.tokens:.1f} for the keys and values of one full context"]
        if self.drafter:
            parts.append(f"{self.drafter:.1f} for its drafter")
        return f"{self.total:.1f} GiB ({', '.join(parts)}, {self.reserve:.1f} for the rest)"


def memory_need(server: StartedServer, model: ModelShape, drafter: ModelShape | None) -> MemoryNeed:
    """Compute the memory that *server* takes of each card."""
    cards, number_bytes = max(1, len(server.gpus)), _cache_number_bytes(server)
    drafting = drafter.weights(cards) + server.context * drafter.token(cards, number_bytes) if drafter else 0.0
    return MemoryNeed(
        weights=model.weights(cards) / GIB,
        tokens=server.context * model.token(cards, number_bytes) / GIB,
        drafter=drafting / GIB,
        reserve=EAGER_RESERVE_GIB if server.flags.get("enforce-eager") else RESERVE_GIB,
    )


def _context_bytes(server: StartedServer, model: ModelShape, drafter: ModelShape | None) -> float:
    """Return the bytes of the keys and values of one full context, including those of the drafter."""
    number_bytes = _cache_number_bytes(server)
    return server.context * (model.token(1, number_bytes) + (drafter.token(1, number_bytes) if drafter else 0.0))


def _cache_number_bytes(server: StartedServer) -> float | None:
    """Return the bytes of a number in the cache of keys and values; None if no flag sets its dtype."""
    dtype = str(server.flags.get("kv-cache-dtype", "auto"))
    return BYTES["fp8"] if dtype.startswith("fp8") else BYTES.get(dtype)


INSTALL_SUFFIX = "pip install arctic-inference==0.1.1, or choose ngram, which needs nothing"
ROUNDING = 1e-9
ADVISED_SHARE = 0.9  # of a card, for all models on it together; each server takes some memory beyond its share
CARD_SLACK_GIB = 1.0  # that a card may have less than the file states, because makers round
LARGER_CARD = 1.15  # times the file's size: the shares were chosen for a smaller card
RESERVED_NAMES = ("auto", "small", "large")  # have another meaning wherever a request names a model

K = TypeVar("K", bound=Hashable)


def check_pair(pair: Pair, facts: MachineFacts, methods: Collection[str] = ()) -> tuple[str, ...]:
    """
    Raise `ConfigurationError` with every reason why *pair* cannot run on this machine, each with its remedy.

    Return what could not be checked, and why. No model may be served under the name of one of the *methods*.
    """
    if errors := [*_errors(pair, facts, methods)]:
        raise ConfigurationError(errors[0] if len(errors) == 1 else "".join(f"\n- {error}" for error in errors))
    return tuple(_unchecked(pair, facts))


def warnings(pair: Pair, facts: MachineFacts) -> tuple[str, ...]:
    """Return what will work badly, each with its remedy."""
    return (*_card_warnings(pair, facts), *_hybrid_warnings(pair, facts))


def _errors(pair: Pair, facts: MachineFacts, methods: Collection[str]) -> Iterator[str]:
    if pair.started and facts.vllm is None:
        yield f"vLLM is not installed: {install_command('vllm')}; {VLLM_FOR_CPUS}"
    yield from _address_errors(pair, facts)
    yield from _name_errors(pair, methods)
    yield from _card_errors(pair, facts)
    for path, server in pair.started.items():
        yield from _method_errors(path, server, facts)
        yield from _drafter_errors(pair, path, server, facts)
        yield from _model_errors(path, server, facts)
        yield from _memory_errors(pair, path, server, facts)


def _address_errors(pair: Pair, facts: MachineFacts) -> Iterator[str]:
    for path, server in pair.started.items():
        if reason := facts.taken.get((server.host, server.port)):
            yield (
                f"{path}.port: {server.host}:{server.port} is not available ({reason}): stop the program that uses it, "
                "or set another port"
            )
    ports = {path: (server.host, server.port) for path, server in pair.started.items() if server.port}
    for (_, port), paths in _duplicates(ports):
        yield f"{paths} have the same port {port}: set different ports, or leave them out"


def _name_errors(pair: Pair, methods: Collection[str]) -> Iterator[str]:
    names = {path: server.served_name for path, server in pair.started.items()}
    for name, paths in _duplicates(names):
        yield f"{paths} have the same served name {name!r}: set a different `name` for each"
    for path, name in names.items():
        if name in (*RESERVED_NAMES, *methods):
            what = "the name of a method" if name in methods else "a reserved name"
            yield f"{path}.name: {name!r} is {what}: leave `name` out, and the model is served under its own"


def _duplicates(values: Mapping[str, K]) -> Iterator[tuple[K, str]]:
    """Yield every value that several paths have, with these paths."""
    for value in dict.fromkeys(values.values()):
        paths = [path for path, other in values.items() if other == value]
        if len(paths) > 1:
            yield value, " and ".join(paths)


def _card_errors(pair: Pair, facts: MachineFacts) -> Iterator[str]:
    for index, users in _users(pair).items():
        if facts.cards is not None and index >= len(facts.cards):
            yield f"{', '.join(users)}: there is no GPU {index}; {_available(len(facts.cards), facts.visible)}"
        card = _card(facts, index)
        if pair.card is not None and card and card.gib is not None and card.gib < pair.card - CARD_SLACK_GIB:
            yield (
                f"card: the file says {pair.card:g} GiB, and GPU {index} has less ({card}): write `card = "
                f"{int(card.gib)}`, and raise the shares of memory or lower the context until all of it fits"
            )
        if sum(server.memory for server in users.values()) > 1 + ROUNDING:
            yield (
                f"GPU {index}: the shares of its memory exceed 1 ({_shares(users)} > 1): lower one, or put a model on "
                "another GPU"
            )


def _users(pair: Pair) -> Mapping[int, Mapping[str, StartedServer]]:
    """Return the servers on each card, by the card's index."""
    return {
        card: {path: server for path, server in pair.started.items() if card in server.gpus}
        for card in sorted({card for server in pair.started.values() for card in server.gpus})
    }


def _card(facts: MachineFacts, index: int) -> Card | None:
    return facts.cards[index] if facts.cards is not None and index < len(facts.cards) else None


def _shares(users: Mapping[str, StartedServer]) -> str:
    return " + ".join(f"{path}.memory {server.memory:g}" for path, server in users.items())


def _available(cards: int, visible: Sequence[str] | None) -> str:
    if visible is None:
        return f"the driver knows {cards}, numbered from 0"
    if not visible:
        return f"{VISIBLE} allows none"
    unknown = f", and the driver does not know {visible[cards]}" if cards < len(visible) else ""
    return f"{VISIBLE} allows {', '.join(visible)}, which gpus number from 0{unknown}"


def _method_errors(path: str, server: StartedServer, facts: MachineFacts) -> Iterator[str]:
    method, vllm = server.speculation.method, facts.vllm
    if method == "none" or vllm is None:
        return
    if vllm.methods is not None and method not in vllm.methods:
        known = ", ".join(name for name in METHODS if name in vllm.methods) or "none of ours"
        yield f"{path}.speculation: vLLM {vllm.version or '?'} has no method {method!r}; it has: {known}"
    elif method == "suffix" and not vllm.suffix_decoding:
        yield f"{path}.speculation: suffix needs arctic-inference, which is not installed: {INSTALL_SUFFIX}"


def _drafter_errors(pair: Pair, path: str, server: StartedServer, facts: MachineFacts) -> Iterator[str]:
    if server.speculation.method != "draft_model":
        return
    drafter = pair.drafter(path)
    if drafter is None:
        yield f"{path}.speculation: the pair has no smaller model that could draft: set `model`"
        return
    if drafter[0] == server.model:
        yield f"{path}.speculation: the model cannot draft for itself: name a smaller one, or choose ngram"
    if server.speculation.heterogeneous:
        return
    large, small = facts.of(server.model, server.revision), facts.of(*drafter)
    if difference := _vocabulary_difference(large, small):
        yield (
            f"{path}.speculation: {drafter[0]} cannot draft for {server.model}: {difference}. Set heterogeneous = true,"
            " and vLLM drafts the tokens that both have, on its V1 runner, greedily; or choose ngram"
        )


def _vocabulary_difference(large: ModelFiles, small: ModelFiles) -> str:
    """Describe how two vocabularies differ, empty if they do not; vLLM itself compares only their sizes."""
    rows = [shape and shape.vocabulary for shape in (_shape_of(large), _shape_of(small))]
    if None not in rows and rows[0] != rows[1]:
        return f"their embeddings have {rows[0]} and {rows[1]} rows"
    if large.vocabulary is None or small.vocabulary is None or large.vocabulary == small.vocabulary:
        return ""
    different = sum(small.vocabulary.get(token) != number for token, number in large.vocabulary.items())
    return f"{different} of its {len(large.vocabulary)} tokens have another id there, or none"


def _model_errors(path: str, server: StartedServer, facts: MachineFacts) -> Iterator[str]:
    files = facts.of(server.model, server.revision)
    if files.missing:
        yield f"{path}.model: no model at {files.missing}: a folder with a config.json is needed"
    shape = _shape_of(files, server.dtype)
    if shape is None:
        return
    if shape.context is not None and server.context > shape.context and "hf-overrides" not in server.flags:
        yield f"{path}.context: the model takes {shape.context} tokens, not {server.context}: lower it"
    heads = int((files.config or {}).get("num_attention_heads") or 0)
    if server.gpus and heads % len(server.gpus):
        yield f"{path}.gpus: {heads} attention heads cannot be divided among {len(server.gpus)} cards"


def _memory_errors(pair: Pair, path: str, server: StartedServer, facts: MachineFacts) -> Iterator[str]:
    shape, drafter = _shape_of(facts.of(server.model, server.revision), server.dtype), _drafter(pair, path, facts)
    if shape is None:
        return
    if not server.gpus:
        limit = server.flags.get("kv-cache-memory-bytes")
        needed = _context_bytes(server, shape, drafter)
        if isinstance(limit, int) and needed > limit:
            yield (
                f"{path}: the keys and values of {server.context} tokens take {needed:.0f} bytes, and "
                f"kv-cache-memory-bytes is {limit}: raise it, or lower {path}.context"
            )
        return
    card = smallest_card(pair, server, facts)
    need = memory_need(server, shape, drafter)
    if card is not None and need.total > server.memory * card:
        yield (
            f"{path} does not fit: it takes {need} of a card, and may use {server.memory:g} of {card:.0f} GiB: raise "
            f"{path}.memory, lower {path}.context, use more gpus, or a quantised model"
        )


def smallest_card(pair: Pair, server: StartedServer, facts: MachineFacts) -> float | None:
    """Return the GiB of the smallest card of *server*; None if unknown."""
    if pair.card is not None:
        return pair.card
    cards = [_card(facts, index) for index in server.gpus]
    return min((card.gib for card in cards if card and card.gib is not None), default=None)


def _drafter(pair: Pair, path: str, facts: MachineFacts) -> ModelShape | None:
    drafter = pair.drafter(path)
    return _shape_of(facts.of(*drafter), pair.started[path].dtype) if drafter else None


def _shape_of(files: ModelFiles, dtype: str = "auto") -> ModelShape | None:
    return model_shape(files.config, dtype) if files.config is not None else None


def _unchecked(pair: Pair, facts: MachineFacts) -> Iterator[str]:
    if pair.started and facts.vllm is not None and facts.vllm.methods is None:
        yield f"the methods of vLLM {facts.vllm.version or '?'}: its source does not list them"
    for path, server in pair.started.items():
        drafter = pair.drafter(path)
        for model, revision in dict.fromkeys(filter(None, ((server.model, server.revision), drafter))):
            files = facts.of(model, revision)
            if files.config is None:
                yield f"{path}: the memory and the vocabulary of {model}, which is not on this machine yet"
            elif _shape_of(files) is None:
                yield f"{path}: the memory of {model}: its config.json describes no decoder that the formula fits"
        if server.gpus and smallest_card(pair, server, facts) is None:
            yield f"{path}: the memory of its GPUs: nvidia-smi does not tell; say `card = GIB` at the top of the file"


def _card_warnings(pair: Pair, facts: MachineFacts) -> Iterator[str]:
    for index, users in _users(pair).items():
        total = sum(server.memory for server in users.values())
        if ADVISED_SHARE + ROUNDING < total <= 1 + ROUNDING:
            yield (
                f"GPU {index} has less than a tenth of its memory left ({_shares(users)} = {total:g}): a server takes "
                "some beyond its share, and may run out in the middle of a request; keep the sum to "
                f"{ADVISED_SHARE:g} at most"
            )
        if len(users) > 1:
            yield (
                f"{' and '.join(users)} share GPU {index}: while both work, each slows the other, so that drafts and "
                "verdicts at the same time (lookahead) gain less than on cards of their own; compare ahead = 0 and 1"
            )
        card = _card(facts, index)
        if pair.card is not None and card and card.gib is not None and card.gib > pair.card * LARGER_CARD:
            yield f"GPU {index} is larger than `card = {pair.card:g}` ({card}): the shares of memory are of all of it"
    for path, server in pair.started.items():
        cards = [card for index in server.gpus if (card := _card(facts, index)) is not None]
        if len(set(cards)) > 1:
            yield f"{path}: its cards differ ({'; '.join(map(str, cards))}): the smallest and slowest decides for all"


def _hybrid_warnings(pair: Pair, facts: MachineFacts) -> Iterator[str]:
    for path, server in pair.started.items():
        if server.speculation.method != "none" and server.prefix_caching and serves_hybrid(server, facts):
            yield (
                f"{path}: {server.model} is a hybrid, and vLLM may read nothing from its prefix cache while it "
                f"speculates by {server.speculation.method} (vllm#54360, vllm#53504): each verdict would read the "
                "whole chain again. `stepspec doctor` measures it on the running servers; the remedy is to leave the "
                "speculation out"
            )


def serves_hybrid(server: StartedServer, facts: MachineFacts) -> bool:
    """Return whether *server* serves a hybrid, as far as its ``config.json`` is on this machine."""
    config = facts.of(server.model, server.revision).config
    return config is not None and is_hybrid(config)
