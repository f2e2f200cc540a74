"""
What the real service does with malformed HTTP on a raw socket: no byte of it becomes a request of
its own.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress

import orjson

from stepspec.service.http.app import MAX_HEADERS, listen

from ..served import TURN, Served, serving

BODY = orjson.dumps({"model": "large", "messages": [TURN]})
SMUGGLED = b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n"
HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json"
CHUNKED = b"Transfer-Encoding: chunked"
END = b"0\r\n\r\n"
# bytes that are read from a socket at once, which are counted after they are parsed
READ = 256 * 1024


def request(*headers: bytes, body: bytes = b"") -> bytes:
    """Return a request for a run with these *headers*."""
    return b"\r\n".join((HEAD, *headers, b"", body))


def chunks(text: bytes) -> bytes:
    """Return a request whose body is this *text* of chunks."""
    return request(CHUNKED, body=text)


@asynccontextmanager
async def connected(
    served: Served,
) -> AsyncGenerator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Connect to the service, and speak plain bytes."""
    host, _, port = served.base.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield reader, writer
    finally:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


async def exchange(served: Served, data: bytes) -> bytes:
    """Send *data* and return all that comes back, until the service closes the connection."""
    async with connected(served) as (reader, writer), asyncio.timeout(10):
        writer.write(data)
        return await reader.read()


def paths(served: Served) -> list[str]:
    return [request.path for request in served.recorded.requests]


MALFORMED = {
    "both lengths": request(b"Content-Length: 6", CHUNKED, body=END),
    "both lengths, chunks first": request(CHUNKED, b"Content-Length: 6", body=END),
    "both lengths, another case": request(
        b"content-length: 6", b"transfer-encoding: CHUNKED", body=END
    ),
    "two lengths": request(b"Content-Length: 0", b"Content-Length: 5"),
    "two lengths in one header": request(b"Content-Length: 0, 5"),
    "a signed length": request(b"Content-Length: +0"),
    "a negative length": request(b"Content-Length: -1"),
    "a length that is not decimal": request(b"Content-Length: 0x0"),
    "a length beyond 64 bits": request(b"Content-Length: 18446744073709551616"),
    "a coding after the chunks": request(b"Transfer-Encoding: chunked, identity", body=END),
    "two codings": request(CHUNKED, b"Transfer-Encoding: identity", body=END),
    "an unknown coding": request(b"Transfer-Encoding: xchunked", body=END),
    "a coding behind a control character": request(b"Transfer-Encoding: \x0bchunked", body=END),
    "a coding in HTTP/1.0": request(CHUNKED, body=END).replace(b"HTTP/1.1", b"HTTP/1.0"),
    "a chunk's size that is not hex": chunks(b"zz\r\nabc\r\n" + END),
    "a chunk's size with a prefix": chunks(b"0x3\r\nabc\r\n" + END),
    "a chunk's negative size": chunks(b"-1\r\nabc\r\n" + END),
    "a chunk's size beyond 64 bits": chunks(b"10000000000000000\r\nabc\r\n" + END),
    "a chunk larger than its size": chunks(b"3\r\nabcdef\r\n" + END),
    "a chunk's size with half a line end": chunks(b"3\nabc\r\n" + END),
    "a space before the colon": request(b"Content-Length : 0"),
    "a space before the colon of a coding": request(b"Transfer-Encoding : chunked", body=END),
    "a header without a colon": request(b"Content-Length"),
    "a folded header": request(b"X-Any: a", b" b", b"Content-Length: 0"),
    "a folded length": request(b"Content-Length:", b" %d" % len(SMUGGLED)),
    "a folded coding": request(CHUNKED.replace(b" ", b"\r\n "), body=END),
    "half line ends": request(b"Content-Length: 0").replace(b"\r\n", b"\n"),
    "a carriage return in a header": request(b"X-Any: a\rContent-Length: %d" % len(SMUGGLED)),
    "a NUL in a header": request(b"X-Any: a\0b", b"Content-Length: 0"),
}


async def test_malformed_http_is_refused_and_no_byte_after_it_is_run() -> None:
    async with serving() as served:
        for name, data in MALFORMED.items():
            reply = await exchange(served, data + SMUGGLED)
            assert reply.startswith(b"HTTP/1.1 400 "), name
            assert reply.count(b"HTTP/1.1 ") == 1, name
        assert "/version" not in paths(served)
        assert not served.large.heads
        assert not served.small.heads


async def test_a_correct_request_is_run_and_so_is_the_next_on_its_connection() -> None:
    length = request(b"Content-Length: %d" % len(BODY), body=BODY)
    chunked = chunks(b"%x\r\n%b\r\n" % (len(BODY), BODY) + END)
    offers = (b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c", b"HTTP2-Settings: AAMAAABk")
    upgrade = [
        each.replace(b"\r\n\r\n", b"\r\n%b\r\n\r\n" % b"\r\n".join(offers), 1)
        for each in (length, chunked)
    ]
    last = SMUGGLED.replace(b"Host", b"Connection: close\r\nHost")
    async with serving() as served:
        for data in (length, chunked, *upgrade):
            reply = await exchange(served, data + last)
            assert reply.count(b"HTTP/1.1 200 OK") == 2
        async with connected(served) as (reader, writer), asyncio.timeout(10):
            for at in range(0, len(upgrade[0]), 50):
                writer.write(upgrade[0][at : at + 50])
                await asyncio.sleep(0.01)
            writer.write(last)
            assert (await reader.read()).count(b"HTTP/1.1 200 OK") == 2
        assert sorted(paths(served)) == ["/v1/chat/completions"] * 5 + ["/version"] * 5


async def test_a_client_of_http_1_0_gets_no_chunks() -> None:
    body = orjson.dumps({"model": "large", "messages": [TURN], "stream": True})
    old = request(b"Content-Length: %d" % len(body), body=body).replace(b"HTTP/1.1", b"HTTP/1.0")
    async with serving() as served:
        head, _, rest = (await exchange(served, old)).partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in head
    assert rest.startswith(b"data: {")
    assert rest.endswith(b"data: [DONE]\n\n")


FLOODS = {
    "one name": (b"GET /version HTTP/1.1\r\nHost: x\r\nX-", b"a"),
    "one value": (b"GET /version HTTP/1.1\r\nHost: x\r\nX-Any: ", b"a"),
    "many headers": (b"GET /version HTTP/1.1\r\nHost: x\r\n", b"X-Any: a\r\n"),
    "a URL": (b"GET /", b"a"),
    "blank lines": (b"", b"\r\n"),
    "trailers": (chunks(b"0\r\n"), b"X-Any: a\r\n"),
    "an extension of a chunk": (chunks(b"1;"), b"a"),
    "headers of the next request": (
        SMUGGLED + b"GET /version HTTP/1.1\r\nHost: x\r\n",
        b"X-Any: a\r\n",
    ),
}


async def flooded(served: Served, start: bytes, piece: bytes) -> int:
    """
    Send a *piece* after the other until the connection is closed; return how many bytes that were.
    """
    sent = 0
    async with connected(served) as (reader, writer), asyncio.timeout(60):
        with suppress(ConnectionError):
            writer.write(start)
            while not reader.at_eof():
                writer.write(piece * (1024 // len(piece)))
                sent += 1024
                await writer.drain()
                await asyncio.sleep(0)  # The service is in the same event loop.
    return sent


async def test_headers_without_end_are_refused_before_they_fill_the_memory() -> None:
    async with serving() as served:
        for name, (start, piece) in FLOODS.items():
            # what sockets hold
            assert (
                await flooded(
                    served,
                    start,
                    piece,
                )
                < MAX_HEADERS + READ + 1024 * 1024
            ), name


BIG = b"x" * MAX_HEADERS
PACKETS = {
    "one large header": request(b"X-Any: " + BIG),
    "many headers": request(*[b"X-%d: %s" % (at, BIG[:1000]) for at in range(70)]),
    "very many short headers": request(*[b"a: b"] * (MAX_HEADERS // 6)),
    "a long address": request().replace(b"/v1/chat/completions", b"/" + BIG),
    "with a body": request(b"Content-Length: 9", b"X-Any: " + BIG, body=b"x" * 9),
    "after a good request": SMUGGLED.replace(b"/version", b"/health") + request(b"X-Any: " + BIG),
}


async def test_large_headers_in_one_packet_are_refused() -> None:
    async with serving() as served:
        for name, packet in PACKETS.items():
            answer = await exchange(served, packet)
            head, _, rest = answer[answer.rindex(b"HTTP/1.1 ") :].partition(b"\r\n")
            assert head == b"HTTP/1.1 400 Bad Request", name
            assert rest.endswith(b"The headers are larger than 65536 bytes."), name
        assert "/v1/chat/completions" not in paths(served)
        assert (
            await served.post(
                "/v1/chat/completions",
                BODY,
                x_any="x" * 60_000,
            )
        ).status == 200


async def test_large_bodies_are_no_headers() -> None:
    body = BODY[:-1] + b" " * (4 * MAX_HEADERS) + b"}"
    pieces = b"".join(b"1;any=thing\r\n%c\r\n" % byte for byte in body[: MAX_HEADERS // 4])
    async with serving() as served:
        assert (await served.post("/v1/chat/completions", body)).status == 200
        async with connected(served) as (reader, writer):
            writer.write(chunks(pieces))
            writer.write(
                b"%x\r\n%b\r\n" % (len(body) - MAX_HEADERS // 4, body[MAX_HEADERS // 4 :]) + END
            )
            assert await reader.readline() == b"HTTP/1.1 200 OK\r\n"


async def trickle(served: Served, start: bytes, piece: bytes) -> float:
    """
    Send a *piece* every now and then until the connection is closed; return the seconds that took.
    """
    began = asyncio.get_running_loop().time()
    async with connected(served) as (reader, writer), asyncio.timeout(30):
        with suppress(ConnectionError):
            writer.write(start)
            while not reader.at_eof():
                writer.write(piece)
                await writer.drain()
                with suppress(TimeoutError):
                    async with asyncio.timeout(0.05):
                        await reader.read(1000)
    return asyncio.get_running_loop().time() - began


async def test_a_client_that_trickles_its_headers_is_disconnected_in_time() -> None:
    unread = request(b"Content-Length: 999999999")  # The answer, 413, comes at once.
    async with serving() as served:
        served.server.config.timeout_keep_alive = 1
        took = await asyncio.gather(
            trickle(served, b"", b""),
            trickle(served, b"GET /version HTTP/1.1\r\nX-Any: ", b"a"),
            trickle(served, b"", b"\r\n"),
            trickle(served, SMUGGLED, b"\r\n"),
            trickle(served, SMUGGLED + b"GET /version HTTP/1.1\r\nX-Any: ", b"a"),
            trickle(served, unread, b"a"),
        )
    assert all(0.9 < seconds < 5 for seconds in took), took


async def test_a_run_may_take_longer_than_the_headers_of_its_request() -> None:
    async with serving() as served:
        served.server.config.timeout_keep_alive = 1
        served.large.gate = asyncio.Semaphore(0)
        running = asyncio.create_task(served.chat(method="large"))
        await asyncio.sleep(1.5)
        assert not running.done()
        for _ in range(100):
            served.large.gate.release()
        assert (await running).status == 200


def test_connections_send_small_pieces_at_once() -> None:
    """
    A step is a small piece, and may not wait until the client has acknowledged the one before.
    """
    with listen("127.0.0.1", 0) as listening, socket.create_connection(listening.getsockname()):
        accepted, _ = listening.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
