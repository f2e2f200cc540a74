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

With a larger share, 192 simulated users with chains of 2,000 tokens evict each other's chains from
a cache of 300,000 tokens.
"""
MEAN_CHAINS = 64
"""The number of finished chains whose mean length is the expected length of the next chains."""


@dataclass(eq=False)
class ServerLoad:
    """The chains of all runs of one solver, and the room that the large model's server has."""

    running: int = 0
    """Requests that the server runs, as last polled."""
    waiting: int = 0
    """Requests that wait at the server, as last polled."""
    cache: int | None = None
    """Tokens that the server's cache holds; None if the number is not known."""
    chains: dict[object, int] = field(default_factory=dict[object, int])
    """Tokens of the chain of each run that uses the large model."""
    _finished: deque[int] = field(default_factory=lambda: deque[int](maxlen=MEAN_CHAINS))
    _slots_held: int = 0
    _queue: deque[asyncio.Future[None]] = field(default_factory=deque[asyncio.Future[None]])

    @property
    def runs(self) -> int:
        """How many runs use the large model now, at least one."""
        return max(1, len(self.chains))

    @property
    def busy(self) -> bool:
        """Whether requests queue at the server. A few always wait, because they have just come."""
        return self.waiting > max(1, self.running // 4)

    @property
    def full(self) -> bool:
        """Whether the chains of all runs take more than their share of the cache."""
        return self.cache is not None and sum(self.chains.values()) > MAX_CACHE_SHARE * self.cache

    @property
    def strained(self) -> bool:
        """Whether further requests would wait, or evict chains from the cache."""
        return self.busy or self.full

    @property
    def capacity(self) -> int | None:
        """How many runs fit into the cache, at least one; None if the number is not known."""
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

    def enter(self, run: object) -> None:
        """Count *run* among the runs that use the large model."""
        self.grow(run, 0)

    def grow(self, run: object, tokens: int) -> None:
        """The server holds at least *tokens* tokens of the chain of *run*."""
        self.chains[run] = max(self.chains.get(run, 0), tokens)

    def finish(self, run: object) -> None:
        """The chain of *run* has its final length, because *run* has its answer."""
        if tokens := self.chains.get(run):
            self._finished.append(tokens)

    def leave(self, run: object) -> None:
        """Forget the chain of *run*."""
        self.chains.pop(run, None)

    @asynccontextmanager
    async def slot(self) -> AsyncGenerator[None]:
        """Hold the slot of one run. Wait, first come, first served, until its chain should fit."""
        slot: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append(slot)
        self._admit()
        try:
            await slot
            yield
        finally:
            if slot in self._queue:  # cancelled while it waited
                self._queue.remove(slot)
            else:
                self._slots_held -= 1
                self._admit()

    def _admit(self) -> None:
        """Give slots to the first runs of the queue, as many as fit."""
        capacity = self.capacity
        while self._queue and (capacity is None or self._slots_held < capacity):
            slot = self._queue.popleft()
            self._slots_held += 1
            if not slot.done():  # a cancelled run gives its slot back when `slot()` ends
                slot.set_result(None)
