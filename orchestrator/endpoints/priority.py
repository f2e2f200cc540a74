"""
Which of the requests that wait at a server it should take first. Pure.

vLLM, started with ``--scheduling-policy priority``, takes the lowest number first and otherwise the earliest request;
with any other policy it ignores the number. What a chain waits for goes before what it may never need.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar

from ..events import Purpose
from ..interfaces import RequestContext

AWAITED: Mapping[Purpose, int] = {"verify": 0, "watch": 0, "repair": 1, "answer": 2, "draft": 3}
BETS: Mapping[Purpose, int] = {"verify": 4}
OTHER_BETS, SHADOW = 5, 7
LEVELS = 8
"""How many numbers one run uses: a run whose own priority is lower by one goes before all of another's requests."""

RUN: ContextVar[int] = ContextVar("RUN", default=0)
"""The priority of the whole run among others, for whoever begins the run to set; lower is earlier."""


def priority(request: RequestContext, run: int = 0) -> int | None:
    """Return the number that vLLM orders requests by; None for a request that belongs to no run."""
    if not request.purpose:
        return None
    return run * LEVELS + _level(request)


def _level(request: RequestContext) -> int:
    if request.purpose == "shadow":
        return SHADOW
    if request.bet or request.purpose == "hedge":
        return BETS.get(request.purpose, OTHER_BETS)
    return AWAITED[request.purpose]
