"""
Who may run: keys and limits of each client, and slots with a queue.

The limit of a client (requests per minute) is a bucket that holds the requests of one minute and
fills continuously.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from math import ceil

from .errors import QUEUE_FULL, QUEUE_TIMEOUT, ApiError
from .records import MODEL_PATHS, ServiceRequest
from .settings import ServiceSettings

MINUTE_SECONDS = 60.0
ROUNDING_SECONDS = 1e-6
"""The time that may be missing after a wait of exactly the announced seconds."""
SLOTS_PER_OLDEST = 4
"""One in so many slots goes to the request that has waited longest, whatever its priority."""


class Clients:
    """
    The clients of a service with their keys and limits.

    Without any keys in the settings every request is accepted. The comparison of a key takes the
    same time however much of it is right.
    """

    def __init__(
        self,
        settings: ServiceSettings,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clients = settings.clients
        keys = [("", key) for key in settings.keys]
        keys += [(name, client.key) for name, client in settings.clients.items()]
        self._digests = [(name, _digest(key.get_secret_value())) for name, key in keys]
        self._clock = clock
        self._full: dict[str, float] = {}  # when the bucket of a client will be full again

    def find(self, authorization: str | None, api_key: str | None = None) -> str | None:
        """
        Return the name of the client whose key is in one of two headers.

        The headers are ``Authorization`` and Anthropic's ``x-api-key``. Return "" for a key without
        a name, and where no key is needed; None if no key is right.
        """
        if not self._digests:
            return ""
        scheme, _, bearer = (authorization or "").partition(" ")
        keys = [bearer if scheme.lower() == "bearer" else "", api_key or ""]
        names = [
            name
            for digest in map(_digest, keys)
            for name, known in self._digests
            if hmac.compare_digest(digest, known)
        ]
        return names[0] if names else None

    def best_priority(self, name: str) -> int | None:
        """Return the best priority that the client called *name* may have. None: any."""
        return self._clients[name].priority if name else None

    def admit(self, request: ServiceRequest) -> None:
        """Count *request*, if it is for a model. Raise `ApiError` beyond its client's limit."""
        name = request.client
        limit = self._clients[name].requests_per_minute if name else None
        if limit is None or request.path not in MODEL_PATHS or request.method != "POST":
            return
        now = self._clock()
        full = max(now, self._full.get(name, now)) + MINUTE_SECONDS / limit
        missing = full - now - MINUTE_SECONDS
        if missing > ROUNDING_SECONDS:
            wait = ceil(missing - ROUNDING_SECONDS)
            raise ApiError(
                429,
                f"client {name!r} has used up its {limit} requests per minute: try again in"
                f" {wait} s",
                code="rate_limit_exceeded",
                retry=True,
                headers={"Retry-After": str(wait)},
            )
        self._full[name] = full


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.strip().encode()).digest()


class Admission:
    """
    Lets `max_running` requests run at the same time, and `max_waiting` more wait for `max_wait`
    seconds at most.

    The waiting request with the lowest priority number is admitted first; of equal ones, the
    earliest. Every fourth slot goes to the request that has waited longest, so that none is passed
    over for ever.
    """

    def __init__(self, settings: ServiceSettings) -> None:
        self.running = 0
        """Requests that run."""
        self.closed = False
        """Whether new requests are refused. Requests that run or wait may finish."""
        self.aborted = asyncio.Event()
        """Set when requests may not finish."""
        self._settings = settings
        self._priorities: dict[object, int] = {}  # of waiting requests, in the order of arrival
        self._handed = 0  # slots that went to waiting requests
        self._changed = asyncio.Event()  # replaced with every change

    @property
    def waiting(self) -> int:
        """Requests that wait."""
        return len(self._priorities)

    @asynccontextmanager
    async def enter(self, priority: int = 0) -> AsyncGenerator[float]:
        """
        Wait for a slot, hold it while the block lasts, and yield the seconds waited.

        Raise `ApiError` if the request is refused.
        """
        settings = self._settings
        if self.closed:
            raise ApiError(
                503,
                "the service is shutting down and takes no new requests",
                code="draining",
                retry=True,
            )
        if self.running + self.waiting >= settings.max_running + settings.max_waiting:
            raise ApiError(
                429,
                "too many requests are running and waiting already",
                code=QUEUE_FULL,
                retry=True,
            )
        loop = asyncio.get_running_loop()
        arrived = loop.time()
        if self.waiting or self.running >= settings.max_running:
            await self._turn(priority)
        self.running += 1
        try:
            yield loop.time() - arrived
        finally:
            self.running -= 1
            self._change()

    async def idle(self) -> None:
        """Wait until no request runs or waits."""
        while self.running or self.waiting:
            await self._changed.wait()

    async def _turn(self, priority: int) -> None:
        """Wait until the next slot is for this request. Raise `ApiError` if that takes too long."""
        request = object()
        self._priorities[request] = priority
        seconds = self._settings.max_wait
        try:
            async with asyncio.timeout(seconds):
                while self.running >= self._settings.max_running or self._next is not request:
                    await self._changed.wait()
            self._handed += 1
        except TimeoutError:
            raise ApiError(
                429,
                f"no slot became free within {seconds:g} s",
                code=QUEUE_TIMEOUT,
                retry=True,
            ) from None
        finally:
            del self._priorities[request]
            self._change()

    @property
    def _next(self) -> object:
        """The waiting request for which the next slot is."""
        if self._handed % SLOTS_PER_OLDEST == SLOTS_PER_OLDEST - 1:
            return next(iter(self._priorities))
        return min(self._priorities, key=self._priorities.__getitem__)

    def _change(self) -> None:
        """Let all waiting requests look again."""
        self._changed.set()
        self._changed = asyncio.Event()
