"""The counters of speculating servers during a run: whose they may be, and that no run waits for them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import pytest

from stepspec.orchestrator.endpoints import Endpoint
from stepspec.orchestrator.endpoints.metrics import AcceptanceMonitor, AcceptanceReading, AcceptanceWindows
from stepspec.orchestrator.events import Answering, Called, Degraded, Event, Finished, Speculated
from stepspec.orchestrator.stats import Acceptance

from ...fakes import run

OVER = Finished("stop", "42", 9.0)
OTHER = Degraded("small", "gone")


def now() -> float:
    return asyncio.get_running_loop().time()


@dataclass
class Server:
    """
    Drafts four tokens a second, of which it accepts three, in one pass, and writes four, *since* a second or for ever.

    A reading takes *slow* seconds; an *idle* server drafts nothing. *looks* are the times of the readings in seconds.
    """

    url: str = "http://one"
    slow: float = 0.0
    idle: bool = False
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
        seconds = 0 if self.idle else int(polled_at - self.since)
        self.reading = AcceptanceReading(polled_at, Acceptance(seconds, 4 * seconds, 3 * seconds), 4 * seconds)
        return self.reading.counted


def written(tokens: int) -> Called:
    return Called("large", "write", "done", 0.0, 1.0, written=tokens)


def cut(tokens: int) -> Called:
    return Called("large", "write", "cancelled", 0.0, 1.0, written=tokens)


class Run:
    """A run, which begins now, as somebody who hears of its events."""

    def __init__(self, monitor: AcceptanceMonitor) -> None:
        began = now()
        self.windows = AcceptanceWindows(monitor, lambda: now() - began)
        self.windows.begin()
        self.reported: list[Speculated] = []

    def hear(self, event: Event = OTHER) -> None:
        *completed, last = self.windows.complete(event)
        assert last is event
        assert all(isinstance(one, Speculated) for one in completed)
        self.reported += [one for one in completed if isinstance(one, Speculated)]

    def end(self, *calls: Called) -> None:
        for call in calls:
            self.hear(call)
        self.hear(OVER)
        self.windows.end()

    @property
    def shared(self) -> bool:
        return any(one.shared for one in self.reported)


def watching(*servers: Server) -> AcceptanceMonitor:
    return AcceptanceMonitor(lambda: [("large", server) for server in servers])


def monitored(main: Callable[[AcceptanceMonitor], Awaitable[None]], *servers: Server) -> None:
    """Do *main* while somebody looks at the *servers*, at which somebody looked once when they were entered."""

    async def all_of_it() -> None:
        for server in servers:
            await server.acceptance()
        monitor = watching(*servers)
        async with monitor.polling():
            await main(monitor)

    run(all_of_it())


def test_the_counters_of_a_run_span_from_the_last_reading_before_it_to_its_last_one() -> None:
    server = Server()

    async def main(monitor: AcceptanceMonitor) -> None:
        await asyncio.sleep(2.5)
        alone = Run(monitor)
        await asyncio.sleep(1.0)
        alone.hear()
        assert alone.reported == [Speculated("large", Acceptance(1, 4, 3), 0.0, 0.5, shared=False, url="http://one")]
        alone.hear()
        assert len(alone.reported) == 1
        await asyncio.sleep(2.0)
        alone.end(written(12))
        assert alone.reported[1:] == [Speculated("large", Acceptance(2, 8, 6), 0.5, 2.5, url="http://one")]
        await asyncio.sleep(2.0)
        alone.hear()
        assert len(alone.reported) == 2
        assert monitor.totals == {"large": Acceptance(7, 28, 21)}

    monitored(main, server)


def test_servers_that_do_not_speculate_are_never_looked_at() -> None:
    server = Server()

    async def main() -> None:
        monitor = watching(server)
        async with monitor.polling():
            one = Run(monitor)
            one.hear()
            monitor.poll_soon()
            await asyncio.sleep(10.0)
            one.end(written(100))
        assert (one.reported, server.looks, monitor.totals) == ([], [], {})

    run(main())


def test_where_requests_are_rationed_a_look_takes_none_of_them() -> None:
    server = Server(rate=1.0)

    async def main(monitor: AcceptanceMonitor) -> None:
        await asyncio.sleep(10.0)
        assert server.looks == [0.0]

    monitored(main, server)


def test_a_reading_of_another_run_is_reused() -> None:
    server = Server()

    async def main(monitor: AcceptanceMonitor) -> None:
        for _ in range(10):
            await server.acceptance()
            await asyncio.sleep(0.7)
        assert len(server.looks) == 11

    monitored(main, server)


def test_only_the_first_piece_of_the_answer_causes_a_reading() -> None:
    server = Server()

    async def main(monitor: AcceptanceMonitor) -> None:
        await asyncio.sleep(0.5)
        one = Run(monitor)
        for _ in range(4):
            one.hear(Answering("so"))
            await asyncio.sleep(0.1)
        assert server.looks == [0.0, 0.5]

    monitored(main, server)


def test_a_stalled_server_delays_no_run_and_is_read_again() -> None:
    server = Server()

    async def main(monitor: AcceptanceMonitor) -> None:
        server.slow = 1e9
        await asyncio.sleep(1.5)
        one = Run(monitor)
        one.hear(Answering("so"))
        assert now() == 1.5
        await asyncio.sleep(2.0)
        one.end(written(8))
        assert (now(), one.reported) == (3.5, [])
        server.slow = 0.0
        await asyncio.sleep(5.0)
        assert server.looks == [0.0, 1.0, 6.0, 7.0, 8.0]  # a look has five seconds

    monitored(main, server)


def test_an_old_reading_is_not_used_for_a_run() -> None:
    server = Server(rate=1.0)  # nobody looks but the test

    async def main(monitor: AcceptanceMonitor) -> None:
        await asyncio.sleep(8.0)
        one = Run(monitor)
        await server.acceptance()
        one.hear()
        await asyncio.sleep(2.0)
        await server.acceptance()
        one.end(written(8))
        assert one.reported == [Speculated("large", Acceptance(2, 8, 6), 0.0, 2.0, url="http://one")]

    monitored(main, server)


def test_a_server_that_was_started_anew_begins_at_nothing() -> None:
    server = Server()

    async def main(monitor: AcceptanceMonitor) -> None:
        await asyncio.sleep(3.5)
        one = Run(monitor)
        server.since = now()
        await asyncio.sleep(3.0)
        one.hear()
        await asyncio.sleep(3.0)
        one.end(written(20))
        assert sum((each.counted for each in one.reported), Acceptance()) == Acceptance(3, 12, 9)
        assert (one.reported[0].since, one.shared) == (2.5, False)

    monitored(main, server)


def test_counters_without_drafts_are_reported_only_at_the_end() -> None:
    async def main(monitor: AcceptanceMonitor) -> None:
        await asyncio.sleep(1.5)
        one = Run(monitor)
        for _ in range(3):
            await asyncio.sleep(1.0)
            one.hear()
        assert not one.reported
        one.end()
        assert one.reported == [Speculated("large", Acceptance(), 0.0, 2.5, url="http://one")]

    monitored(main, Server(idle=True))


def test_the_replicas_of_a_model_are_reported_separately() -> None:
    async def main(monitor: AcceptanceMonitor) -> None:
        one = Run(monitor)
        await asyncio.sleep(2.5)
        one.end(written(16))
        assert [(each.url, each.counted) for each in one.reported] == [
            ("http://one", Acceptance(2, 8, 6)),
            ("http://two", Acceptance(2, 8, 6)),
        ]
        assert not one.shared
        assert monitor.totals == {"large": Acceptance(4, 16, 12)}

    monitored(main, Server(), Server("http://two"))


# Who else was there


@pytest.mark.parametrize(
    ("begins", "ends", "shared"),
    [(1.0, 2.0, True), (1.0, 6.0, True), (4.0, 5.0, True), (4.0, 9.0, True), (0.5, 1.5, False), (8.2, 9.0, False)],
)
def test_other_runs_at_the_same_time_are_owned_up_to(begins: float, ends: float, shared: bool) -> None:
    """The run lasts from second 2.5 to second 8.0, and its first window begins at the look at second 2."""

    async def other(monitor: AcceptanceMonitor) -> None:
        await asyncio.sleep(begins)
        one = Run(monitor)
        await asyncio.sleep(ends - begins)
        one.windows.end()

    async def main(monitor: AcceptanceMonitor) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(other(monitor))
            await asyncio.sleep(2.5)
            one = Run(monitor)
            await asyncio.sleep(5.5)
            one.end(written(24))
        assert one.reported[0].since == 0
        assert one.shared == shared

    monitored(main, Server())


def test_only_the_windows_with_company_are_shared() -> None:
    async def main(monitor: AcceptanceMonitor) -> None:
        one = Run(monitor)
        with monitor.user():
            await asyncio.sleep(1.5)
            one.hear()
        await asyncio.sleep(1.0)
        one.hear()
        await asyncio.sleep(1.0)
        one.end(written(12))
        assert [each.shared for each in one.reported] == [True, True, False]  # the second began at second 1, in company

    monitored(main, Server())


def test_a_failed_run_is_no_longer_counted() -> None:
    async def main(monitor: AcceptanceMonitor) -> None:
        with pytest.raises(ZeroDivisionError), monitor.user():
            raise ZeroDivisionError
        failed = Run(monitor)
        failed.windows.end()
        failed.windows.end()
        await asyncio.sleep(1.5)
        one = Run(monitor)
        await asyncio.sleep(2.0)
        one.end(written(8))
        assert one.reported
        assert not one.shared

    monitored(main, Server())


@pytest.mark.parametrize(
    ("calls", "shared"),
    [
        ([written(200)], False),
        ([written(168)], False),
        ([written(167)], True),
        ([written(100), cut(36), cut(0)], False),  # a request that was cut off may have been written more
        ([written(100), cut(3)], True),
        ([Called("small", "write", "done", 0.0, 1.0, written=999)], True),
        ([Called("large", "write", "done", 0.0, 1.0, written=999, path="large.large")], True),
    ],
)
def test_a_server_that_wrote_more_than_the_run_requested_has_other_clients(calls: list[Called], shared: bool) -> None:
    async def main(monitor: AcceptanceMonitor) -> None:
        one = Run(monitor)
        await asyncio.sleep(50.5)
        one.end(*calls)  # 200 tokens were written
        assert one.shared == shared

    monitored(main, Server())


def test_other_clients_are_reported_even_without_counters() -> None:
    async def main(monitor: AcceptanceMonitor) -> None:
        one = Run(monitor)
        await asyncio.sleep(50.5)
        one.hear()
        one.end(written(3))
        assert [(each.counted, each.shared) for each in one.reported] == [
            (Acceptance(50, 200, 150), False),
            (Acceptance(), True),
        ]

    monitored(main, Server())
