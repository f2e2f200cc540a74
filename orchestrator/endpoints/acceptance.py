"""How well a server's own token-level speculation does, from its counters, where ``/metrics`` can be reached."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from ..acceptance import Acceptance

__all__ = ["Acceptance", "Look", "look", "read", "total"]

PREFIX = "vllm:spec_decode_num_"
COUNTERS = {f"{PREFIX}drafts": "drafts", f"{PREFIX}draft_tokens": "drafted", f"{PREFIX}accepted_tokens": "accepted"}
WRITTEN = "vllm:generation_tokens"
_NAMES = "|".join([*COUNTERS, WRITTEN])
_LINE = re.compile(rf"({_NAMES})(?:_total)?(?:{{.*}})? (.*)$".encode(), re.MULTILINE)  # comments have no number there


@dataclass(frozen=True, slots=True)
class Look:
    """
    What a server that speculates had *counted* by second *at* of the event loop's clock, since it was started.

    *written* are all tokens that it wrote for anybody, 0 if it does not tell.
    """

    at: float
    counted: Acceptance
    written: int = 0

    def since(self, earlier: Look) -> Acceptance | None:
        """What was counted since an *earlier* look; None if the server was started anew in between."""
        grown = self.counted - earlier.counted
        anew = min(grown.drafts, grown.drafted, grown.accepted, self.written - earlier.written) < 0
        return None if anew else grown


def look(metrics: bytes, at: float) -> Look | None:
    """Take a look at the counters; None if they are not there."""
    sums = _sums(metrics)
    counted = _counted(sums)
    return Look(at, counted, sums.get(WRITTEN, 0)) if counted is not None else None


def read(metrics: bytes) -> Acceptance | None:
    """Add up the counters of every engine behind a server; None if they are not there: it does not speculate."""
    return _counted(_sums(metrics))


def _counted(sums: Mapping[str, int]) -> Acceptance | None:
    counted = {COUNTERS[name]: value for name, value in sums.items() if name in COUNTERS}
    return Acceptance(**counted) if len(counted) == len(COUNTERS) else None


def _sums(metrics: bytes) -> dict[str, int]:
    sums: dict[str, int] = {}
    for name, value in _LINE.findall(metrics):
        with suppress(ValueError):
            sums[name.decode()] = sums.get(name.decode(), 0) + int(float(value))
    return sums


def total(found: Iterable[Acceptance | None]) -> Acceptance | None:
    """Add up what several servers tell; None if none does."""
    told = [one for one in found if one is not None]
    return sum(told, Acceptance()) if told else None
