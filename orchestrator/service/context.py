"""The state that all requests of one service share: admission, settings, models, and the connections to servers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import aiohttp

from .errors import QUEUE_FULL, QUEUE_TIMEOUT, ApiError
from .interfaces import Offer
from .observers import ServiceObserver, ServiceRequest
from .run_requests import ModelCatalog
from .settings import ServiceSettings
from .streaming import StreamedResponse, Work
from .upstream import HealthMonitor, UpstreamProxy


class Admission:
    """
    Runs up to `max_running` requests, queues up to `max_waiting` more in the order of arrival, and refuses the rest.

    After `close` no request is admitted. Those that run or wait may finish, until `abort` sets *aborted*.
    """

    def __init__(self, settings: ServiceSettings) -> None:
        self._limit, self._max_wait = settings.max_running + settings.max_waiting, settings.max_wait
        self._slots = asyncio.Semaphore(settings.max_running)
        self._idle = asyncio.Event()
        self._idle.set()
        self.running = self.waiting = 0
        self.closed = False
        self.aborted = asyncio.Event()

    @asynccontextmanager
    async def enter(self) -> AsyncGenerator[float]:
        """Wait for a slot, hold it while the block lasts, and yield the seconds waited. Raise `ApiError`."""
        if self.closed:
            raise ApiError(503, "the service is shutting down and takes no new requests", code="draining", retry=True)
        if self.running + self.waiting >= self._limit:
            raise ApiError(429, "too many requests are running and waiting already", code=QUEUE_FULL, retry=True)
        arrived = asyncio.get_running_loop().time()
        self.waiting += 1
        self._idle.clear()
        try:
            await self._wait()
        except BaseException:
            self.waiting -= 1
            self._update()
            raise
        self.waiting, self.running = self.waiting - 1, self.running + 1  # at once, so that the sum never drops to 0
        try:
            yield asyncio.get_running_loop().time() - arrived
        finally:
            self.running -= 1
            self._slots.release()
            self._update()

    def close(self) -> None:
        """Admit no more requests."""
        self.closed = True

    def abort(self) -> None:
        """Give up the requests that run or wait."""
        self.aborted.set()

    async def idle(self) -> None:
        """Wait until no request runs or waits."""
        await self._idle.wait()

    async def _wait(self) -> None:
        try:
            async with asyncio.timeout(self._max_wait):
                await self._slots.acquire()
        except TimeoutError:
            message = f"no slot became free within {self._max_wait:g} s"
            raise ApiError(429, message, code=QUEUE_TIMEOUT, retry=True) from None

    def _update(self) -> None:
        if not self.running + self.waiting:
            self._idle.set()


@dataclass(eq=False)
class ServiceContext:
    """
    Settings, admission, models and connections of one service.

    `upstream` and `health` exist while the context is `open`; *created* is in seconds since 1970.
    """

    offer: Offer
    settings: ServiceSettings
    observe: ServiceObserver
    admission: Admission
    models: ModelCatalog
    created: int = field(default_factory=lambda: int(time.time()))
    upstream: UpstreamProxy = field(init=False)
    health: HealthMonitor = field(init=False)

    @classmethod
    def of(cls, offer: Offer, settings: ServiceSettings, observe: ServiceObserver) -> ServiceContext:
        return cls(offer, settings, observe, Admission(settings), ModelCatalog(offer))

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[None]:
        """Hold the connections of the service itself, and check the servers' health, while the block lasts."""
        small, large = self.offer.engine.small, self.offer.engine.large
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
            self.upstream = UpstreamProxy(http, small, large)
            self.health = HealthMonitor(http, {"small": small, "large": large}, self.observe)
            async with self.health.checking(self.settings.health_every):
                yield

    def respond(self, request: ServiceRequest, work: Work) -> StreamedResponse:
        """Answer *request* with what *work* sends."""
        return StreamedResponse(request, work, self.settings.send_seconds, self.admission.aborted)
