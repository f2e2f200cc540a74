"""Who may run: slots with a queue, the requests of a process that hold them, and how a service ends in order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

from ..settings import ServiceSettings
from .errors import QUEUE_FULL, QUEUE_TIMEOUT, ApiError

OLDEST_EVERY = 4  # slots, one of which goes to the request that has waited longest, whatever its priority


class Slots:
    """
    `max_running` slots with a queue of `max_waiting`.

    Of the requests that wait, the one with the best priority is admitted first (the lowest number, and the earliest of
    equal ones). So that no request is passed over for ever, every fourth slot that becomes free goes to the one that
    has waited longest.
    """

    def __init__(self, settings: ServiceSettings) -> None:
        self._free, self._limit = settings.max_running, settings.max_running + settings.max_waiting
        self._inside = self._handed = 0
        self._queue: list[tuple[int, asyncio.Future[None]]] = []  # priorities, in the order of arrival

    async def acquire(self, priority: int) -> Callable[[], None]:
        """Wait for a slot; return the function that gives it back. Raise `ApiError` if the queue is full."""
        if self._inside >= self._limit:
            raise ApiError(429, "too many requests are running and waiting already", code=QUEUE_FULL, retry=True)
        self._inside += 1
        try:
            await self._wait(priority)
        except BaseException:
            self._inside -= 1
            raise
        return self._release

    async def _wait(self, priority: int) -> None:
        if self._free:
            self._free -= 1
            return
        place = priority, asyncio.get_running_loop().create_future()
        self._queue.append(place)
        try:
            await place[1]
        except BaseException:
            if place in self._queue:
                self._queue.remove(place)
            elif not place[1].cancelled():
                self._hand_on()  # The slot came when the request was about to leave.
            raise

    def _release(self) -> None:
        self._inside -= 1
        self._hand_on()

    def _hand_on(self) -> None:
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


class Admission:
    """
    Runs a request when it has one of the `Slots`.

    After `close` no request is admitted. Those that run or wait may finish, until `abort` sets *aborted*.
    """

    def __init__(self, settings: ServiceSettings) -> None:
        self._slots, self._max_wait = Slots(settings), settings.max_wait
        self._idle = asyncio.Event()
        self._idle.set()
        self._changed: Callable[[], None] = lambda: None
        self.running = self.waiting = 0
        self.closed = False
        self.aborted = asyncio.Event()

    @asynccontextmanager
    async def enter(self, priority: int = 0) -> AsyncGenerator[float]:
        """Wait for a slot, hold it while the block lasts, and yield the seconds waited. Raise `ApiError`."""
        if self.closed:
            raise ApiError(503, "the service is shutting down and takes no new requests", code="draining", retry=True)
        arrived = asyncio.get_running_loop().time()
        self._count(waiting=1)
        try:
            release = await self._wait(priority)
        except BaseException:
            self._count(waiting=-1)
            raise
        self._count(running=1, waiting=-1)  # at once, so that the sum never drops to 0
        try:
            yield asyncio.get_running_loop().time() - arrived
        finally:
            release()
            self._count(running=-1)

    def watch(self, changed: Callable[[], None]) -> None:
        """Call *changed* whenever another number of requests runs or waits."""
        self._changed = changed

    def close(self) -> None:
        """Admit no more requests."""
        self.closed = True

    def abort(self) -> None:
        """Give up the requests that run or wait."""
        self.aborted.set()

    async def idle(self) -> None:
        """Wait until no request runs or waits."""
        await self._idle.wait()

    async def _wait(self, priority: int) -> Callable[[], None]:
        try:
            async with asyncio.timeout(self._max_wait):
                return await self._slots.acquire(priority)
        except TimeoutError:
            message = f"no slot became free within {self._max_wait:g} s"
            raise ApiError(429, message, code=QUEUE_TIMEOUT, retry=True) from None

    def _count(self, running: int = 0, waiting: int = 0) -> None:
        self.running, self.waiting = self.running + running, self.waiting + waiting
        if self.running + self.waiting:
            self._idle.clear()
        else:
            self._idle.set()
        self._changed()


class Drain:
    """
    Ends a service: the first `signal` closes its *admission*, and calls *end* when all requests are answered.

    This takes `drain_seconds` at most; then, or on the second signal, the others are aborted. *log* receives messages.
    """

    def __init__(
        self, admission: Admission, settings: ServiceSettings, log: Callable[[str], None], end: Callable[[], None]
    ) -> None:
        self._admission, self._seconds, self._log, self._end = admission, settings.drain_seconds, log, end
        self._draining: asyncio.Task[None] | None = None

    def signal(self) -> None:
        """Begin to drain; the second time, end at once."""
        if self._draining is not None:
            self._admission.abort()
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
            admission.abort()
        finally:
            self._end()
