"""What is wrong with a pair, found before anything is downloaded or started, and what to change. Decides only."""

from __future__ import annotations

from collections.abc import Iterator

from ..chain import Role
from ..errors import ConfigurationError
from .facts import Facts, Files
from .memory import cached, need
from .pair import Pair, Started
from .shape import Shape, shape
from .speculation import METHODS

INSTALL = "pip install 'stepspec[vllm]', on a CPU 'stepspec[testbed]'"
ARCTIC = "pip install arctic-inference==0.1.1, or choose ngram, which needs nothing"
ROUNDING = 1e-9


def refuse(pair: Pair, facts: Facts) -> tuple[str, ...]:
    """
    Raise `ConfigurationError` with everything that is wrong with *pair* on this machine, each with its cure.

    Return what could not be checked, and why.
    """
    wrong = [*_wrong(pair, facts)]
    if wrong:
        raise ConfigurationError("; ".join(wrong) if len(wrong) == 1 else "".join(f"\n- {one}" for one in wrong))
    return tuple(_unchecked(pair, facts))


def _wrong(pair: Pair, facts: Facts) -> Iterator[str]:
    if pair.started and facts.vllm is None:
        yield f"vLLM is not installed: {INSTALL}"
    yield from _addresses(pair, facts)
    yield from _cards(pair, facts)
    for role, one in pair.started.items():
        yield from _method(role, one, facts)
        yield from _drafter(pair, role, one, facts)
        yield from _model(role, one, facts)
        yield from _memory(pair, role, one, facts)


def _addresses(pair: Pair, facts: Facts) -> Iterator[str]:
    for role, one in pair.started.items():
        if reason := facts.taken.get((one.host, one.port)):
            yield f"{role}.port: {one.host}:{one.port} cannot be had ({reason}): stop who has it, or name another"
    ports = [(one.host, one.port) for one in pair.started.values() if one.port]
    if len(set(ports)) < len(ports):
        yield f"both servers are to listen at port {ports[0][1]}: give each its own, or leave them out"
    names = [one.name or role for role, one in pair.started.items()]
    if len(set(names)) < len(names):
        yield f"both models are to be served as {names[0]!r}: give each a name of its own"


def _cards(pair: Pair, facts: Facts) -> Iterator[str]:
    there = len(facts.cards) if facts.cards is not None else None
    for card in sorted({card for one in pair.started.values() for card in one.gpus}):
        users = {role: one.memory for role, one in pair.started.items() if card in one.gpus}
        if there is not None and card >= there:
            yield f"{', '.join(users)}: there is no GPU {card}; the driver knows {there}, numbered from 0"
        if sum(users.values()) > 1 + ROUNDING:
            shares = " + ".join(f"{role}.memory {share:g}" for role, share in users.items())
            yield f"GPU {card} is given away more than once ({shares} > 1): lower one, or put a model on another GPU"


def _method(role: Role, one: Started, facts: Facts) -> Iterator[str]:
    method, vllm = one.speculation.method, facts.vllm
    if method == "none" or vllm is None:
        return
    if vllm.methods is not None and method not in vllm.methods:
        has = ", ".join(one for one in METHODS if one in vllm.methods) or "none of ours"
        yield f"{role}.speculation: vLLM {vllm.version or '?'} has no method {method!r}; it has: {has}"
    elif method == "suffix" and not vllm.suffixes:
        yield f"{role}.speculation: suffix needs arctic-inference, which is not installed: {ARCTIC}"


def _drafter(pair: Pair, role: Role, one: Started, facts: Facts) -> Iterator[str]:
    if one.speculation.method != "draft_model":
        return
    drafter = pair.drafter(role)
    if drafter is None:
        yield f"{role}.speculation: no model to draft is known here: name one as its model"
        return
    if drafter[0] == one.model:
        yield f"{role}.speculation: the model cannot draft for itself: name a smaller one, or choose ngram"
    if one.speculation.heterogeneous:
        return
    large, small = facts.of(one.model, one.revision), facts.of(*drafter)
    if differing := _differing(large, small):
        yield (
            f"{role}.speculation: {drafter[0]} cannot draft for {one.model}: {differing}. Set heterogeneous = true, "
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


def _model(role: Role, one: Started, facts: Facts) -> Iterator[str]:
    files = facts.of(one.model, one.revision)
    if files.missing:
        yield f"{role}.model: no model at {files.missing}: a folder with a config.json is needed"
    sized = _shape(files, one.dtype)
    if sized is None:
        return
    if sized.context is not None and one.context > sized.context and "hf-overrides" not in one.flags:
        yield f"{role}.context: the model takes {sized.context} tokens, not {one.context}: lower it"
    heads = int((files.config or {}).get("num_attention_heads") or 0)
    if one.gpus and heads % len(one.gpus):
        yield f"{role}.gpus: {heads} attention heads cannot be divided among {len(one.gpus)} cards"


def _memory(pair: Pair, role: Role, one: Started, facts: Facts) -> Iterator[str]:
    sized, drafter = _shape(facts.of(one.model, one.revision), one.dtype), _drafting(pair, role, one, facts)
    if sized is None:
        return
    if not one.gpus:
        room = one.flags.get("kv-cache-memory-bytes")
        asked = cached(one, sized, drafter)
        if isinstance(room, int) and asked > room:
            yield (
                f"{role}: the keys and values of {one.context} tokens take {asked:.0f} bytes, and "
                f"kv-cache-memory-bytes is {room}: raise it, or lower {role}.context"
            )
        return
    card = smallest(pair, one, facts)
    needed = need(one, sized, drafter)
    if card is not None and needed.total > one.memory * card:
        yield (
            f"{role} does not fit: it takes {needed} of a card, and may use {one.memory:g} of {card:.0f} GiB: raise "
            f"{role}.memory, lower {role}.context, use more gpus, or a quantised model"
        )


def smallest(pair: Pair, one: Started, facts: Facts) -> float | None:
    """GiB of the smallest card that *one* is on; None if nobody knows."""
    if pair.card is not None:
        return pair.card
    known = [facts.cards[card] for card in one.gpus if card < len(facts.cards)] if facts.cards else []
    return min(known, default=None)


def _drafting(pair: Pair, role: Role, one: Started, facts: Facts) -> Shape | None:
    drafter = pair.drafter(role)
    return _shape(facts.of(*drafter), one.dtype) if drafter else None


def _shape(files: Files, dtype: str = "auto") -> Shape | None:
    return shape(files.config, dtype) if files.config is not None else None


def _unchecked(pair: Pair, facts: Facts) -> Iterator[str]:
    if pair.started and facts.vllm is not None and facts.vllm.methods is None:
        yield f"which methods vLLM {facts.vllm.version or '?'} has: its source does not tell"
    for role, one in pair.started.items():
        drafter = pair.drafter(role)
        for model, revision in dict.fromkeys(filter(None, ((one.model, one.revision), drafter))):
            files = facts.of(model, revision)
            if files.config is None:
                yield f"{role}: the memory and the vocabulary of {model}, which is not on this machine yet"
            elif _shape(files) is None:
                yield f"{role}: the memory of {model}: its config.json describes no decoder that the formula fits"
        if one.gpus and smallest(pair, one, facts) is None:
            yield f"{role}: the memory of its GPUs: nvidia-smi does not tell; say `card = GIB` at the top of the file"
