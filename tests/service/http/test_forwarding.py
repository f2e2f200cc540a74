"""
Requests that pass through to a served model: streams by the rules of their lines, and servers that
fail.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import openai
import orjson
import pytest
from aiohttp import web

from stepspec.orchestrator.endpoints.settings import Deadlines
from stepspec.orchestrator.errors import StepspecError
from stepspec.orchestrator.http.sse import EventReader
from stepspec.service.http.upstream import BrokenAnswer, ForwardedAnswer, wants_top_logprobs

from ...stand_in import Refuse
from ..served import (
    STREAM,
    TURN,
    Behind,
    Noting,
    Reply,
    Served,
    change,
    chosen,
    down,
    move,
    passing,
    put_behind,
    serving,
    until,
)

BY = {"authorization": "Bearer b-key"}
EVENTS: tuple[dict[str, Any], ...] = (
    {"choices": [{"delta": {"content": "é ☃ data: x"}}]},
    {"choices": [{"text": 'a\u2028b\u0085c\n\ndata: {"usage": 1}'}]},
    {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 9}},
)


def stream(
    end: str, *, bom: bool = False, space: str = " ", comments: bool = False, lines: bool = False
) -> bytes:
    """Return a stream of `EVENTS` whose lines end with *end*."""
    parts = [": hello" + end + end] if comments else []
    for event in EVENTS:
        data = orjson.dumps(event).decode()
        halves = data.replace(", ", ",").split("[", 1) if lines else [data]
        halves = [halves[0] + "[", *halves[1:]] if lines else halves
        fields = [f"data:{space}{half}" for half in halves]
        more = [": a comment", "id: 7", "event: chunk", "retry: 10"] if comments else []
        parts.append(end.join([*more, *fields]) + end + end)
    parts.append(f"data:{space}[DONE]{end}{end}")
    return (b"\xef\xbb\xbf" if bom else b"") + "".join(parts).encode()


STREAMS = {
    "LF": stream("\n"),
    "CRLF": stream("\r\n"),
    "CR": stream("\r"),
    "a byte order mark": stream("\n", bom=True),
    "a byte order mark and CRLF": stream("\r\n", bom=True),
    "no space": stream("\n", space=""),
    "comments and other fields": stream("\r\n", comments=True),
    "several lines of data": stream("\n", lines=True),
    "blank lines first": b"\r\n\n" + stream("\n"),
    "spaces around the data": stream("\n", space="  ").replace(b"}]}\n", b"}]} \t\n"),
    "fields without a colon": b"event\ndata\n\nid\r" + stream("\n"),
    "a line of data without text": stream("\n", space="\ndata: "),
    "all at once": stream("\r", bom=True, space="", comments=True, lines=True),
}


def pieces(content: bytes, size: int) -> list[bytes]:
    return [content[at : at + size] for at in range(0, len(content), size)]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 10_000])
@pytest.mark.parametrize("kind", STREAMS)
def test_a_stream_is_read_by_the_rules_of_its_lines_however_it_is_cut(kind: str, size: int) -> None:
    content = STREAMS[kind]
    answer = ForwardedAnswer()
    passed = [answer.add(piece) for piece in pieces(content, size)]
    assert b"".join(passed) + answer.finish() == content


@pytest.mark.parametrize("kind", ["LF", "CRLF", "fields without a colon", "all at once"])
async def test_a_client_gets_every_event_as_the_server_sends_it(kind: str) -> None:
    async with passing(Behind(pieces(STREAMS[kind], 50), STREAM)) as served:
        reply = await served.post(
            "/v1/completions", {"model": "huge", "prompt": "x", "stream": True}
        )
    assert reply.body == STREAMS[kind]


def test_an_event_that_did_not_end_is_kept_back() -> None:
    answer = ForwardedAnswer()
    assert answer.add(b"data: {}\n\ndata: {}\n\ndata: {") == b"data: {}\n\ndata: {}\n\n"
    with pytest.raises(BrokenAnswer):
        answer.finish()


# Streams that break off.

HALF = b'data: {"choices": [{"text": "a"}]}\n\ndata: {"choices": [{"te'
CREATED = (
    b"event: response.created\ndata:"
    b' {"type":"response.created","sequence_number":0,"response":{"id":"resp_1"}}\n\n'
)
DELTA = (
    b'event: x\r\ndata: {"type":"response.x.delta","sequence_number":41,"delta":"data:'
    b' {"}\r\n\r\nevent: y\r\n'
)


class BreaksOff(Behind):
    """A server that closes the connection in the middle of an answer."""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        response = await super().answer(request)
        await asyncio.sleep(0.1)  # What has arrived together with the end of a connection is lost.
        assert request.transport is not None
        request.transport.close()
        return response


@pytest.mark.parametrize(
    ("path", "begun"),
    [
        ("/v1/chat/completions", HALF),
        ("/v1/completions", HALF[:-1] + b"\r"),
        ("/v1/messages", HALF + b'xt": "b"}]}'),
        ("/v1/chat/completions", HALF + b'xt": "b"}]}\n'),
    ],
)
async def test_a_stream_that_breaks_off_inside_an_event_ends_with_an_error_of_its_own(
    begun: bytes, path: str
) -> None:
    async with passing(BreaksOff([begun], STREAM)) as served:
        body = {"model": "huge", "messages": [TURN], "max_tokens": 9, "stream": True}
        reply = await served.post(path, body)
        await until(lambda: served.recorded.requests)
    first, *_, error = [
        event for event in EventReader().feed(reply.body) if event.data not in (b"", b"[DONE]")
    ]
    assert orjson.loads(first.data) == {"choices": [{"text": "a"}]}
    assert (
        "the answer broke off: did the server die?" in orjson.loads(error.data)["error"]["message"]
    )
    assert served.recorded.requests[0].error is not None


CUT = (
    b'{"choices": [{"finish_reason": null}]}',
    b'{"type": "response.created"}',
    b'{"type": "ping"}',
)
RESTS = (HALF, b"data: {}\n\nda", b"data: 1\n\nevent: x\n", b"data: [DONE", b": hello\n\n")


@pytest.mark.parametrize("rest", [*RESTS, *[b"data: %b\n\n" % data for data in CUT]])
def test_an_end_before_that_of_a_stream_is_a_failure(rest: bytes) -> None:
    answer = ForwardedAnswer()
    answer.add(rest)
    with pytest.raises(BrokenAnswer):
        answer.finish()


@pytest.mark.parametrize(
    "rest",
    [
        *(
            b"data: [DONE]",
            b'data: {"a": 1}\r',
            b"data: 1\n\n: a comment",
            b'data: {"choices": []}',
        ),
        *(
            b'data: {"choices": [{"finish_reason": "stop"}]}',
            b'data: {"type": "message_stop"}',
            b'data: {"choices": 5}',
        ),
    ],
)
def test_only_the_last_blank_line_may_be_missing(rest: bytes) -> None:
    answer = ForwardedAnswer()
    assert (
        EventReader().feed(answer.add(rest) + answer.finish())[0].data
        == EventReader().feed(rest + b"\n\n")[0].data
    )


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/messages"])
async def test_a_stream_of_events_with_names_that_breaks_off_ends_with_one_named_error(
    path: str,
) -> None:
    async with passing(BreaksOff([CREATED, DELTA], STREAM)) as served:
        body = {"model": "huge", "input": "x", "messages": [TURN], "max_tokens": 9, "stream": True}
        reply = await served.post(path, body)
    last = EventReader().feed(reply.body)[-1]
    assert last.raw.startswith(b"event: error\n")
    assert "the answer broke off" in orjson.loads(last.data)["error"]["message"]


async def test_openais_sdk_raises_the_error_of_a_response_that_breaks_off() -> None:
    async with (
        passing(BreaksOff([CREATED], STREAM)) as served,
        openai.AsyncOpenAI(base_url=f"{served.base}/v1", api_key="k", max_retries=0) as sdk,
    ):
        events = await sdk.responses.create(model="huge", input="x", stream=True)
        with pytest.raises(openai.APIError, match="the answer broke off"):
            _ = [event async for event in events]


@pytest.mark.parametrize(
    ("kind", "content", "words"),
    [
        (
            "application/json",
            b'{"error": {"message": "the KV cache is full", "code": 503}}',
            "the KV cache is full",
        ),
        (
            "application/json",
            b'{"error": {"message": "no such adapter", "code": 404}}',
            "no such adapter",
        ),
        (
            "application/json",
            b'{"error": {"message": "the prompt is empty", "code": 400}}',
            "the prompt is empty",
        ),
        ("application/json", b'{"choices": []}', "in one piece"),
        ("text/html", b"<html><title>Gateway</title></html>", "large model at"),
        ("text/event-stream", b'{"error": {"message": "busy", "code": 503}}', "busy"),
        ("text/event-stream", b"\n<html><title>Gateway</title></html>", "Gateway"),
        ("application/json", b'{"error": null}', "error"),
        ("text/event-stream", b'\xef\xbb\xbf{"error": {"message": "busy", "code": 503}}', "busy"),
        ("text/event-stream", b"\xef\xbb\xbf\r\n<!doctype html><title>Gateway</title>", "Gateway"),
        ("text/event-stream", b"upstream connect error", "upstream connect error"),
        *[("text/event-stream", nothing, "an empty answer") for nothing in (b"", b" \n\n")],
        ("application/json", b"", "an empty answer"),
    ],
)
async def test_an_answer_that_is_no_stream_fails_in_the_words_of_the_server(
    kind: str, content: bytes, words: str
) -> None:
    async with passing(Behind([content] if content else [], kind)) as served:
        reply = await served.post(
            "/v1/completions", {"model": "huge", "prompt": "x", "stream": True}
        )
    assert reply.status in (400, 500, 503)
    assert words in reply.error["message"]
    assert "did the server die" not in reply.error["message"]


@pytest.mark.parametrize(
    ("status", "kind", "content", "words"),
    [
        (
            200,
            "application/json",
            b'{"error": {"message": "the KV cache is full"}}',
            "the KV cache is full",
        ),
        (200, "text/html", b"<html><title>Gateway</title></html>", "Gateway"),
        (200, "text/event-stream", b"<html><title>Gateway</title></html>", "Gateway"),
        (200, "application/json", b"null", "not a JSON object"),
        (204, "application/json", b"", "an empty answer"),
        (304, "application/json", b"", "an empty answer"),
        (302, "application/json", b"", "an empty answer"),
    ],
)
async def test_an_answer_in_one_piece_that_is_none_is_an_error(
    status: int, kind: str, content: bytes, words: str
) -> None:
    async with passing(Behind([content] if content else [], kind, status)) as served:
        replies = [await ask(served, stream=False), await served.post("/v1/messages", FORWARDED)]
    assert [reply.status for reply in replies] == [503, 503]
    assert all(words in reply.error["message"] for reply in replies)


async def test_the_error_of_an_answer_in_one_piece_within_the_responses_api_is_its_own() -> None:
    content = (
        b'{"object": "response", "status": "failed", "error": {"code": "server_error", "message":'
        b' "x"}}'
    )
    async with passing(Behind([content])) as served:
        assert (await ask(served, stream=False)).body == content


# Replicas that fail.


def failing(status: int) -> Behind:
    return Behind(
        [b"<html>" if status == 200 else b'{"error": {"message": "out of order"}}'], status=status
    )


@asynccontextmanager
async def two(one: Behind, other: Behind, **deadlines: float) -> AsyncGenerator[Served]:
    """
    Serve a large model with two replicas, where the requests that pass through go to *one* and
    *other*.
    """
    replica = Noting(("x",), digits={"9": -0.1}, names=("huge",))
    async with serving(replicas=[replica]) as served:
        for at, each in enumerate((one, other)):
            await put_behind(served, each, replica=at)
        endpoint = served.service.context.offer.engine.large
        for server in endpoint.up:
            shorter = server.settings.deadlines.model_copy(update=deadlines)
            change(server, deadlines=shorter)
        yield served


FORWARDED = {"model": "huge", "prompt": "x", "max_tokens": 2, "logprobs": 0}


async def ask(served: Served, *, stream: bool, session: str = "") -> Reply:
    headers = {"x_session_id": session} if session else {}
    return await served.post("/v1/completions", {**FORWARDED, "stream": stream}, **headers)


def streaming(*content: bytes) -> Behind:
    return Behind([*content, b"data: [DONE]\n\n"], STREAM)


SESSIONS = ("", "mine", "yours", "ours")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("status", [500, 502, 503, 504, 404, 405, 200])
async def test_a_replica_that_fails_is_passed_over_before_the_first_byte(
    status: int, stream: bool
) -> None:
    good = streaming(b"data: {}\n\n") if stream else Behind()
    async with two(failing(status), good) as served:
        replies = [
            await ask(
                served,
                stream=stream,
                session=session,
            )
            for session in SESSIONS * 2
        ]
    assert {(reply.status, reply.body) for reply in replies} == {(200, b"".join(good.pieces))}
    assert len(good.got) == 8


async def test_a_replica_that_never_begins_a_stream_is_passed_over_within_its_deadline() -> None:
    async with (
        two(Behind(silent=True), streaming(b"data: {}\n\n"), first=1.0) as served,
        asyncio.timeout(30),
    ):
        replies = [await ask(served, stream=True, session=session) for session in SESSIONS]
    assert [reply.status for reply in replies] == [200] * 4


class Ends(Behind):
    """A server that falls silent after the beginning of an answer, or ends it there."""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        response = await super().answer(request)
        if self.kind == "application/json":
            await asyncio.Event().wait()
        return response


@pytest.mark.parametrize(
    ("kind", "status", "begun"),
    [
        ("text/event-stream", 200, b'data: {"choices"'),
        ("application/json", 400, b'{"error"'),
        ("application/json", 500, b""),
        ("application/json", 200, b'{"choices"'),
    ],
)
async def test_a_replica_that_stops_before_its_first_event_or_in_an_error_is_passed_over(
    kind: str, status: int, begun: bytes
) -> None:
    ends = Ends()
    ends.kind = kind
    ends.status = status
    ends.pieces = [begun] if begun else []
    asked = status != 200 or kind == STREAM
    good = streaming(b"data: {}\n\n") if asked else Behind()
    async with two(ends, good, between=1.0) as served, asyncio.timeout(30):
        replies = [
            await ask(
                served,
                stream=asked,
                session=session,
            )
            for session in SESSIONS
        ]
    assert [reply.status for reply in replies] == [200] * 4
    assert {reply.body for reply in replies} == {b"".join(good.pieces)}


async def test_an_error_is_read_whole_however_the_network_divides_it() -> None:
    behind = failing(400)
    behind.pieces = [
        b'{"error": {"message": "This model\'s maximum ',
        b'context length is 4096 tokens."}}',
    ]
    behind.gate = asyncio.Event()
    async with two(behind, behind) as served:
        asking = asyncio.create_task(ask(served, stream=True))
        await until(lambda: behind.got)
        await asyncio.sleep(0.1)  # the first piece is on its way
        behind.gate.set()
        reply = await asking
    assert (reply.status, reply.error["code"]) == (400, "context_length_exceeded")


async def test_an_answer_in_one_piece_may_take_longer_than_a_first_token() -> None:
    slow = Behind(silent=True)
    async with two(slow, slow, first=0.1) as served:
        waiting = asyncio.create_task(ask(served, stream=False))
        await until(lambda: slow.got)
        await asyncio.sleep(0.5)
        assert len(slow.got) == 1
        assert not waiting.done()
        waiting.cancel()
        await asyncio.wait([waiting])


@pytest.mark.parametrize(
    ("status", "code", "pause"),
    [(503, "upstream_unavailable", "7"), (404, "upstream_rejected", None)],
)
async def test_if_all_fail_the_client_gets_the_words_of_the_last_one(
    status: int, code: str, pause: str | None
) -> None:
    async with two(failing(status), failing(status)) as served:
        reply = await ask(served, stream=True)
    assert (reply.status, reply.error["code"], reply.headers.get("Retry-After")) == (
        status,
        code,
        pause,
    )
    assert "out of order" in reply.error["message"]


async def test_the_pause_that_a_server_wants_reaches_the_client_as_seconds() -> None:
    date = format_datetime(datetime.now(UTC) + timedelta(hours=1), usegmt=True)
    for pause in ("3600", date):
        async with serving(policy="large") as served:
            served.large.faults.extend(
                [
                    Refuse(
                        503,
                        "busy",
                        (("Retry-After", pause),),
                    )
                ]
                * 9
            )
            replies = [await served.chat(), await ask(served, stream=True)]
        assert [reply.status for reply in replies] == [503, 503]
        assert all(3500 < int(reply.headers["Retry-After"]) <= 3600 for reply in replies)


@pytest.mark.parametrize("status", [400, 429])
async def test_an_answer_about_the_request_itself_is_passed_on_from_the_first_one(
    status: int,
) -> None:
    one = failing(status)
    other = failing(status)
    async with two(one, other) as served:
        reply = await ask(served, stream=True)
        assert down(served) == {}
    assert (reply.status, len(one.got) + len(other.got)) == (status, 1)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        (
            "/v1/chat/completions",
            "This model's maximum context length is 4096 tokens. However, you requested 9000.",
        ),
        (
            "/v1/completions",
            "The decoder prompt (length 9000) is longer than the maximum model length of 4096.",
        ),
        (
            "/v1/responses",
            "The input (9000 tokens) is longer than the model's context length (4096 tokens).",
        ),
        ("/v1/messages", "Input is too long for requested model."),
    ],
)
async def test_a_prompt_that_is_too_long_is_refused_with_the_same_code_on_every_path(
    path: str, message: str
) -> None:
    error = {"error": {"message": message, "type": "BadRequestError", "code": 400}}
    behind = Behind([orjson.dumps(error)], status=400)
    async with two(behind, behind) as served:
        content = {
            "model": "huge",
            "messages": [TURN],
            "prompt": "x",
            "input": "x",
            "max_tokens": 2,
        }
        reply = await served.post(path, content)
    assert reply.status == 400
    assert message in reply.error["message"]
    code = reply.error["details"]["error_code"] if path == "/v1/messages" else reply.error["code"]
    assert code == "context_length_exceeded"


@pytest.mark.parametrize(
    ("content", "likeliest"),
    [
        ({"logprobs": True, "top_logprobs": 5}, True),
        ({"logprobs": True}, False),
        ({"logprobs": 3}, True),
        ({"logprobs": 0}, False),
        ({"logprobs": None, "top_logprobs": None}, False),
        ({}, False),
    ],
)
def test_requests_for_likeliest_tokens_are_known(content: dict[str, Any], likeliest: bool) -> None:
    assert wants_top_logprobs(content) is likeliest


async def test_a_failure_has_the_replica_probed_and_a_stream_that_breaks_off_too() -> None:
    async with two(failing(500), streaming(b"data: {}\n\n")) as served:
        endpoint = served.service.context.offer.engine.large
        reported = list[str]()
        report = endpoint.report

        def note(url: str, exc: StepspecError) -> None:
            reported.append(str(exc))
            report(url, exc)

        endpoint.report = note  # type: ignore[method-assign]
        await ask(served, stream=True)
        breaks = BreaksOff([HALF], STREAM)
        await put_behind(served, breaks, replica=0)
        await until(lambda: not down(served))
        await put_behind(served, breaks, replica=1)
        await ask(served, stream=True)
    assert any("the answer broke off" in each for each in reported)


async def test_a_priority_that_the_server_refuses_is_left_out_from_then_on() -> None:
    class Refusing(Behind):
        async def answer(self, request: web.Request) -> web.StreamResponse:
            body = await request.json()
            refusal = (
                b'{"error": {"message": "Got priority 3 but priority scheduling is not enabled"}}'
            )
            self.status, self.pieces = (400, [refusal]) if "priority" in body else (200, [b"{}"])
            return await super().answer(request)

    behind = Refusing()
    settings = chosen(clients={"b": {"key": "b-key", "priority": 5}})
    async with passing(behind, settings) as served:
        replies = [
            await served.post("/v1/completions", {"model": "huge", "prompt": "x"}, **BY)
            for _ in range(2)
        ]
    assert [reply.status for reply in replies] == [200, 200]
    assert ["priority" in orjson.loads(body) for _, _, body in behind.got] == [True, False, False]


async def test_an_error_that_mentions_priorities_leaves_them_on() -> None:
    behind = Behind(
        [b'{"error": {"message": "1 error: input \'my priority is high\'"}}'], status=400
    )
    async with passing(behind, chosen(clients={"b": {"key": "b-key", "priority": 5}})) as served:
        replies = [
            await served.post(
                "/v1/completions", {"model": "huge", "prompt": "my priority is high"}, **BY
            )
            for _ in range(2)
        ]
    assert [reply.status for reply in replies] == [400, 400]
    assert ["priority" in orjson.loads(body) for _, _, body in behind.got] == [True, False] * 2


async def test_cookies_of_a_server_reach_no_other_request() -> None:
    class Sticky(Behind):
        async def answer(self, request: web.Request) -> web.StreamResponse:
            self.got.append((request.path, dict(request.headers), await request.read()))
            response = web.json_response({"any": "thing"})
            response.set_cookie("route", "pod-1")
            return response

    behind = Sticky()
    async with serving() as served:
        runner = await put_behind(served, behind)
        move(
            served.service.context.offer.engine.large, f"http://localhost:{runner.addresses[0][1]}"
        )
        for session in ("one", "two"):
            await ask(served, stream=False, session=session)
    assert [head.get("Cookie") for _, head, _ in behind.got] == [None, None]


async def test_a_stream_may_be_silent_while_its_server_is_healthy() -> None:
    """As one is whose parser of calls keeps its text until a call is whole."""
    behind = Behind(
        [b'data: {"choices": [{"index": 0}]}\n\n', b"data: [DONE]\n\n"],
        STREAM,
        gate=asyncio.Event(),
    )
    async with passing(behind) as served:
        large: Any = served.service.context.offer.engine.large
        (server,) = large.up
        change(server, deadlines=Deadlines(between=0.3))
        assert behind.gate
        asyncio.get_running_loop().call_later(1.0, behind.gate.set)
        reply = await ask(served, stream=True)
    assert (reply.status, reply.body.endswith(b"data: [DONE]\n\n")) == (200, True)
    assert b"broke off" not in reply.body


async def test_health_feeds_the_breaker_and_readiness_follows_all_servers() -> None:
    status = 503
    other = Noting(("x",), digits={"9": -0.1}, names=("huge",))
    async with serving(chosen(health_every=0.05), replicas=[other]) as served:
        other.health = status
        await until(lambda: down(served))
        assert f"HTTP {status}" in str(down(served))
        one_ill = (
            (await served.get("/health/readiness")).json,
            (await ask(served, stream=False)).status,
        )
        served.large.health = status
        large = served.service.context.offer.engine.large
        await until(lambda: not large.usable)
        all_ill = await served.get("/health/readiness")
        served.large.health = other.health = 200
        await until(lambda: large.usable)
    assert one_ill == ({"status": "ready", "small": True, "large": True}, 200)
    assert (all_ill.status, all_ill.json) == (
        503,
        {"status": "down", "small": True, "large": False},
    )
