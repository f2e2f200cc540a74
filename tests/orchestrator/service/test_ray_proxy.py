"""Requests that are answered in another process: by scripted replicas behind a front, without Ray."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

import orjson
import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from stepspec.orchestrator.service import ray_proxy
from stepspec.orchestrator.service.http.admission import Clients
from stepspec.orchestrator.service.http.errors import ApiError
from stepspec.orchestrator.service.http.middleware import RequestMiddleware
from stepspec.orchestrator.service.ray_proxy import (
    BufferedRequest,
    Messages,
    ReplicaLost,
    ReplicaProxy,
    merge_metrics,
    stream_messages,
)
from stepspec.orchestrator.service.settings import ServiceSettings
from stepspec.orchestrator.service.watch.records import ServiceRequest

from .served import chosen

CHAT = "/v1/chat/completions"
OPENED = chosen(insecure=True)


def head(kind: str, status: int = 200) -> Message:
    return {"type": "http.response.start", "status": status, "headers": [(b"content-type", kind.encode())]}


def body(piece: bytes, *, more: bool = False) -> Message:
    return {"type": "http.response.body", "body": piece, "more_body": more}


STREAM, JSON = head("text/event-stream; charset=utf-8"), head("application/json")


@dataclass
class Elsewhere:
    """Scripted replicas: each of *lives* sends its messages for one request, and dies if the last one is an error."""

    lives: Sequence[Sequence[Messages | Exception]]
    requests: list[BufferedRequest] = field(default_factory=list[BufferedRequest])
    left: int = 0

    async def ask(self, request: BufferedRequest) -> AsyncGenerator[Messages]:
        self.requests.append(request)
        try:
            for each in self.lives[len(self.requests) - 1]:
                if isinstance(each, Exception):
                    raise each
                yield each
        finally:
            self.left += 1


async def scrape() -> Mapping[str, bytes]:
    return {name: b"# HELP x_total A.\n# TYPE x_total counter\nx_total 1.0\n" for name in ("a", "b")}


@dataclass
class FrontReply:
    """The messages that a client got, and the events that the front logged."""

    messages: list[Message]
    events: list[dict[str, Any]]

    @property
    def status(self) -> int:
        return int(self.messages[0]["status"])

    @property
    def headers(self) -> dict[str, str]:
        return {name.decode(): value.decode() for name, value in self.messages[0]["headers"]}

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.messages)

    @property
    def ended(self) -> bool:
        return not self.messages[-1].get("more_body")

    @property
    def code(self) -> str:
        return str(orjson.loads(self.body)["error"]["code"])


async def fetch(
    ask: Callable[[BufferedRequest], AsyncGenerator[Messages]],
    path: str = CHAT,
    *,
    settings: ServiceSettings = OPENED,
    method: str = "POST",
    headers: Sequence[tuple[bytes, bytes]] = (),
    server: str = "127.0.0.1",
) -> FrontReply:
    events = list[dict[str, Any]]()

    def tell(event: str, **more: Any) -> None:
        events.append({"event": event, **more})

    app = fronting(ask, settings, tell)
    request = BufferedRequest(
        {"method": method, "path": path, "query_string": b"", "server": (server, 80)}, tuple(headers), b"{}"
    )
    return FrontReply([message async for messages in stream_messages(app, request) for message in messages], events)


def fronting(
    ask: Callable[[BufferedRequest], AsyncGenerator[Messages]], settings: ServiceSettings, tell: Callable[..., None]
) -> RequestMiddleware:
    return RequestMiddleware(
        ReplicaProxy(Starlette(), ask, scrape, settings, tell),
        settings=settings,
        clients=Clients(settings, limits=False),
        version="9",
        observe=lambda event: None,
    )


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


async def test_a_client_that_leaves_takes_the_request_elsewhere_along(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_proxy, "CLOSE_SECONDS", 0.01)
    left = asyncio.Event()

    async def ask(request: BufferedRequest) -> AsyncGenerator[Messages]:
        yield ()
        try:
            await asyncio.Event().wait()
        finally:
            left.set()

    app = fronting(ask, OPENED, lambda *_: None)
    request = BufferedRequest({"method": "POST", "path": CHAT, "query_string": b""}, (), b"")

    async def read() -> None:
        async for _ in stream_messages(app, request):
            pass

    task = asyncio.create_task(read())
    await asyncio.sleep(0.01)
    task.cancel()
    await asyncio.wait([task])
    assert left.is_set()


async def test_the_door_is_before_it() -> None:
    services = Elsewhere([[(), (JSON, body(b"1"))]] * 2)
    locked = chosen(keys=("one",))
    assert (await fetch(services.ask, settings=locked)).status == 401
    assert (await fetch(services.ask, settings=chosen(insecure=True, max_body_bytes=1))).status == 413
    assert not services.requests
    opened = await fetch(services.ask, settings=locked, headers=[(b"authorization", b"Bearer one")], server="10.0.0.5")
    assert opened.status == 200


async def test_the_front_leaves_the_limits_of_a_client_to_the_replicas() -> None:
    settings = chosen(clients={"a": {"key": "one", "requests_per_minute": 1}})
    services = Elsewhere([[(), (JSON, body(b"1"))]])
    reply = await fetch(services.ask, settings=settings, headers=[(b"authorization", b"Bearer one")])
    assert reply.status == 200
    assert "x-ratelimit-limit-requests" not in reply.headers


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


# A request and its answer without a connection.

HEADERS = ((b"content-type", b"application/json"), (b"x-request-id", b"a b"))


def buffered(*headers: tuple[bytes, bytes], body: bytes = b"{}") -> BufferedRequest:
    return BufferedRequest({"method": "POST", "path": "/echo", "query_string": b"a=1"}, headers, body)


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    request = Request(scope, receive)
    echoed = {"path": request.url.path, "query": request.url.query, "body": (await request.body()).decode()}
    await JSONResponse(echoed)(scope, receive, send)


async def test_the_request_reaches_the_application_and_the_response_returns() -> None:
    first, *rest = [
        messages async for messages in stream_messages(echo, pickle.loads(pickle.dumps(buffered(body=b"hello"))))
    ]
    assert first == ()
    sent = [message for messages in rest for message in messages]
    assert [message["type"] for message in sent] == ["http.response.start", "http.response.body"]
    assert sent[1]["body"] == b'{"path":"/echo","query":"a=1","body":"hello"}'


async def test_a_request_travels_under_the_id_that_its_visit_has() -> None:
    came = iter([b"hal", b"lo"])

    async def receive() -> dict[str, object]:
        piece = next(came)
        return {"type": "http.request", "body": piece, "more_body": piece == b"hal"}

    scope = {"type": "http", "method": "POST", "path": "/x", "headers": [*HEADERS], "app": object()}
    record = ServiceRequest("r-1", "POST", "/x", {})
    read = await BufferedRequest.read(Request(scope | {"stepspec.request": record}, receive))
    assert read == BufferedRequest({"method": "POST", "path": "/x"}, (HEADERS[0], (b"x-request-id", b"r-1")), b"hallo")


@pytest.mark.parametrize(
    ("sent", "left"), [(b"60", b"49.500"), (b"11", b"1.000"), (b"soon", b"soon")]
)  # fmt: skip
def test_a_client_that_waits_has_less_left_later(sent: bytes, left: bytes) -> None:
    other = (b"x-other", b"60")
    later = buffered((b"x-stainless-read-timeout", sent), other).after(10.5)
    assert later.headers == ((b"x-stainless-read-timeout", left), other)


async def test_pieces_arrive_as_they_are_sent_and_together_without_a_reader() -> None:
    gate = asyncio.Semaphore(0)

    async def pieces() -> AsyncGenerator[bytes]:
        for number in range(4):
            await gate.acquire()
            yield b"%d" % number

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await StreamingResponse(pieces())(scope, receive, send)

    bodies = list[list[bytes]]()
    async with aclosing(stream_messages(app, buffered())) as answer:
        async for messages in answer:
            if body := [message["body"] for message in messages if message.get("body")]:
                bodies.append(body)
            gate.release()
            if body == [b"1"]:
                gate.release()
                for _ in range(50):
                    await asyncio.sleep(0)
    assert bodies == [[b"0"], [b"1"], [b"2", b"3"]]


async def test_whoever_leaves_is_a_client_that_went_away() -> None:
    noticed = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await receive()
        assert (await receive())["type"] == "http.disconnect"
        noticed.set()

    async with aclosing(stream_messages(app, buffered())) as answer:
        assert await anext(answer) == ()
        assert len(await anext(answer)) == 1
        assert not noticed.is_set()
    assert noticed.is_set()
    assert len(asyncio.all_tasks()) == 1


async def test_an_application_that_does_not_notice_is_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_proxy, "CLOSE_SECONDS", 0.01)
    cancelled = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    async with aclosing(stream_messages(app, buffered())) as answer:
        await anext(answer)
        await asyncio.sleep(0)
    assert cancelled.is_set()


async def test_an_error_of_the_application_is_raised_after_its_messages() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        raise ValueError("broken")

    answer = stream_messages(app, buffered())
    assert [len(await anext(answer)) for _ in range(2)] == [0, 1]
    with pytest.raises(ValueError, match="broken"):
        await anext(answer)


# Metrics.


async def test_metrics_are_those_of_all() -> None:
    reply = await fetch(Elsewhere([]).ask, "/metrics", method="GET")
    assert reply.headers["content-type"].startswith("text/plain")
    assert [line for line in reply.body.decode().splitlines() if not line.startswith("#")] == [
        'x_total{replica="a"} 1.0',
        'x_total{replica="b"} 1.0',
    ]


def counted(count: int) -> bytes:
    registry = CollectorRegistry()
    Counter("requests", "Requests.", ["status"], registry=registry).labels("200").inc(count)
    Gauge("running", "At work.", registry=registry).set(count / 2)
    Histogram("seconds", "How long.", buckets=(1, 2), registry=registry).observe(count)
    Info("about", "The version.", registry=registry).info({"version": '0"1'})
    return generate_latest(registry)


def test_every_sample_gets_the_label_of_its_replica_and_nothing_else_changes() -> None:
    scrapes = {"a": counted(1), "b": counted(3)}
    found = {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(merge_metrics(scrapes).decode())
        for sample in family.samples
    }
    expected = {
        (sample.name, *sorted({**sample.labels, "replica": name}.items())): sample.value
        for name, text in scrapes.items()
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }
    assert found == expected
    assert found["requests_total", ("replica", "b"), ("status", "200")] == 3


def test_a_family_is_described_once() -> None:
    lines = merge_metrics({"a": counted(1), "b": counted(2)}).decode().splitlines()
    described = [line for line in lines if line.startswith("#")]
    assert len(described) == len(set(described))
    assert "# TYPE requests_total counter" in described
    assert "# TYPE seconds histogram" in described
    assert 'about_info{replica="a",version="0\\"1"} 1.0' in lines
