from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence

import httpx2
import pytest

from stepspec.orchestrator.endpoints import Deadlines
from stepspec.orchestrator.endpoints.client import Events
from stepspec.orchestrator.endpoints.vllm_protocol import Call
from stepspec.orchestrator.errors import EndpointUnavailable, MalformedReply

STREAM = b": ping\n\ndata: {1}\n\nevent: x\r\ndata:{2}\r\n\r\ndata: {3}\n\ndata: [DONE]\n\ndata: {4}\n\n"


def events(pieces: Sequence[bytes]) -> Events:
    async def content() -> AsyncGenerator[bytes]:
        for piece in pieces:
            yield piece

    response = httpx2.Response(200, content=content())
    return Events(Call("small", "http://host", "write"), response, Deadlines(), ends=float("inf"))


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
async def test_events_are_found_however_the_bytes_arrive(size: int) -> None:
    stream = events([STREAM[at : at + size] for at in range(0, len(STREAM), size)])
    await stream.prime()
    read = [event async for event in _all(stream)]
    await stream.close()
    assert read == [b"{1}", b"{2}", b"{3}"]


async def test_a_stream_that_breaks_off_is_a_failure() -> None:
    stream = events([b"data: {1}\n\nda"])
    await stream.prime()
    assert await stream.next() == b"{1}"
    with pytest.raises(EndpointUnavailable, match="broke off"):
        await stream.next()
    await stream.close()


async def test_a_line_without_end_is_refused_before_it_fills_the_memory() -> None:
    mebibyte = b"x" * 2**20
    stream = events([b"data: ", *[mebibyte] * 15, mebibyte[6:], b"\n", *[mebibyte] * 16, b"x"])
    await stream.prime()
    assert await stream.next() == mebibyte * 15 + mebibyte[6:]
    with pytest.raises(MalformedReply, match="a line of a stream has more than 16 MiB"):
        await stream.next()
    await stream.close()


async def _all(stream: Events) -> AsyncGenerator[bytes]:
    while (event := await stream.next()) is not None:
        yield event
