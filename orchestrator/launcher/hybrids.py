"""
Flags that let a hybrid's prefix cache follow a chain of thought, and what to know before tokens are drafted for one.

vLLM caches the prefixes of a hybrid in blocks of 528 to 1600 tokens. With a match unit, a prefix may end at any
multiple of it. Decides only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from ..endpoints.metrics import UNIT
from ..endpoints.settings import Endpoint
from .machine import MachineFacts
from .pair import Pair, PairWithin, Roles, StartedServer
from .preflight import hybrid

CURE: Mapping[str, Any] = {"mamba-cache-mode": "align", "prefix-match-unit": UNIT}
OWN = frozenset({*CURE, "mamba-block-size", "no-enable-prefix-caching"})  # whoever sets one of these has decided

R = TypeVar("R", bound=Roles)


def wanted(pair: Pair, facts: MachineFacts) -> Mapping[str, StartedServer]:
    """The hybrids to be started, by their paths, whose cache nobody has set up otherwise."""
    return {
        path: one
        for path, one in pair.started.items()
        if _hybrid(one, facts) and one.prefix_caching and not OWN & set(one.flags)
    }


def cured(pair: Pair, paths: Mapping[str, object]) -> Pair:
    """The same pair, with the flags for each of *paths*."""
    return _cured(pair, "", frozenset(paths))


def warnings(pair: Pair, facts: MachineFacts) -> Iterator[str]:
    """What to know of hybrids whose servers draft tokens."""
    for path, one in pair.started.items():
        if one.speculation.method != "none" and one.prefix_caching and _hybrid(one, facts):
            yield (
                f"{path}: {one.model} is a hybrid, and vLLM may read nothing from its prefix cache while it speculates "
                f"by {one.speculation.method} (vllm#54360, vllm#53504): each verdict would read the whole chain again. "
                "`stepspec doctor` measures it on the running servers; the cure is to leave the speculation out"
            )


def _hybrid(one: StartedServer, facts: MachineFacts) -> bool:
    config = facts.of(one.model, one.revision).config
    return config is not None and hybrid(config)


def _cured(roles: R, prefix: str, paths: frozenset[str]) -> R:
    return roles.model_copy(
        update={
            "large": _with_flags(roles.large, f"{prefix}large", paths),
            "small": _cured(roles.small, f"{prefix}small.", paths)
            if isinstance(roles.small, PairWithin)
            else _with_flags(roles.small, f"{prefix}small", paths),
        }
    )


def _with_flags(one: Endpoint | StartedServer, path: str, paths: frozenset[str]) -> Endpoint | StartedServer:
    if path not in paths or isinstance(one, Endpoint):
        return one
    return one.model_copy(update={"flags": {**one.flags, **CURE}})
