"""
Limits, deadlines, disconnects and shutdown: no request waits forever, and no run continues without
its client.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Sequence

import pytest

from stepspec.orchestrator.events import Called
from stepspec.service.admission import Admission
from stepspec.service.errors import ApiError
from stepspec.service.settings import ServiceSettings
from stepspec.service.watch.observers import RequestLog

from ...fakes import run
from ..served import ANSWER, STREAM, TURN, Behind, FullDisk, Served, chosen, passing, serving, until


async def occupied(served: Served, running: int, waiting: int = 0) -> None:
    """Wait until so many requests are inside."""
    gate = served.service.context.admission
    await until(lambda: (gate.running, gate.waiting) == (running, waiting))


async def left(served: Served) -> None:
    """Wait until the service has left the small model's server, and nobody is inside any more."""
    async with asyncio.timeout(10):
        await served.small.left.wait()
        await served.service.context.admission.idle()


def test_places_are_taken_in_the_order_of_arrival_and_held_until_the_end() -> None:
    async def main() -> list[str]:
        gate = Admission(ServiceSettings(max_running=1, max_waiting=2, max_wait=100))
        log = list[str]()

        async def visit(name: str) -> None:
            async with gate.enter() as waited:
                log.append(f"{name} after {waited:g}")
                await asyncio.sleep(10)

        await asyncio.gather(*(visit(name) for name in "abc"))
        await gate.idle()
        return log

    assert run(main()) == (["a after 0", "b after 10", "c after 20"], 30)


def test_a_full_queue_refuses_at_once_and_a_slow_one_in_time() -> None:
    async def main() -> list[str]:
        gate = Admission(ServiceSettings(max_running=1, max_waiting=1, max_wait=5))
        codes = list[str]()

        async def visit() -> None:
            try:
                async with gate.enter():
                    await asyncio.sleep(60)
            except ApiError as exc:
                codes.append(f"{exc.status} {exc.code} at {asyncio.get_running_loop().time():g}")

        await asyncio.gather(*(visit() for _ in range(3)))
        return codes

    assert run(main())[0] == ["429 queue_full at 0", "429 queue_timeout at 5"]


def test_the_running_count_stays_during_a_handover() -> None:
    async def main() -> tuple[int, float]:
        gate = Admission(ServiceSettings(max_running=2, max_waiting=1, max_wait=100))

        async def visit() -> None:
            async with gate.enter():
                await asyncio.sleep(10)

        async def emptied() -> float:
            await gate.idle()
            return asyncio.get_running_loop().time()

        visits = [asyncio.create_task(visit()) for _ in range(3)]
        await asyncio.sleep(1)
        gone = asyncio.create_task(emptied())
        await asyncio.gather(*visits)
        return gate.running + gate.waiting, await gone

    assert run(main()) == ((0, 20), 20)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_disconnected_clients_requests_are_cancelled(stream: bool) -> None:
    async with serving() as served:
        served.small.gate = asyncio.Semaphore(1)
        asking = asyncio.create_task(served.chat(stream=stream))
        await occupied(served, 1)
        await until(lambda: served.small.heads)
        asking.cancel()
        await asyncio.wait([asking])
        await left(served)
        await until(lambda: served.recorded.requests)
        fates = {event.fate for event in served.recorded.events if isinstance(event, Called)}
    assert fates == {"cancelled"}
    assert [request.status for request in served.recorded.requests] == [499]


async def test_a_deadline_ends_with_the_best_answer_so_far() -> None:
    async with serving(chosen(max_seconds=4.0)) as served:
        served.small.gate = asyncio.Semaphore(3)
        reply = await served.chat(stepspec={"ahead": 0})
    assert reply.status == 200
    assert (reply.message["reasoning"], reply.json["stepspec"]["finish_reason"]) == (
        "So one.\n\n",
        "time",
    )
    assert reply.message["content"]
    assert reply.json["choices"][0]["finish_reason"] == "length"


async def test_an_idle_stream_sends_keepalives() -> None:
    async with serving(chosen(keep_alive=0.05)) as served:
        served.small.gate = asyncio.Semaphore(0)
        async with served.http.post(
            f"{served.base}/v1/chat/completions",
            json={"model": "auto", "messages": [TURN], "stream": True},
        ) as reply:
            first = await reply.content.readuntil(b"\n\n")
            assert b'"role":"assistant"' in first
            assert await reply.content.readuntil(b"\n\n") == b": keep-alive\n\n"
            for _ in range(99):
                served.small.gate.release()
            rest = await reply.content.read()
    assert rest.endswith(b"data: [DONE]\n\n")


async def test_a_signal_finishes_all_twenty_runs_and_refuses_new_ones() -> None:
    async with serving() as served:
        served.small.gate = asyncio.Semaphore(0)
        twenty = [asyncio.create_task(served.chat(stream=number % 2 == 0)) for number in range(20)]
        await occupied(served, 20)
        served.server.handle_exit(signal.SIGTERM, None)
        await until(lambda: served.service.context.admission.closed)
        refused = await served.chat()
        ready = await served.get("/health/readiness")
        alive = await served.get("/health")
        for _ in range(999):
            served.small.gate.release()
        replies = await asyncio.gather(*twenty)
        await served.running
    assert (refused.status, refused.error["code"], refused.headers["Retry-After"]) == (
        503,
        "draining",
        "2",
    )
    assert (ready.status, ready.json["status"], alive.status) == (503, "draining", 200)
    assert [reply.status for reply in replies] == [200] * 20
    answers = [
        reply.joined("content") if index % 2 == 0 else reply.message["content"]
        for index, reply in enumerate(replies)
    ]
    assert answers == [ANSWER] * 20


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM, signal.SIGINT])
async def test_a_signal_to_the_process_is_a_drain_even_if_nothing_can_be_logged(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving() as served:
        served.small.gate = asyncio.Semaphore(0)
        asking = asyncio.create_task(served.chat())
        await occupied(served, 1)
        monkeypatch.setattr(sys, "stderr", FullDisk(OSError(28, "No space left")))
        monkeypatch.setattr(served.server, "_log", RequestLog(chosen()).log.info)
        os.kill(os.getpid(), number)
        await until(lambda: served.service.context.admission.closed)
        for _ in range(999):
            served.small.gate.release()
        assert (await asking).status == 200
        await served.running


@pytest.mark.parametrize(
    ("signals", "seconds"), [((signal.SIGTERM,), 0.1), ((signal.SIGINT, signal.SIGINT), 60.0)]
)
async def test_runs_beyond_the_grace_period_and_at_a_second_signal_are_cancelled(
    signals: Sequence[int], seconds: float
) -> None:
    async with serving(chosen(drain_seconds=seconds)) as served:
        served.small.gate = asyncio.Semaphore(0)
        asking = asyncio.create_task(served.chat())
        await occupied(served, 1)
        for number in signals:
            served.server.handle_exit(number, None)
        async with asyncio.timeout(20):
            await served.running
        reply = await asking
    assert (reply.status, reply.error["code"], reply.headers["x-should-retry"]) == (
        503,
        "shut_down",
        "true",
    )


STREAMS = [
    (
        "/v1/chat/completions",
        {"model": "auto", "messages": [TURN]},
        b"data: {",
        b"\n\ndata: [DONE]\n\n",
    ),
    (
        "/v1/responses",
        {"model": "auto", "input": "x"},
        b"event: response.failed\ndata: {",
        b"}\n\n",
    ),
    ("/live", {"problem": "x"}, b"event: error\ndata: {", b"}\n\n"),
]


@pytest.mark.parametrize(("path", "fields", "opening", "closing"), STREAMS)
async def test_a_cancelled_stream_ends_with_an_error(
    path: str,
    fields: dict[str, object],
    opening: bytes,
    closing: bytes,
    caplog: pytest.LogCaptureFixture,
) -> None:
    body = fields if path == "/live" else {**fields, "stream": True}
    async with serving(chosen(drain_seconds=0.1, keep_alive=0.05)) as served:
        served.small.gate = asyncio.Semaphore(0)
        async with served.http.post(f"{served.base}{path}", json=body) as reply:
            assert await reply.content.readuntil(b": keep-alive\n\n")
            served.server.handle_exit(signal.SIGTERM, None)
            async with asyncio.timeout(20):
                rest = await reply.content.read()
        await served.running
    last = rest.removesuffix(closing).rpartition(opening)[2]
    assert rest.endswith(closing)
    assert b"the service shut down before the answer was complete" in last
    assert [request.error and request.error.code for request in served.recorded.requests] == [
        "shut_down"
    ]
    assert "without completing" not in caplog.text


async def test_a_cancelled_answer_of_a_served_model_is_an_error_as_a_stream_or_in_one_piece() -> (
    None
):
    behind = Behind(gate=asyncio.Event())
    async with passing(behind, chosen(drain_seconds=0.1)) as served:
        fields = {"model": "huge", "prompt": "x"}
        asking = asyncio.create_task(served.post("/v1/completions", fields))
        await until(lambda: behind.got)
        behind.kind = STREAM
        behind.pieces = [b"data: 1\n\n"]
        async with served.http.post(f"{served.base}/v1/completions", json=fields) as stream:
            served.server.handle_exit(signal.SIGTERM, None)
            async with asyncio.timeout(20):
                received = await stream.content.read()
                whole = await asking
        await served.running
    assert (whole.status, whole.error["code"]) == (503, "shut_down")
    assert received.startswith(b"data: 1\n\ndata: {")
    assert b'"code":"shut_down"' in received
    assert received.endswith(b"data: [DONE]\n\n")
    assert [request.error and request.error.code for request in served.recorded.requests] == [
        "shut_down"
    ] * 2
