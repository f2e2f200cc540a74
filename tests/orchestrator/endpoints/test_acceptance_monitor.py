"""The counters of speculating servers are polled in the background, and nothing waits for them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from stepspec.orchestrator.endpoints import Endpoint
from stepspec.orchestrator.endpoints.metrics import AcceptanceReading
from stepspec.orchestrator.endpoints.polling import AcceptanceMonitor
from stepspec.orchestrator.stats import Acceptance

from ...fakes import run


def now() -> float:
    return asyncio.get_running_loop().time()


@dataclass
class Server:
    """
    Drafts four tokens a second, of which it accepts three, in one pass, and writes four, *since* a second or for ever.

    A reading takes *slow* seconds. *looks* are the times of the readings in seconds.
    """

    url: str = "http://one"
    slow: float = 0.0
    rate: float | None = None
    since: float = 0.0
    polled_at: float = -1e9
    reading: AcceptanceReading | None = None
    looks: list[float] = field(default_factory=list[float])

    @property
    def settings(self) -> Endpoint:
        return Endpoint(role="large", url=self.url, requests_per_second=self.rate)

    async def acceptance(self) -> Acceptance | None:
        polled_at = self.polled_at = now()
        self.looks.append(polled_at)
        await asyncio.sleep(self.slow)
        seconds = int(polled_at - self.since)
        self.reading = AcceptanceReading(polled_at, Acceptance(seconds, 4 * seconds, 3 * seconds), 4 * seconds)
        return self.reading.counted


def watching(*servers: Server) -> AcceptanceMonitor:
    return AcceptanceMonitor(lambda: [("large", server) for server in servers])


def monitored(main: Callable[[AcceptanceMonitor], Awaitable[None]], *servers: Server) -> None:
    """Do *main* while the *servers*, which were read once when they were entered, are polled."""

    async def all_of_it() -> None:
        for server in servers:
            await server.acceptance()
        monitor = watching(*servers)
        async with monitor.polling():
            await main(monitor)

    run(all_of_it())


def test_what_all_replicas_counted_since_the_first_reading_is_added_up() -> None:
    async def main(monitor: AcceptanceMonitor) -> None:
        assert monitor.totals == {"large": Acceptance()}
        await asyncio.sleep(7.5)
        assert monitor.totals == {"large": Acceptance(14, 56, 42)}

    monitored(main, Server(), Server("http://two"))


def test_servers_that_do_not_speculate_are_never_polled() -> None:
    server = Server()

    async def main() -> None:
        monitor = watching(server)
        async with monitor.polling():
            await asyncio.sleep(10.0)
        assert (server.looks, monitor.totals) == ([], {})

    run(main())


def test_where_requests_are_rationed_a_poll_takes_none_of_them() -> None:
    server = Server(rate=1.0)

    async def main(monitor: AcceptanceMonitor) -> None:
        await asyncio.sleep(10.0)
        assert server.looks == [0.0]

    monitored(main, server)


def test_a_recent_reading_of_somebody_else_is_reused() -> None:
    server = Server()

    async def main(monitor: AcceptanceMonitor) -> None:
        for _ in range(10):
            await server.acceptance()
            await asyncio.sleep(0.7)
        assert len(server.looks) == 11

    monitored(main, server)


def test_a_stalled_server_is_read_again() -> None:
    server = Server()

    async def main(monitor: AcceptanceMonitor) -> None:
        server.slow = 1e9
        await asyncio.sleep(3.5)
        server.slow = 0.0
        await asyncio.sleep(5.0)
        assert server.looks == [0.0, 1.0, 7.0, 8.0]  # a reading has five seconds

    monitored(main, server)


def test_a_server_that_was_started_anew_begins_at_nothing() -> None:
    server = Server()

    async def main(monitor: AcceptanceMonitor) -> None:
        await asyncio.sleep(3.5)
        assert monitor.totals == {"large": Acceptance(3, 12, 9)}
        server.since = 3.5
        await asyncio.sleep(4.0)
        assert monitor.totals == {"large": Acceptance(6, 24, 18)}

    monitored(main, server)
