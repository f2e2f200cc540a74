"""The proxy before replicas, and requests whose replica dies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest
from starlette.types import Message

from stepspec.orchestrator.service import ray_proxy
from stepspec.orchestrator.service.http.errors import ApiError
from stepspec.orchestrator.service.ray_proxy import BufferedRequest, Messages, ReplicaLost, stream_messages

from .elsewhere import CHAT, JSON, OPENED, STREAM, Elsewhere, body, fetch, fronting
from .served import chosen


async def test_an_answer_passes_through_with_the_id_of_the_request() -> None:
    services = Elsewhere([[(), (JSON, body(b"[1]"))]])
    reply = await fetch(services.ask, headers=[(b"x-request-id", b"r-1"), (b"accept", b"*/*")])
    assert (reply.status, reply.body, reply.ended, reply.headers["x-request-id"]) == (200, b"[1]", True, "r-1")
    assert services.requests[0].headers == ((b"accept", b"*/*"), (b"x-request-id", b"r-1"))
    assert (services.requests[0].body, reply.events, services.left) == (b"{}", [], 1)


@pytest.mark.parametrize(
    "before", [[], [()], [(), ()], [(), (STREAM,)]], ids=["asked", "taken", "working", "with a head"]
)
async def test_a_replica_lost_before_the_response_is_replaced_unnoticed(before: list[Messages]) -> None:
    services = Elsewhere([[*before, ReplicaLost("died")], [(), (JSON,), (body(b"[", more=True), body(b"2]"))]])
    reply = await fetch(services.ask)
    assert (reply.status, reply.body, reply.headers["content-type"]) == (200, b"[2]", "application/json")
    assert len(reply.messages) == 3
    assert reply.events == [{"event": "lost", "path": CHAT, "attempt": 1, "begun": False, "cause": "died"}]


async def test_after_as_many_deaths_as_there_are_attempts_it_is_refused() -> None:
    services = Elsewhere([[(), ReplicaLost("died")]] * 3)
    reply = await fetch(services.ask)
    assert (reply.status, reply.code, reply.headers["x-should-retry"]) == (503, "replica_lost", "false")
    assert [event["attempt"] for event in reply.events] == [1, 2, 3]
    once = await fetch(Elsewhere([[ReplicaLost("died")]]).ask, settings=chosen(insecure=True, ray={"attempts": 1}))
    assert (once.status, len(once.events)) == (503, 1)


@pytest.mark.parametrize(
    ("path", "start", "end"),
    [
        (CHAT, b'data: {"error"', b"data: [DONE]\n\n"),
        ("/v1/completions", b'data: {"error"', b"data: [DONE]\n\n"),
        ("/v1/responses", b'event: response.failed\ndata: {"type":"response.failed","sequence_number":0', b"}\n\n"),
        ("/live", b'event: error\ndata: {"error"', b"}\n\n"),
    ],
)
async def test_a_stream_that_had_begun_ends_with_an_error(path: str, start: bytes, end: bytes) -> None:
    services = Elsewhere([[(), (STREAM, body(b"data: 1\n\n", more=True)), ReplicaLost("died")]])
    reply = await fetch(services.ask, path)
    assert reply.body.startswith(b"data: 1\n\n" + start)
    assert b"the replica that answered has died" in reply.body
    assert reply.body.endswith(end)
    assert reply.ended
    assert [event["begun"] for event in reply.events] == [True]


async def test_anything_else_that_had_begun_is_broken_off() -> None:
    reply = await fetch(Elsewhere([[(), (JSON, body(b"[", more=True)), ReplicaLost("died")]]).ask)
    assert (reply.body, reply.ended) == (b"[", False)


async def test_an_answer_without_an_end_is_no_answer() -> None:
    services = Elsewhere([[(), (STREAM,)], [(), (STREAM, body(b"data: 1\n\n", more=True))]])
    reply = await fetch(services.ask)
    assert reply.body.startswith(b'data: 1\n\ndata: {"error"')
    assert len(services.requests) == 2


async def test_a_refusal_is_passed_on_and_not_retried() -> None:
    full = ApiError(429, "full", code="queue_full", retry=True)
    services = Elsewhere([[full]])
    reply = await fetch(services.ask)
    assert (reply.status, reply.code, len(services.requests)) == (429, "queue_full", 1)


async def test_a_request_without_a_free_replica_is_refused() -> None:
    async def ask(request: BufferedRequest) -> AsyncGenerator[Messages]:
        await asyncio.Event().wait()
        yield ()

    reply = await fetch(ask, settings=chosen(insecure=True, max_wait=0.01))
    assert (reply.status, reply.code) == (503, "no_replica")


@pytest.mark.parametrize("begun", [False, True])
async def test_a_silent_replica_is_abandoned(begun: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_proxy, "GRACE", 0.0)
    monkeypatch.setattr(ray_proxy, "TRAVEL_SECONDS", 0.0)

    async def ask(request: BufferedRequest) -> AsyncGenerator[Messages]:
        yield ()
        if begun:
            yield (STREAM, body(b"data: 1\n\n", more=True))
        await asyncio.Event().wait()

    reply = await fetch(ask, settings=chosen(insecure=True, max_seconds=0.01))
    if begun:
        assert b'"code":"deadline"' in reply.body
        assert reply.ended
    else:
        assert (reply.status, reply.code) == (504, "deadline")


async def test_a_later_replica_gets_the_remaining_timeout_of_the_client() -> None:
    patience = (b"x-stainless-read-timeout", b"600")

    async def ask(request: BufferedRequest) -> AsyncGenerator[Messages]:
        heard.append(dict(request.headers)[patience[0]])
        yield ()
        if len(heard) == 1:
            await asyncio.sleep(0.01)
            raise ReplicaLost("died")
        yield (JSON, body(b"1"))

    heard = list[bytes]()
    await fetch(ask, headers=[patience])
    assert heard[0] == b"600"
    assert 590 < float(heard[1]) < 600


async def test_a_client_that_leaves_takes_the_request_elsewhere_along() -> None:
    left = asyncio.Event()

    async def ask(request: BufferedRequest) -> AsyncGenerator[Messages]:
        yield ()
        try:
            await asyncio.Event().wait()
        finally:
            left.set()

    app = fronting(ask, OPENED, lambda *_: None)
    request = BufferedRequest({"method": "POST", "path": CHAT, "query_string": b""}, (), b"")
    task = asyncio.create_task(drained(stream_messages(app, request)))
    await asyncio.sleep(0.01)
    task.cancel()
    await asyncio.wait([task])
    assert left.is_set()


async def drained(answer: AsyncGenerator[Messages]) -> None:
    async with aclosing(answer):
        async for _ in answer:
            pass


async def test_metrics_are_those_of_all() -> None:
    reply = await fetch(Elsewhere([]).ask, "/metrics", method="GET")
    assert reply.headers["content-type"].startswith("text/plain")
    assert [line for line in reply.body.decode().splitlines() if not line.startswith("#")] == [
        'x_total{replica="a"} 1.0',
        'x_total{replica="b"} 1.0',
    ]


async def test_the_door_is_before_it() -> None:
    services = Elsewhere([[(), (JSON, body(b"1"))]] * 2)
    locked = chosen(keys=("one",))
    assert (await fetch(services.ask, settings=locked)).status == 401
    assert (await fetch(services.ask, settings=chosen(insecure=True, max_body_bytes=1))).status == 413
    assert not services.requests
    opened = await fetch(services.ask, settings=locked, headers=[(b"authorization", b"Bearer one")], server="10.0.0.5")
    assert opened.status == 200


@pytest.mark.parametrize(
    ("server", "insecure", "path", "status"),
    [
        ("10.0.0.5", False, CHAT, 403),
        ("10.0.0.5", False, "/health", 200),
        ("10.0.0.5", True, CHAT, 200),
        ("127.0.0.1", False, CHAT, 200),
        ("::1", False, CHAT, 200),
    ],
)
async def test_without_a_key_only_local_clients_are_admitted(
    server: str, insecure: bool, path: str, status: int
) -> None:
    services = Elsewhere([[(), (JSON, body(b"1"))]])
    reply = await fetch(services.ask, path, settings=chosen(insecure=insecure), server=server)
    assert reply.status == status
    assert status == 200 or "STEPSPEC_SERVICE__KEYS" in reply.body.decode()


async def test_other_scopes_go_to_the_application() -> None:
    got = list[Message]()

    async def receive() -> Message:
        return {"type": "lifespan.startup" if not got else "lifespan.shutdown"}

    async def send(message: Message) -> None:
        got.append(message)

    await fronting(Elsewhere([]).ask, OPENED, lambda *_: None)({"type": "lifespan", "state": {}}, receive, send)
    assert [message["type"] for message in got] == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
