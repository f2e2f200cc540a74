"""A request and its answer without a connection."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from stepspec.orchestrator.service.ray_proxy import BufferedRequest, stream_messages
from stepspec.orchestrator.service.watch.records import ServiceRequest

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


async def test_a_client_that_disconnects_before_its_body_is_noticed() -> None:
    async def receive() -> dict[str, object]:
        return {"type": "http.disconnect"}

    record = ServiceRequest("r", "POST", "/x", {})
    scope: Scope = {"type": "http", "method": "POST", "path": "/x", "headers": [], "stepspec.request": record}
    with pytest.raises(ClientDisconnect):
        await BufferedRequest.read(Request(scope, receive))


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


async def test_a_reader_that_is_cancelled_leaves_too() -> None:
    began, noticed = asyncio.Event(), asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        began.set()
        await receive()
        noticed.set()

    async def read() -> None:
        async for _ in stream_messages(app, buffered()):
            pass

    reading = asyncio.create_task(read())
    await began.wait()
    reading.cancel()
    await asyncio.wait([reading])
    assert noticed.is_set()


async def test_an_application_that_does_not_notice_is_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stepspec.orchestrator.service.ray_proxy.CLOSE_SECONDS", 0.01)
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


async def test_an_answer_without_a_body_is_an_answer() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await Response(status_code=204)(scope, receive, send)

    messages = [message async for messages in stream_messages(app, buffered()) for message in messages]
    assert (messages[0]["status"], messages[-1]["body"]) == (204, b"")
