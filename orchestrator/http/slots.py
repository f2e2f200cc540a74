"""
The requests that an endpoint takes at a time; further ones wait for a slot.

A service limits the wait of its requests (`waiting_at_most`). A program of the user waits as long
as it takes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AbstractContextManager, asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from ..endpoints.settings import Address
from ..errors import LocalShortage
from ..interfaces import holding

MIN_CONCURRENCY = 64
"""Requests at a time, where the settings name no number."""


@dataclass(slots=True)
class WaitLimit:
    """How long a client's request may wait for a slot. The request has waited for the service."""

    seconds: float
    """The longest wait, in seconds."""
    left: float
    """Seconds of the next wait: less than *seconds* until the first slot, and then all of them."""


WAIT_LIMIT: ContextVar[WaitLimit | None] = ContextVar("WAIT_LIMIT", default=None)
"""The limit for the requests of this task; None: none."""


def waiting_at_most(seconds: float, waited: float) -> AbstractContextManager[None]:
    """
    Let each request of the block wait for a slot for *seconds* at most.

    Of the first wait, *waited* seconds are over: they are the wait for the service.
    """
    limit = WaitLimit(seconds=seconds, left=max(0.0, seconds - waited))
    return holding(WAIT_LIMIT, limit)


class Slots:
    """The slots of one *endpoint*. `waiting` counts the requests that wait for one."""

    def __init__(self, endpoint: Address) -> None:
        self._role = endpoint.role
        self._free = asyncio.Semaphore(endpoint.max_concurrency or MIN_CONCURRENCY)
        self.waiting = 0

    @asynccontextmanager
    async def held(self) -> AsyncGenerator[None]:
        """
        Hold a slot while the block lasts.

        Raise `LocalShortage` if none becomes free within the limit of the client's request.
        """
        limit = WAIT_LIMIT.get()
        self.waiting += 1
        try:
            await (self._free.acquire() if limit is None else self._take(limit))
        finally:
            self.waiting -= 1
        try:
            yield
        finally:
            self._free.release()

    async def _take(self, limit: WaitLimit) -> None:
        try:
            async with asyncio.timeout(limit.left):
                await self._free.acquire()
        except TimeoutError:
            raise LocalShortage(
                f"no slot of the {self._role} model became free within {limit.seconds:g} s"
                f" (max_wait): raise max_concurrency in [{self._role}], or lower max_running of the"
                " service"
            ) from None
        limit.left = limit.seconds
