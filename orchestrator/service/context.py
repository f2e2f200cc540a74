"""The state that all requests of one service share: admission, settings, models, and the connections to servers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import aiohttp

from .errors import ApiError
from .interfaces import Offer
from .limits import Clients
from .observers import ServiceObserver, ServiceRequest
from .run_requests import ModelCatalog
from .settings import ServiceSettings
from .streaming import StreamedResponse, Work
from .upstream import HealthMonitor, UpstreamProxy

OLDEST_EVERY = 4  # slots, one of which goes to the request that has waited longest, whatever its priority


class Admission:
    """
    Runs up to `max_running` requests, queues up to `max_waiting` more, and refuses the rest.

    Of the requests that wait, the one with the best priority is admitted first (the lowest number, and the earliest of
    equal ones). So that no request is passed over for ever, every fourth slot that becomes free goes to the one that
    has waited longest.

    After `close` no request is admitted. Those that run or wait may finish, until `abort` sets *aborted*.
    """

    def __init__(self, settings: ServiceSettings) -> None:
        self._limit, self._max_wait = settings.max_running + settings.max_waiting, settings.max_wait
        self._free, self._handed = settings.max_running, 0
        self._queue: list[tuple[int, asyncio.Future[None]]] = []  # priorities, in the order of arrival
        self._idle = asyncio.Event()
        self._idle.set()
        self.running = self.waiting = 0
        self.closed = False
        self.aborted = asyncio.Event()

    @asynccontextmanager
    async def enter(self, priority: int = 0) -> AsyncGenerator[float]:
        """Wait for a slot, hold it while the block lasts, and yield the seconds waited. Raise `ApiError`."""
        if self.closed:
            raise ApiError(503, "the service is shutting down and takes no new requests", code="draining", retry=True)
        if self.running + self.waiting >= self._limit:
            raise ApiError(429, "too many requests are running and waiting already", code="queue_full", retry=True)
        arrived = asyncio.get_running_loop().time()
        self.waiting += 1
        self._idle.clear()
        try:
            await self._wait(priority)
        except BaseException:
            self.waiting -= 1
            self._update()
            raise
        self.waiting, self.running = self.waiting - 1, self.running + 1  # at once, so that the sum never drops to 0
        try:
            yield asyncio.get_running_loop().time() - arrived
        finally:
            self.running -= 1
            self._release()
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

    async def _wait(self, priority: int) -> None:
        if self._free:
            self._free -= 1
            return
        place = priority, asyncio.get_running_loop().create_future()
        self._queue.append(place)
        try:
            async with asyncio.timeout(self._max_wait):
                await place[1]
        except BaseException as exc:
            if place in self._queue:
                self._queue.remove(place)
            elif not place[1].cancelled():
                self._release()  # The slot came when the request was about to leave.
            if not isinstance(exc, TimeoutError):
                raise
            message = f"no slot became free within {self._max_wait:g} s"
            raise ApiError(429, message, code="queue_timeout", retry=True) from None

    def _release(self) -> None:
        """Hand a slot to one of those that wait, or keep it."""
        self._queue = [place for place in self._queue if not place[1].done()]  # A cancelled task has yet to leave.
        if not self._queue:
            self._free += 1
            return
        self._handed += 1
        oldest = self._handed % OLDEST_EVERY == 0
        first = 0 if oldest else min(range(len(self._queue)), key=lambda index: (self._queue[index][0], index))
        _, slot = self._queue.pop(first)
        slot.set_result(None)

    def _update(self) -> None:
        if not self.running + self.waiting:
            self._idle.set()


@dataclass(eq=False)
class ServiceContext:
    """
    Settings, admission, models, clients and connections of one service.

    `upstream` and `health` exist while the context is `open`; *created* is in seconds since 1970.
    """

    offer: Offer
    settings: ServiceSettings
    observe: ServiceObserver
    admission: Admission
    models: ModelCatalog
    clients: Clients
    created: int = field(default_factory=lambda: int(time.time()))
    upstream: UpstreamProxy = field(init=False)
    health: HealthMonitor = field(init=False)

    @classmethod
    def of(cls, offer: Offer, settings: ServiceSettings, observe: ServiceObserver) -> ServiceContext:
        return cls(offer, settings, observe, Admission(settings), ModelCatalog(offer), Clients(settings))

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
