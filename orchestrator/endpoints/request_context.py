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

AWAITED: Mapping[Purpose, int] = {"verify": 0, "repair": 1, "answer": 2, "draft": 3}


BETS: Mapping[Purpose, int] = {"verify": 60}


OTHER_BETS = 61
"""
Seconds: a request of that kind goes before one for which a run waits that began so much later.
"""

CARRIED: ContextVar[Mapping[str, str]] = ContextVar("CARRIED", default=MappingProxyType({}))
"""Headers added to every request of a run, such as ``traceparent``; `carrying` sets them."""


SESSION: ContextVar[str] = ContextVar("SESSION", default="")
"""
The session that a run belongs to, which decides about its replicas; "": none. `carrying` sets it.
"""


@contextmanager
def carrying(
    headers: Mapping[str, str], run_priority: int = 0, session: str = ""
) -> Generator[None]:
    """
    Add *headers* and *run_priority* to all requests of the run that begins with the block, a run of
    the *session*.

    A header of an enclosing block keeps its value.
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
    Let the requests of the block use what the prefix caches hold of requests with the same *name*,
    and nothing else.

    So runs that are compared do not gain from, or suffer under, what other runs of the same problem
    left there.
    """
    return holding(CACHE, {"cache_salt": name})


RUN: ContextVar[int] = ContextVar("RUN", default=0)
"""The place of the run among other runs; lower is earlier. `carrying` sets it."""


def run_place(run_priority: int = 0) -> int:
    """
    Return the place of a run that begins now, in seconds, which mean the same to all programs.
    """
    return run_priority * SPAN + _OFFSET.seconds() + int(asyncio.get_running_loop().time())


SPAN = 2**32
"""
Seconds that no run is older than another: runs of a lower priority go before all of the next one.
"""


class ClockOffset:
    """
    The seconds between the clock of an event loop and those since 1970, in whole seconds.

    They change only if the computer's clock is set, so that runs on a virtual clock have the same
    order every time.
    """

    def __init__(self) -> None:
        self._seconds = 0

    def seconds(self) -> int:
        """Return the offset, measured again if the computer's clock was set."""
        now = time.time() - time.monotonic()
        if abs(now - self._seconds) > 1:
            self._seconds = int(now)
        return self._seconds


_OFFSET = ClockOffset()


def priority(request: RequestContext, run: int = 0) -> int | None:
    """
    Return the number by which vLLM orders requests; None for a request that belongs to no run.

    Earlier runs go first: by purpose alone, the answers of nearly finished runs would wait while
    new runs keep coming.
    """
    if not request.purpose:
        return None
    late = request.bet or request.purpose == "hedge"
    return run + (BETS.get(request.purpose, OTHER_BETS) if late else AWAITED[request.purpose])
