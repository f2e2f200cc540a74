"""
The priority of a request among those that wait at a server. Pure.

vLLM with ``--scheduling-policy priority`` takes the lowest number first, and of equal numbers the earliest request;
with any other policy it ignores the number. Requests that a chain waits for go before those it may never need.
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
"""The numbers that one run uses. All requests of a run go before those of a run whose priority is higher by one."""

RUN: ContextVar[int] = ContextVar("RUN", default=0)
"""The priority of the run among other runs; lower is earlier. `carrying` sets it."""


def priority(request: RequestContext, run: int = 0) -> int | None:
    """Return the number by which vLLM orders requests; None for a request that belongs to no run."""
    if not request.purpose:
        return None
    return run * LEVELS + _level(request)


def _level(request: RequestContext) -> int:
    if request.purpose == "shadow":
        return SHADOW
    if request.bet or request.purpose == "hedge":
        return BETS.get(request.purpose, OTHER_BETS)
    return AWAITED[request.purpose]
