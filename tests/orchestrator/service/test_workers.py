"""Several processes on one port: who gets a slot, who gets a connection, and what is done about those that die."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest

from stepspec.orchestrator.concurrency import background
from stepspec.orchestrator.errors import ConfigurationError, StepspecError
from stepspec.orchestrator.service import workers
from stepspec.orchestrator.service.admission import Admission
from stepspec.orchestrator.service.app import listen
from stepspec.orchestrator.service.errors import ApiError
from stepspec.orchestrator.service.observers import RequestLog
from stepspec.orchestrator.service.settings import ServiceSettings
from stepspec.orchestrator.service.worker import Channel, Orders, SharedSlots, Start, first_message, receive_start
from stepspec.orchestrator.service.workers import HeldSlots, Life, Program, Worker, run_workers

from .served import chosen, until

DIES = "raise SystemExit(3)"
REPORTS = """
import os, sys
from stepspec.orchestrator.service.worker import receive_start
import socket
end = socket.socket(fileno=int(sys.argv[1]))
receive_start(end)
end.sendall(b'["ready"]\\n' if {ready} else b'["failed", "{kind}", "no such thing"]\\n')
raise SystemExit(3)
"""


@asynccontextmanager
async def connected(admission: Admission, settings: ServiceSettings) -> AsyncGenerator[tuple[Admission, HeldSlots]]:
    """Connect a worker's own admission to the slots that it holds of the service's *admission*."""
    ours, theirs = socket.socketpair()
    async with Channel.over(ours) as up, Channel.over(theirs) as down:
        held, slots = HeldSlots(admission, up), SharedSlots(down)

        async def listen() -> None:
            while message := await up.receive():
                if message[0] == "enter":
                    held.enter(message[1], message[2])
                else:
                    held.leave(message[1])

        async with background(listen(), Orders(down, slots).obey()):
            yield Admission(settings, slots), held


async def visit(admission: Admission, name: str, log: list[str], leave: asyncio.Event) -> None:
    try:
        async with admission.enter():
            log.append(name)
            await leave.wait()
    except ApiError as exc:
        log.append(f"{name} {exc.status} {exc.code} {exc.retry}")


def holds(admission: Admission, requests: int) -> bool:
    return admission.running + admission.waiting == requests


async def test_workers_share_slots_and_queue_in_the_order_of_arrival() -> None:
    settings = chosen(max_running=1, max_waiting=2)
    service, log = Admission(settings), list[str]()
    leave = {name: asyncio.Event() for name in "abcd"}
    async with connected(service, settings) as (one, _), connected(service, settings) as (other, _):
        visits: list[asyncio.Task[None]] = []
        for inside, (name, worker) in enumerate(zip("abc", (one, other, one), strict=True), 1):
            visits.append(asyncio.create_task(visit(worker, name, log, leave[name])))
            await until(partial(holds, service, inside))
        await visit(other, "d", log, leave["d"])
        assert (one.running, one.waiting, other.running, other.waiting) == (1, 1, 0, 1)
        assert log == ["a", "d 429 queue_full True"]
        for name, next_name in ("ab", "bc"):
            leave[name].set()
            await until(partial(log.__contains__, next_name))
            assert service.running == 1
        leave["c"].set()
        await asyncio.gather(*visits)
        await service.idle()
    assert log == ["a", "d 429 queue_full True", "b", "c"]


async def test_a_waiting_request_that_is_cancelled_leaves_the_queue_of_all() -> None:
    settings = chosen(max_running=1)
    service, log, leave = Admission(settings), list[str](), asyncio.Event()
    async with connected(service, settings) as (one, _), connected(service, settings) as (other, _):
        running = asyncio.create_task(visit(one, "a", log, leave))
        await until(lambda: service.running == 1)
        waiting = asyncio.create_task(visit(other, "b", log, leave))
        await until(lambda: service.waiting == 1)
        waiting.cancel()
        await until(lambda: service.waiting == 0)
        assert other.waiting == 0
        leave.set()
        await running
        await service.idle()


async def test_the_slots_of_a_worker_that_is_gone_go_to_the_others() -> None:
    settings = chosen(max_running=2)
    service, log, leave = Admission(settings), list[str](), asyncio.Event()
    async with connected(service, settings) as (one, held), connected(service, settings) as (other, _):
        lost = [asyncio.create_task(visit(one, "a", log, leave)) for _ in range(3)]
        await until(lambda: (service.running, service.waiting) == (2, 1))
        waiting = asyncio.create_task(visit(other, "b", log, leave))
        await until(lambda: service.waiting == 2)
        await held.release()
        await until(lambda: log[-1] == "b")
        assert (service.running, service.waiting, held.count) == (1, 0, 0)
        leave.set()
        await asyncio.gather(waiting, *lost, return_exceptions=True)


async def test_nobody_enters_a_service_that_is_closed() -> None:
    settings = chosen()
    service, log = Admission(settings), list[str]()
    async with connected(service, settings) as (one, _):
        service.close()
        await visit(one, "a", log, asyncio.Event())
    assert log == ["a 503 draining True"]


async def test_a_connection_goes_to_the_worker_with_the_fewest_requests_or_the_longest_without_one() -> None:
    service = Admission(chosen())
    ends = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(2)]
    ours, theirs = socket.socketpair()
    async with Channel.over(ours) as channel:
        one, other = (Worker(service, channel, end, Life()) for end, _ in ends)
        with socket.socket() as connection:
            assert one.give(connection, 1)
            assert other.load < one.load
            assert other.give(connection, 2)
            assert one.load < other.load
            one.slots.enter(0, 0)
            assert other.load < one.load
            ends[0][1].close()
            assert not one.give(connection, 3)
        await one.slots.release()
    for end in (theirs, *ends[0], *ends[1]):
        end.close()


def test_a_worker_reads_no_more_than_its_first_message() -> None:
    start = Start(2, Path("folder"), 5, ("one", "two"), b"x" * 100_000)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        ours.sendall(first_message(start) + b'["close"]\n')
        assert receive_start(theirs) == start
        assert theirs.recv(100) == b'["close"]\n'


@pytest.mark.parametrize(
    ("program", "error", "complaint"),
    [
        (DIES, StepspecError, r"worker \d of the service did not start: exit code 3"),
        (REPORTS.format(ready=False, kind="configuration"), ConfigurationError, "^no such thing$"),
        (REPORTS.format(ready=False, kind="other"), StepspecError, "^no such thing$"),
        # The second worker may not have reported yet when the first has died for the third time.
        (REPORTS.format(ready=True, kind=""), StepspecError, r"(died 3 times in a row|did not start): exit"),
    ],
)
async def test_workers_that_die_at_once_end_the_service(
    program: str, error: type[Exception], complaint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "FIRST_DELAY", 0.01)
    monkeypatch.setattr(workers, "MOST_DEATHS", 3)
    settings, announced = chosen(workers=2), list[bool]()
    command = Program((sys.executable, "-c", program), b"")
    with listen("127.0.0.1", 0) as port, pytest.raises(error, match=complaint) as raised:
        await run_workers(command, settings, port, RequestLog(settings), lambda: announced.append(True))
    assert type(raised.value) is error
    assert len(announced) <= 1


@pytest.mark.parametrize("number", [0, 65, "two"])
def test_a_wrong_number_of_workers_is_refused(number: object) -> None:
    with pytest.raises(ValueError, match="workers"):
        chosen(workers=number)
