"""
The load of the large model's server, and the runs that wait until their chains fit into its cache.

No I/O.
"""

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
class ServerLoad:
    """The chains of all runs of one solver, and the room that the large model's server has."""

    running: int = 0
    """Requests that the server runs, as last polled."""
    waiting: int = 0
    """Requests that wait there, as last polled."""
    cache: int | None = None
    """Tokens that the server's cache holds; None if that is not known."""
    chains: dict[object, int] = field(default_factory=dict[object, int])
    """Tokens of the chain of each run that uses the large model."""
    _finished: deque[int] = field(default_factory=lambda: deque[int](maxlen=MEAN_CHAINS))
    _admitted: int = 0
    _places: deque[asyncio.Future[None]] = field(default_factory=deque[asyncio.Future[None]])

    @property
    def runs(self) -> int:
        """How many runs use the large model now, at least one."""
        return max(1, len(self.chains))

    @property
    def busy(self) -> bool:
        """Whether requests wait at the server, and not only since they came."""
        return self.waiting > max(1, self.running // 4)

    @property
    def full(self) -> bool:
        """Whether the chains of all runs take more than the cache holds."""
        return self.cache is not None and sum(self.chains.values()) > MAX_CACHE_SHARE * self.cache

    @property
    def strained(self) -> bool:
        """Whether further requests would wait, or evict chains from the cache."""
        return self.busy or self.full

    @property
    def fits(self) -> int | None:
        """How many runs fit into the cache, at least one; None if that is not known."""
        if not self.cache or not self._finished:
            return None
        return max(1, int(MAX_CACHE_SHARE * self.cache / fmean(self._finished)))

    @property
    def advice(self) -> str:
        """Say in a sentence what the user can do about the load; empty if it is not high."""
        if self.full:
            return (
                f"the chains of {self.runs} runs fill the large model's cache: lower"
                " `max_running`, or give its server more memory (--gpu-memory-utilization)"
            )
        if self.busy:
            return (
                f"{self.waiting} requests wait at the large model's server: lower `max_running`, or"
                " add a replica"
            )
        return ""

    def poll(self, running: int, waiting: int, cache: int | None = None) -> None:
        """Take in the gauges of the server."""
        self.running = running
        self.waiting = waiting
        self.cache = cache
        self._admit()

    def grow(self, run: object, tokens: int) -> None:
        """Take in that the chain of *run* has at least so many *tokens* at the server."""
        self.chains[run] = max(self.chains.get(run, 0), tokens)

    def finish(self, run: object) -> None:
        """Take in that *run* has its answer: its chain has its final length."""
        if tokens := self.chains.get(run):
            self._finished.append(tokens)

    def leave(self, run: object) -> None:
        """Forget the chain of *run*."""
        self.chains.pop(run, None)

    @asynccontextmanager
    async def place(self) -> AsyncGenerator[None]:
        """Hold the place of one run. Wait, first come, first served, until its chain should fit."""
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._places.append(place)
        self._admit()
        try:
            await place
            yield
        finally:
            if place in self._places:
                self._places.remove(place)
            else:
                self._admitted -= 1
                self._admit()

    def _admit(self) -> None:
        fits = self.fits
        while self._places and (fits is None or self._admitted < fits):
            place = self._places.popleft()
            self._admitted += 1
            if not place.done():
                place.set_result(None)
