from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence

import pytest

from stepspec.orchestrator.endpoints import Deadlines
from stepspec.orchestrator.errors import EndpointUnavailable, MalformedReply
from stepspec.orchestrator.http import sse
from stepspec.orchestrator.http.http_errors import Call
from stepspec.orchestrator.http.sse import EventReader, Events

STREAM = (
    b": ping\n\ndata: {1}\n\nevent: x\r\ndata:{2}\r\n\r\ndata: {3}\n\ndata: [DONE]\n\ndata: {4}\n\n"
)


def events(pieces: Sequence[bytes]) -> Events:
    async def content() -> AsyncGenerator[bytes]:
        for piece in pieces:
            yield piece

    def release() -> None:
        pass

    return Events(
        Call("small", "http://host", "write"), content(), release, Deadlines(), ends=float("inf")
    )


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
async def test_events_are_found_however_the_bytes_arrive(size: int) -> None:
    stream = events([STREAM[at : at + size] for at in range(0, len(STREAM), size)])
    await stream.prime()
    read = [event async for event in _all(stream)]
    await stream.close()
    assert read == [b"{1}", b"{2}", b"{3}"]


async def test_a_response_that_goes_on_after_the_end_of_its_stream_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sse, "CLOSING_SECONDS", 0.01)
    released = list[bool]()

    async def content() -> AsyncGenerator[bytes]:
        yield b"data: [DONE]\n\n"
        await asyncio.sleep(9)

    def release() -> None:
        released.append(True)

    stream = Events(
        Call("small", "http://host", "write"), content(), release, Deadlines(), ends=float("inf")
    )
    await stream.prime()
    await stream.close()
    assert released


async def test_a_stream_that_breaks_off_is_a_failure() -> None:
    stream = events([b"data: {1}\n\nda"])
    await stream.prime()
    assert await stream.next() == b"{1}"
    with pytest.raises(EndpointUnavailable, match="broke off"):
        await stream.next()
    await stream.close()


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        pytest.param([b"data: 1", b"", b"data: 2", b""], [b"1", b"2"], id="one line each"),
        pytest.param(
            [b"data:1", b"", b"data:  2", b""],
            [b"1", b" 2"],
            id="the space after the colon is optional",
        ),
        pytest.param(
            [b"data: {", b'data: "a": 1', b"data:}", b""],
            [b'{\n"a": 1\n}'],
            id="several lines of data",
        ),
        pytest.param([b": ping", b"", b"data: 1", b": ping", b""], [b"1"], id="comments"),
        pytest.param([b"\xef\xbb\xbfdata: 1", b""], [b"1"], id="a byte order mark"),
        pytest.param(
            [b"\xef\xbb\xbf", b"data: \xef\xbb\xbf1", b""],
            [b"\xef\xbb\xbf1"],
            id="one of them is text",
        ),
        pytest.param(
            [b"data: say data: [DONE]", b""],
            [b"say data: [DONE]"],
            id="text that looks like a line",
        ),
        pytest.param(
            [b"id: 1", b"retry: 5", b"event: x", b"data: 1", b"dat", b"database: 2", b""],
            [b"1"],
            id="fields",
        ),
        pytest.param(
            ["data: é🙂\x85\u2028x\x0b\x0c\x1c".encode(), b""],
            ["é🙂\x85\u2028x\x0b\x0c\x1c".encode()],
            id="UTF-8",
        ),
        pytest.param([b"data: \xff", b""], [b"\xff"], id="bytes that are no text"),
        pytest.param(
            [b"event: x", b"", b"data", b"", b"data: 1", b""], [b"1"], id="events without data"
        ),
        pytest.param(
            [b"", b"", b"data: 1", b"", b"", b"data: 2"], [b"1"], id="an event that does not end"
        ),
    ],
)
def test_events_follow_the_rules_of_lines(
    end: bytes, lines: Sequence[bytes], expected: Sequence[bytes]
) -> None:
    stream = b"".join(line + end for line in lines)
    for size in (1, 2, 3, 5, len(stream)):
        reader = EventReader()
        read = [
            event
            for at in range(0, len(stream), size)
            for event in reader.feed(stream[at : at + size])
        ]
        assert [event.data for event in read if event.data] == expected
        assert b"".join(event.raw for event in read) + reader.rest == stream


def test_an_event_is_read_with_its_last_byte() -> None:
    reader = EventReader()
    assert reader.feed(b"event: a\r\ndata: 1\r\n") == []
    assert reader.feed(b"\r") == [(b"1", b"event: a\r\ndata: 1\r\n\r")]
    assert reader.feed(b"\ndata: 2\n\n") == [(b"2", b"\ndata: 2\n\n")]


@pytest.mark.parametrize("end", [b"\n", b""])
async def test_the_last_blank_line_may_be_missing(end: bytes) -> None:
    stream = events([b"data: {1}\n\ndata: [DONE]" + end])
    await stream.prime()
    assert [event async for event in _all(stream)] == [b"{1}"]
    await stream.close()


@pytest.mark.parametrize(
    "line", [b"x", b"\n: x"], ids=["a line without end", "lines without a blank one"]
)
async def test_an_event_without_end_is_refused_before_it_fills_the_memory(
    line: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sse, "MAX_EVENT_BYTES", 2**20)
    whole = b"data: " + b"x" * (2**20 - 8) + b"\n\n"
    stream = events([whole, *[line * (2**16 // len(line))] * 16, line])
    await stream.prime()
    assert await stream.next() == whole[6:-2]
    with pytest.raises(MalformedReply, match="an event of a stream has more than 1 MiB"):
        await stream.next()
    await stream.close()


async def _all(stream: Events) -> AsyncGenerator[bytes]:
    while (event := await stream.next()) is not None:
        yield event
