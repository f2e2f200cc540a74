"""Poll what servers show at ``/metrics``: `poll_queue` one queue, `AcceptanceMonitor` all servers that speculate."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from typing import Protocol, TypeAlias

from ..concurrency import background
from ..stats import Acceptance
from .metrics import AcceptanceReading, QueueGauges
from .settings import Endpoint

POLL_SECONDS = 1.0  # between two readings of one server
POLL_TIMEOUT = 5 * POLL_SECONDS  # seconds for one reading


class QueueSource(Protocol):
    """A server or an endpoint that reports its queue; None if it does not."""

    async def queue(self) -> QueueGauges | None: ...


@asynccontextmanager
async def poll_queue(
    server: QueueSource,
    report: Callable[[int, int, int | None], None],
    every: float = POLL_SECONDS,
    within: float = POLL_TIMEOUT,
) -> AsyncGenerator[None]:
    """
    Call *report* with the running and waiting requests and the tokens of the cache, again *every* so many seconds.

    A poll that fails or takes longer than *within* seconds reports nothing.
    """

    async def poll() -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(within):
                    gauges = await server.queue()
                if gauges is not None:
                    report(gauges.running, gauges.waiting, gauges.cache)
            await asyncio.sleep(every)

    async with background(poll()):
        yield


class SpeculatingServer(Protocol):
    """
    A server that may speculate on tokens. `acceptance` reads its counters again.

    *polled_at* is the second of the last attempt on the event loop's clock, *reading* the newest reading; None if the
    server does not speculate.
    """

    polled_at: float
    reading: AcceptanceReading | None

    @property
    def settings(self) -> Endpoint: ...

    async def acceptance(self) -> Acceptance | None: ...


NamedServer: TypeAlias = tuple[str, SpeculatingServer]


class AcceptanceMonitor:
    """
    Polls the counters of all speculating servers.

    *servers* returns every server with the role of its model, or the model's path in a nested pair.
    """

    def __init__(self, servers: Callable[[], Iterable[NamedServer]]) -> None:
        self._servers = servers
        self._last: dict[tuple[str, str], AcceptanceReading] = {}  # by name and URL
        self.totals: dict[str, Acceptance] = {}  # by name, since the first reading, for all clients
        self.speculating: tuple[NamedServer, ...] = ()

    @asynccontextmanager
    async def polling(self) -> AsyncGenerator[None]:
        """Poll the servers while the block lasts."""
        self._update()
        async with background(self._poll()):
            yield

    async def _poll(self) -> None:
        while True:
            await asyncio.gather(*[_read(server) for _, server in self.speculating if _due(server)])
            self._update()
            await asyncio.sleep(POLL_SECONDS)

    def _update(self) -> None:
        """Find the speculating servers, and add what their counters grew by to `totals`."""
        self.speculating = tuple((name, server) for name, server in self._servers() if server.reading is not None)
        for name, server in self.speculating:
            if (reading := server.reading) is not None:
                growth = reading.since(self._last.get((name, server.settings.url), reading))
                self.totals[name] = self.totals.get(name, Acceptance()) + (growth or Acceptance())
                self._last[name, server.settings.url] = reading


def _due(server: SpeculatingServer) -> bool:
    """Whether to read the counters of *server*; never where requests are limited, as a reading is a request too."""
    return server.settings.requests_per_second is None and _now() - server.polled_at >= POLL_SECONDS


async def _read(server: SpeculatingServer) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(POLL_TIMEOUT):
            await server.acceptance()


def _now() -> float:
    return asyncio.get_running_loop().time()
