"""What the requests of one run carry, whichever server they are sent to."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Generator, Mapping
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from types import MappingProxyType

from ..events import Purpose
from ..interfaces import RequestContext, holding

PLACES: Mapping[Purpose, int] = {"verify": 0, "repair": 1, "answer": 2, "draft": 3}
"""The places of requests for which a run waits, in seconds after the place of the run."""

BET_SECONDS: Mapping[Purpose, int] = {"verify": 60}
"""
The places of bets, in seconds after the place of the run.

A bet goes before a request for which a run waits that began so many seconds later.
"""

OTHER_BET_SECONDS = 61
"""The place of bets of any other purpose."""

CARRIED: ContextVar[Mapping[str, str]] = ContextVar("CARRIED", default=MappingProxyType({}))
"""Headers added to every request of a run, such as ``traceparent``; `carrying` sets them."""


SESSION: ContextVar[str] = ContextVar("SESSION", default="")
"""The session of a run, which decides about its replicas. "": none. `carrying` sets it."""


@contextmanager
def carrying(
    headers: Mapping[str, str],
    run_priority: int = 0,
    session: str = "",
) -> Generator[None]:
    """
    Add *headers* to all requests of the run that begins with the block.

    Its requests have the *run_priority*, and it belongs to the *session*. A header of an enclosing
    block keeps its value.
    """
    enclosing = CARRIED.get()
    names = {name.lower() for name in enclosing}
    added = {key: value for key, value in headers.items() if key.lower() not in names}
    place = run_place(run_priority)
    with holding(CARRIED, {**added, **enclosing}), holding(RUN, place), holding(SESSION, session):
        yield


CACHE: ContextVar[Mapping[str, str]] = ContextVar("CACHE", default=MappingProxyType({}))
"""The ``cache_salt`` of every request of a run, or nothing; `separate_cache` sets it."""


def separate_cache(name: str) -> AbstractContextManager[None]:
    """
    Let the requests of the block use only what requests with the same *name* left in the caches.

    Runs that are compared then do not gain from what other runs of the same problem left there.
    """
    return holding(CACHE, {"cache_salt": name})


RUN: ContextVar[int] = ContextVar("RUN", default=0)
"""The place of the run among other runs; lower is earlier. `carrying` sets it."""


def run_place(run_priority: int = 0) -> int:
    """Return the place of a run that begins now, in seconds that are the same in all programs."""
    began = int(asyncio.get_running_loop().time())
    return run_priority * PRIORITY_SECONDS + CLOCK_OFFSET + began


PRIORITY_SECONDS = 2**32
"""
Seconds between two priorities of runs.

No run is that much older than another. All runs of one priority go before the runs of the next.
"""


CLOCK_OFFSET = int(time.time() - time.monotonic())
"""The whole seconds from the clock of an event loop to the computer's clock."""


def priority(request: RequestContext, run: int = 0) -> int | None:
    """
    Return the number by which vLLM orders requests; None for a request that belongs to no run.

    Earlier runs go first: by purpose alone, the answers of nearly finished runs would wait while
    new runs keep coming.
    """
    if not request.purpose:
        return None
    late = request.bet or request.purpose == "hedge"
    if late:
        return run + BET_SECONDS.get(request.purpose, OTHER_BET_SECONDS)
    return run + PLACES[request.purpose]
