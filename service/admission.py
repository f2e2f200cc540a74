"""
Who may run: keys and limits of each client, and slots with a queue.

A limit (requests per minute, tokens of the large model per minute) is a token bucket that holds the
units of one minute and fills continuously. The tokens that a request costs are known and charged
when the request is over. The bucket may be in debt then, and the client's requests are refused
until the debt is paid off. The libraries `limits`, `aiolimiter` and `pyrate-limiter` decide before
the work and know no debt.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from math import ceil

from .errors import QUEUE_FULL, QUEUE_TIMEOUT, ApiError
from .records import MODEL_PATHS, ServiceRequest
from .settings import Client, ServiceSettings

REQUESTS = "requests"
LARGE_TOKENS = "tokens of the large model"
MINUTE_SECONDS = 60.0
ROUNDING_UNITS = 1e-6
"""The units that may be missing after a wait of exactly the announced time."""
SLOTS_PER_OLDEST = 4
"""One in so many slots goes to the request that has waited longest, whatever its priority."""


class Bucket:
    """
    A token bucket of *size* units that fills in a minute. It is full at first.

    *unit* is the name of the units.
    """

    def __init__(self, size: int, clock: Callable[[], float], unit: str = "") -> None:
        self.limit = f"{size} {unit} per minute"
        """The limit in words."""
        self.size = size
        """The most units that the bucket holds."""
        self._clock = clock
        self._level = float(size)
        self._measured = clock()  # the time of `_level`

    @property
    def level(self) -> float:
        """The units that are left now; negative in debt."""
        now = self._clock()
        added = (now - self._measured) * self.size / MINUTE_SECONDS
        self._level = min(float(self.size), self._level + added)
        self._measured = now
        return self._level

    def take(self, units: float) -> None:
        """Take out *units*, whether they are there or not."""
        self._level = self.level - units

    def wait(self, units: float = 1.0) -> float:
        """Return the seconds until *units* are there."""
        missing = units - self.level
        return missing * MINUTE_SECONDS / self.size if missing > ROUNDING_UNITS else 0.0


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
        self._clients: Mapping[str, Client] = settings.clients
        keys = [("", key) for key in settings.keys]
        keys += [(name, client.key) for name, client in settings.clients.items()]
        self._digests = [(name, _digest(key.get_secret_value())) for name, key in keys]
        # by the client's name and the name of the units
        self._buckets: dict[str, dict[str, Bucket]] = {}
        for name, client in settings.clients.items():
            sizes = {
                REQUESTS: client.requests_per_minute,
                LARGE_TOKENS: client.large_tokens_per_minute,
            }
            self._buckets[name] = {
                unit: Bucket(size, clock, unit) for unit, size in sizes.items() if size
            }

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
        """
        Count *request*, if it is for a model.

        Raise `ApiError` if a bucket of its client is empty. Nothing is taken then.
        """
        if request.path not in MODEL_PATHS or request.method != "POST":
            return
        buckets = self._buckets.get(request.client, {})
        emptiest = max(buckets.values(), key=Bucket.wait, default=None)
        seconds = emptiest.wait() if emptiest else 0.0
        if emptiest and seconds:
            wait = max(1, ceil(seconds - ROUNDING_UNITS))
            message = (
                f"client {request.client!r} has used up its {emptiest.limit}: try again in {wait} s"
            )
            headers = {"Retry-After": str(wait)}
            raise ApiError(
                429,
                message,
                code="rate_limit_exceeded",
                retry=True,
                headers=headers,
            )
        if REQUESTS in buckets:
            buckets[REQUESTS].take(1)

    def charge(self, request: ServiceRequest) -> None:
        """Charge the tokens of the large model that *request* has used."""
        tokens = self._buckets.get(request.client, {}).get(LARGE_TOKENS)
        if tokens is not None:
            tokens.take(max(0, request.large_tokens))


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.strip().encode()).digest()


class Admission:
    """
    Lets `max_running` requests run at the same time, and `max_waiting` more wait for `max_wait`
    seconds at most.

    The waiting request with the lowest priority number is admitted first; of equal ones, the
    earliest. Every fourth slot goes to the request that has waited longest, so that none is passed
    over for ever. After `close` no request is admitted. Requests that run or wait may finish, until
    `aborted` is set.
    """

    def __init__(self, settings: ServiceSettings) -> None:
        self.running = 0
        """Requests that run."""
        self.closed = False
        """Whether new requests are refused."""
        self.aborted = asyncio.Event()
        """Set when requests may not finish."""
        self._settings = settings
        # the priorities of waiting requests by their slots, in the order of arrival
        self._queue: dict[asyncio.Future[None], int] = {}
        self._handed = 0  # slots that went to waiting requests
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def waiting(self) -> int:
        """Requests that wait."""
        return len(self._waiting)

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
        arrived = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(settings.max_wait):
                await self._wait(priority)
        except TimeoutError:
            raise ApiError(
                429,
                f"no slot became free within {settings.max_wait:g} s",
                code=QUEUE_TIMEOUT,
                retry=True,
            ) from None
        try:
            yield asyncio.get_running_loop().time() - arrived
        finally:
            self._release()

    def close(self) -> None:
        """Admit no more requests."""
        self.closed = True

    async def idle(self) -> None:
        """Wait until no request runs or waits."""
        await self._idle.wait()

    async def _wait(self, priority: int) -> None:
        """Wait for a slot, and take it."""
        if self.running < self._settings.max_running:
            self.running += 1
            self._idle.clear()
            return
        slot = asyncio.get_running_loop().create_future()
        self._queue[slot] = priority
        try:
            await slot
        except BaseException:
            if slot not in self._queue and not slot.cancelled():
                self._release()  # the slot came when the request was about to leave
            raise
        finally:
            self._queue.pop(slot, None)

    def _release(self) -> None:
        """Hand a slot to a waiting request, or free it."""
        waiting = self._waiting
        if not waiting:
            self.running -= 1
            if not self.running:
                self._idle.set()
            return
        self._handed += 1
        slot = waiting[0]
        if self._handed % SLOTS_PER_OLDEST != 0:
            slot = min(waiting, key=self._queue.__getitem__)
        del self._queue[slot]
        slot.set_result(None)

    @property
    def _waiting(self) -> list[asyncio.Future[None]]:
        """The slots of waiting requests, without cancelled ones, which have yet to leave."""
        return [slot for slot in self._queue if not slot.done()]
