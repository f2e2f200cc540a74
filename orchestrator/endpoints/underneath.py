"""
What servers that speculate on tokens themselves count while runs are under way.

Nobody waits for a look: they are taken in the background, and a run tells of those that were there when it was over.
The counters are a server's, not a run's, so that the best that can be said is who else is known to have been there.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from math import inf
from typing import Protocol, cast

from ..acceptance import Acceptance
from ..chain import Party
from ..events import Answering, Called, Event, Finished, Speculated
from .acceptance import Look
from .settings import Endpoint

EVERY = 1.0  # seconds between two looks
LEAST = 0.25  # the same, if somebody would like one now
WITHIN = 5 * EVERY  # seconds for one look; an older one tells nothing about a run that begins
UNREAD = 32  # tokens that a request may have been written beyond those that arrived, if it did not come to its end


class Speculating(Protocol):
    """A server that may speculate: when it was *asked* last, and what was *seen* then, if it does."""

    asked: float
    seen: Look | None

    @property
    def settings(self) -> Endpoint: ...

    async def acceptance(self) -> Acceptance | None: ...


Named = tuple[str, Speculating]


class Underneath:
    """Looks at those of the *servers*, each with the role or the path of its model, that speculate."""

    def __init__(self, servers: Callable[[], Iterable[Named]]) -> None:
        self._servers = servers
        self._wanted = asyncio.Event()
        self._last: dict[tuple[str, str], Look] = {}
        self._present = 0
        self._gone = self._crowded = -inf  # when anybody left, and when several were there, for the last time
        self.totals: dict[str, Acceptance] = {}  # since the first look, whoever it was done for
        self.speculating: tuple[Named, ...] = ()

    @asynccontextmanager
    async def watched(self) -> AsyncGenerator[None]:
        """Look now and then while the block lasts."""
        self._note()
        looking = asyncio.create_task(self._watch())
        try:
            yield
        finally:
            looking.cancel()
            await asyncio.wait([looking])

    def want(self) -> None:
        """Ask for a look soon; return at once."""
        if self.speculating:
            self._wanted.set()

    @contextmanager
    def company(self) -> Generator[None]:
        """Count somebody in who has the servers work while the block lasts: it is no run's own."""
        self.enter()
        try:
            yield
        finally:
            self.leave()

    def enter(self) -> float:
        """Count somebody in; return when anybody left for the last time."""
        self._present += 1
        return self._gone

    def leave(self) -> None:
        """Count somebody out."""
        if self._present > 1:
            self._crowded = _now()
        self._present -= 1
        self._gone = _now()

    @property
    def crowded(self) -> float:
        """When several were there at the same time, for the last time."""
        return _now() if self._present > 1 else self._crowded

    async def _watch(self) -> None:
        patience = EVERY
        while True:
            self._wanted.clear()
            await asyncio.gather(*[_look(server) for _, server in self.speculating if _due(server, patience)])
            self._note()
            patience = EVERY
            with suppress(TimeoutError):
                async with asyncio.timeout(EVERY):
                    await self._wanted.wait()
                    patience = LEAST

    def _note(self) -> None:
        self.speculating = tuple(one for one in self._servers() if one[1].seen is not None)
        for name, server in self.speculating:
            if (seen := server.seen) is not None:
                grown = seen.since(self._last.get((name, server.settings.url), seen))
                self.totals[name] = self.totals.get(name, Acceptance()) + (grown or Acceptance())
                self._last[name, server.settings.url] = seen


class Windows:
    """
    What one run tells of the servers *underneath*, window by window, each from one look to the next.

    *clock* returns the seconds since the run began. It tells nothing but between `begin` and `end`.
    """

    def __init__(self, underneath: Underneath, clock: Callable[[], float]) -> None:
        self._underneath, self._clock = underneath, clock
        self._bases: dict[tuple[str, str], Look] = {}
        self._open = self._answers = False
        self._preceded = -inf  # when anybody left before, for the last time
        self._own, self._served = Counter[str](), Counter[str]()  # tokens that the run and the servers tell of

    def begin(self) -> None:
        """Count the run in, and begin with the looks that are there."""
        began = _now()
        self._zero = began - self._clock()
        self._preceded = self._underneath.enter()
        for name, server in self._underneath.speculating:
            if server.seen is not None and began - server.seen.at <= WITHIN:
                self._bases[name, server.settings.url] = server.seen
        self._open = True

    def end(self) -> None:
        """Count the run out."""
        if self._open:
            self._open = False
            self._underneath.leave()

    def before(self, event: Event) -> Iterator[Event]:
        """What is to be told before *event*, and then *event* itself."""
        if self._open and self._underneath.speculating:
            if isinstance(event, Called):
                self._own[event.path or event.role] += event.written + (0 if event.fate == "done" else UNREAD)
            elif isinstance(event, Answering) and not self._answers:
                self._answers = True  # It no longer waits for its server, and may be over soon.
                self._underneath.want()
            over = isinstance(event, Finished)
            for name, server in self._underneath.speculating:
                yield from self._grown(name, server, over=over)
        yield event

    def _grown(self, name: str, server: Speculating, *, over: bool) -> Iterator[Speculated]:
        if (seen := server.seen) is None:
            return
        place = name, server.settings.url
        base = self._bases.setdefault(place, seen)
        if (grown := seen.since(base)) is None:
            self._bases[place] = seen
            return
        if not over and not grown.drafted:
            return
        self._bases[place] = seen
        self._served[name] += seen.written - base.written
        crowded = max(self._preceded, self._underneath.crowded) >= base.at
        # More than the run has ever asked for: then somebody was there whom nobody here knows of.
        foreign = over and self._served[name] > self._own[name] + UNREAD
        if seen.at > base.at or foreign:
            yield self._told(name, server, grown, base.at, seen.at, shared=crowded or foreign)

    def _told(
        self, name: str, server: Speculating, grown: Acceptance, since: float, until: float, *, shared: bool
    ) -> Speculated:
        role, _, within = name.partition(".")
        return Speculated(
            cast("Party", role),
            grown,
            since - self._zero,
            until - self._zero,
            shared,
            server.settings.url,
            name if within else "",
        )


def _due(server: Speculating, patience: float) -> bool:
    """Whether to look now; not where requests are rationed, for it would be one of them."""
    return server.settings.requests_per_second is None and _now() - server.asked >= patience


async def _look(server: Speculating) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(WITHIN):
            await server.acceptance()


def _now() -> float:
    return asyncio.get_running_loop().time()
