"""Hold runs back while their chains would not fit into the large model's cache. No I/O."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from statistics import fmean

MAX_CACHE_SHARE = 0.85
"""
The share of the large server's cache that the chains of all runs may take.

With more, 192 simulated users with chains of 2,000 tokens evict each other's chains from 300,000.
"""
MEAN_CHAINS = 64
"""Finished chains whose mean length is expected of the next ones."""


@dataclass(eq=False)
class Admission:
    """The chains of all runs of one solver, and the room that the large model's server has."""

    cache: int | None = None
    """Tokens that the server's cache holds; None if that is not known."""
    resident: dict[object, int] = field(default_factory=dict[object, int])
    """Tokens of the chain of each run that uses the large model."""
    _finished: deque[int] = field(default_factory=lambda: deque[int](maxlen=MEAN_CHAINS))
    _admitted: int = 0
    _waiting: deque[asyncio.Future[None]] = field(default_factory=deque[asyncio.Future[None]])

    @property
    def full(self) -> bool:
        """Whether the chains of all runs take more than the cache holds."""
        return self.cache is not None and sum(self.resident.values()) > MAX_CACHE_SHARE * self.cache

    @property
    def fits(self) -> int | None:
        """How many runs fit into the cache, at least one; None if that is not known."""
        if not self.cache or not self._finished:
            return None
        return max(1, int(MAX_CACHE_SHARE * self.cache / fmean(self._finished)))

    def learn(self, cache: int | None) -> None:
        """Take in the size of the cache, as the server reports it."""
        self.cache = cache
        self._admit()

    def grow(self, run: object, tokens: int) -> None:
        """Take in that the chain of *run* has at least so many tokens at the server."""
        self.resident[run] = max(self.resident.get(run, 0), tokens)

    def finish(self, run: object) -> None:
        """Take in that *run* has its answer: its chain has its final length."""
        if tokens := self.resident.get(run):
            self._finished.append(tokens)

    def leave(self, run: object) -> None:
        """Forget the chain of *run*."""
        self.resident.pop(run, None)

    @asynccontextmanager
    async def place(self) -> AsyncGenerator[None]:
        """Hold the place of one run. Wait, first come, first served, until it should fit."""
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(place)
        self._admit()
        try:
            await place
            yield
        finally:
            if place in self._waiting:
                self._waiting.remove(place)
            else:
                self._admitted -= 1
                self._admit()

    def _admit(self) -> None:
        fits = self.fits
        while self._waiting and (fits is None or self._admitted < fits):
            place = self._waiting.popleft()
            self._admitted += 1
            if not place.done():
                place.set_result(None)
