"""
Who may run: keys and limits of each client, slots with a queue, and how a service ends in order.

A limit (requests per minute, tokens of the large model per minute) is a token bucket that holds one
minute's worth and fills continuously. What a request costs the large model is known only when it is
over. It is charged then, so that a bucket may be in debt: requests are refused until that is paid
off. The libraries `limits`, `aiolimiter` and `pyrate-limiter` decide before the work and know no
debt.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from math import ceil

from .errors import QUEUE_FULL, QUEUE_TIMEOUT, ApiError
from .records import MODEL_PATHS, ServiceRequest
from .settings import Client, ServiceSettings

MINUTE = 60.0
ROUNDING = 1e-6  # of a unit: what waiting for exactly the announced time may lack
# slots, one of which goes to the request that has waited longest, whatever its priority
OLDEST_EVERY = 4


@dataclass(eq=False)
class Bucket:
    """
    A token bucket of *size* units that fills in a minute; it is full at first, and below 0 it is in
    debt.
    """

    size: int
    clock: Callable[[], float]
    _level: float = field(init=False)
    _at: float = field(init=False)

    def __post_init__(self) -> None:
        self._level, self._at = float(self.size), self.clock()

    @property
    def level(self) -> float:
        """The units that are left now; negative in debt."""
        now = self.clock()
        self._level = min(float(self.size), self._level + (now - self._at) * self.size / MINUTE)
        self._at = now
        return self._level

    def take(self, units: float) -> None:
        """Take out *units*, whether they are there or not."""
        self._level = self.level - units

    def wait(self, units: float = 1.0) -> float:
        """Seconds until *units* are there."""
        missing = units - self.level
        return missing * MINUTE / self.size if missing > ROUNDING else 0.0


def _now() -> float:
    return asyncio.get_running_loop().time()


class Clients:
    """
    The clients of a service, found by their keys, and what each has left.

    Without any keys in the settings every request is accepted. The comparison takes the same time
    however much of a key is right. Times are of the event loop's clock.
    """

    def __init__(self, settings: ServiceSettings, clock: Callable[[], float] = _now) -> None:
        self._clock = clock
        unnamed: Iterable[tuple[str, str]] = (("", key.get_secret_value()) for key in settings.keys)
        named = ((name, client.key.get_secret_value()) for name, client in settings.clients.items())
        self._digests = [
            (name, hashlib.sha256(key.strip().encode()).digest())
            for name, key in (*unnamed, *named)
        ]
        self._clients: Mapping[str, Client] = settings.clients
        self._buckets: dict[str, tuple[Bucket | None, Bucket | None]] = {}

    def find(self, authorization: str | None, api_key: str | None = None) -> str | None:
        """
        Return the name of the client whose key an ``Authorization`` header, or Anthropic's
        ``x-api-key``, has.

        It is "" for a key without a name, and where no key is needed; None if no key is right.
        """
        if not self._digests:
            return ""
        scheme, _, key = (authorization or "").partition(" ")
        bearer = self._named(key.strip())
        other = self._named((api_key or "").strip())
        names = [*(bearer if scheme.lower() == "bearer" else []), *other]
        return names[0] if names else None

    def _named(self, key: str) -> list[str]:
        digest = hashlib.sha256(key.encode()).digest()
        return [name for name, known in self._digests if hmac.compare_digest(digest, known)]

    def best_priority(self, name: str) -> int | None:
        """The best priority that the client called *name* may have; None: any."""
        return self._clients[name].priority if name else None

    def admit(self, request: ServiceRequest) -> None:
        """
        Count *request*, if it is for a model.

        Raise `ApiError` if a bucket of its client is empty; nothing is taken then.
        """
        if request.path not in MODEL_PATHS or request.method != "POST" or not request.client:
            return
        requests, tokens = self._buckets_of(request.client)
        waits = {
            f"{bucket.size} {unit} per minute": seconds
            for bucket, unit in ((requests, "requests"), (tokens, "tokens of the large model"))
            if bucket is not None and (seconds := bucket.wait()) > 0
        }
        if waits:
            limit, seconds = max(waits.items(), key=lambda each: each[1])
            wait = max(1, ceil(seconds - ROUNDING))
            message = f"client {request.client!r} has used up its {limit}: try again in {wait} s"
            headers = {"Retry-After": str(wait)}
            raise ApiError(429, message, code="rate_limit_exceeded", retry=True, headers=headers)
        if requests is not None:
            requests.take(1)

    def charge(self, request: ServiceRequest) -> None:
        """Charge the tokens of the large model that *request* has used."""
        if request.client and (tokens := self._buckets_of(request.client)[1]) is not None:
            tokens.take(max(0, request.large_tokens))

    def _buckets_of(self, name: str) -> tuple[Bucket | None, Bucket | None]:
        """
        The buckets of the requests and of the tokens of a client; None if it has no such limit.
        """
        if name not in self._buckets:
            client = self._clients[name]
            sizes = client.requests_per_minute, client.large_tokens_per_minute
            requests, tokens = (
                Bucket(size, self._clock) if size is not None else None for size in sizes
            )
            self._buckets[name] = requests, tokens
        return self._buckets[name]


class Admission:
    """
    Lets `max_running` requests run at the same time; `max_waiting` more may wait, each `max_wait`
    seconds at most.

    Of those, the one with the best priority is admitted first (the lowest number, and the earliest
    of equal ones). So that no request is passed over for ever, every fourth slot that becomes free
    goes to the one that has waited longest. After `close` no request is admitted. Those that run or
    wait may finish, until *aborted* is set.
    """

    def __init__(self, settings: ServiceSettings) -> None:
        self._settings = settings
        # priorities, in the order of arrival
        self._queue: list[tuple[int, asyncio.Future[None]]] = []
        self._handed = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self.running = 0
        self.closed = False
        self.aborted = asyncio.Event()

    @property
    def waiting(self) -> int:
        return len(self._waiting())

    @asynccontextmanager
    async def enter(self, priority: int = 0) -> AsyncGenerator[float]:
        """
        Wait for a slot, hold it while the block lasts, and yield the seconds waited. Raise
        `ApiError`.
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
            message = f"no slot became free within {settings.max_wait:g} s"
            raise ApiError(429, message, code=QUEUE_TIMEOUT, retry=True) from None
        try:
            yield asyncio.get_running_loop().time() - arrived
        finally:
            self._release()

    def close(self) -> None:
        self.closed = True

    async def idle(self) -> None:
        """Wait until no request runs or waits."""
        await self._idle.wait()

    async def _wait(self, priority: int) -> None:
        if self.running < self._settings.max_running:
            self.running += 1
            self._idle.clear()
            return
        place = priority, asyncio.get_running_loop().create_future()
        self._queue.append(place)
        try:
            await place[1]
        except BaseException:
            if place in self._queue:
                self._queue.remove(place)
            elif not place[1].cancelled():
                self._release()  # The slot came when the request was about to leave.
            raise

    def _release(self) -> None:
        """Hand a slot to one of those that wait, or free it."""
        self._queue = self._waiting()
        if not self._queue:
            self.running -= 1
            if not self.running:
                self._idle.set()
            return
        self._handed += 1
        oldest = self._handed % OLDEST_EVERY == 0
        first = (
            0
            if oldest
            else min(range(len(self._queue)), key=lambda index: (self._queue[index][0], index))
        )
        _, slot = self._queue.pop(first)
        slot.set_result(None)

    def _waiting(self) -> list[tuple[int, asyncio.Future[None]]]:
        # A cancelled request has yet to leave.
        return [place for place in self._queue if not place[1].done()]


class Drain:
    """
    Ends a service: the first `signal` closes its *admission*, and calls *end* when all requests are
    answered.

    This takes `drain_seconds` at most; then, or on the second signal, the others are aborted. *log*
    receives messages.
    """

    def __init__(
        self,
        admission: Admission,
        settings: ServiceSettings,
        log: Callable[[str], None],
        end: Callable[[], None],
    ) -> None:
        self._admission = admission
        self._seconds = settings.drain_seconds
        self._log = log
        self._end = end
        self._draining: asyncio.Task[None] | None = None

    def signal(self) -> None:
        """Begin to drain; the second time, end at once."""
        if self._draining is not None:
            self._admission.aborted.set()
            self._end()
            return
        self._admission.close()
        self._draining = asyncio.create_task(self._drain())

    async def _drain(self) -> None:
        admission = self._admission
        requests = admission.running + admission.waiting
        try:
            self._log(f"shutting down: {requests} requests may finish within {self._seconds:g} s")
            async with asyncio.timeout(self._seconds):
                await admission.idle()
        except TimeoutError:
            self._log(f"aborting {admission.running + admission.waiting} requests")
            admission.aborted.set()
        finally:
            self._end()
