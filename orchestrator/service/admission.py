"""How many requests are worked on, how many wait, and when no more are let in."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from .errors import ApiError
from .settings import ServiceSettings


class Admission:
    """
    Lets so many requests run at once, keeps so many waiting in the order they came, and refuses the rest.

    `close` lets nobody in any more; whoever is inside, waiting or running, may finish, until `give_up`.
    """

    def __init__(self, settings: ServiceSettings) -> None:
        self._most, self._patience = settings.max_running + settings.max_waiting, settings.max_wait
        self._places = asyncio.Semaphore(settings.max_running)
        self._empty = asyncio.Event()
        self._empty.set()
        self.running = self.waiting = 0
        self.closed = False
        self.given_up = asyncio.Event()

    @asynccontextmanager
    async def enter(self) -> AsyncGenerator[float]:
        """Wait for a place, hold it while the block lasts, and yield the seconds that it took. Raise `Refusal`."""
        if self.closed:
            raise ApiError(503, "the service is shutting down and takes no new work", code="draining", retry=True)
        if self.running + self.waiting >= self._most:
            raise ApiError(429, "too many requests are running and waiting already", code="queue_full", retry=True)
        came = asyncio.get_running_loop().time()
        self.waiting += 1
        self._empty.clear()
        try:
            await self._wait()
        except BaseException:
            self.waiting -= 1
            self._tell()
            raise
        self.waiting, self.running = self.waiting - 1, self.running + 1  # at once, or nobody seems to be inside
        try:
            yield asyncio.get_running_loop().time() - came
        finally:
            self.running -= 1
            self._places.release()
            self._tell()

    def close(self) -> None:
        """Let nobody in any more."""
        self.closed = True

    def give_up(self) -> None:
        """Tell those inside that they cannot finish."""
        self.given_up.set()

    async def emptied(self) -> None:
        """Wait until nobody is inside."""
        await self._empty.wait()

    async def _wait(self) -> None:
        try:
            async with asyncio.timeout(self._patience):
                await self._places.acquire()
        except TimeoutError:
            message = f"no place became free within {self._patience:g} s"
            raise ApiError(429, message, code="queue_timeout", retry=True) from None

    def _tell(self) -> None:
        if not self.running + self.waiting:
            self._empty.set()
