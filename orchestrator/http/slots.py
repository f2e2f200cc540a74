"""
The requests that an endpoint takes at a time; further ones wait for a slot.

A service limits the wait of its requests (`waiting_at_most`). A program of the user waits as long
as it takes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    AsyncExitStack,
    asynccontextmanager,
    nullcontext,
)
from contextvars import ContextVar
from dataclasses import dataclass

from asyncio_throttle import Throttler  # type: ignore[attr-defined]

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
    """
    The slots of one *endpoint*, and the limit of its requests per second.

    `waiting` counts the requests that wait for either.
    """

    def __init__(self, endpoint: Address) -> None:
        self._endpoint = endpoint
        self._starts = _throttle(endpoint.requests_per_second)
        self._free = asyncio.Semaphore(endpoint.max_concurrency or MIN_CONCURRENCY)
        self.waiting = 0

    @asynccontextmanager
    async def held(self) -> AsyncGenerator[None]:
        """
        Hold a slot while the block lasts.

        Raise `LocalShortage` if none becomes free within the limit of the client's request.
        """
        async with AsyncExitStack() as stack:
            async with self._waiting():
                await stack.enter_async_context(self._free)
                async with self._starts:
                    pass
            yield

    async def start(self) -> None:
        """Wait until a request may start that needs no slot. Raise `LocalShortage` as `held`."""
        async with self._waiting(), self._starts:
            pass

    @asynccontextmanager
    async def _waiting(self) -> AsyncGenerator[None]:
        """Limit the wait of the block to what the client's request may wait."""
        limit = WAIT_LIMIT.get()
        timeout = asyncio.timeout(None if limit is None else limit.left)
        self.waiting += 1
        try:
            async with timeout:
                yield
        except TimeoutError:
            if limit is None or not timeout.expired():
                raise
            role = self._endpoint.role
            raise LocalShortage(
                f"no slot of the {role} model became free within {limit.seconds:g} s (max_wait):"
                f" raise max_concurrency in [{role}], or lower max_running of the service"
            ) from None
        finally:
            self.waiting -= 1
        if limit is not None:
            limit.left = limit.seconds


def _throttle(rate: float | None) -> AbstractAsyncContextManager[object]:
    """
    Limit the requests per second to *rate*, in whole requests, because the throttler never releases
    half of one.
    """
    if rate is None:
        return nullcontext()
    burst = max(1, int(rate))
    return Throttler(burst, burst / rate)
