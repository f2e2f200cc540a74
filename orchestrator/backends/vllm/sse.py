"""
Server-sent events: `EventReader` finds them in the bytes of a stream, `Events` waits for those of
one open response.

The lines follow the WHATWG's rules: LF, CRLF or CR ends a line, a blank line ends an event, a colon
begins a comment, one space after the colon belongs to no value, and a byte order mark may begin the
stream.
"""

from __future__ import annotations

import asyncio
from codecs import BOM_UTF8
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import NamedTuple

import aiohttp

from ...endpoints.settings import Deadlines
from ...errors import EndpointUnavailable, MalformedReply
from .http_errors import Call, no_stream

BROKEN = (aiohttp.ClientError, OSError)
# seconds to close a stream; the socket closes at once, and a finished stream has no more events
CLOSING = 1.0
LARGEST_EVENT = 16 << 20  # bytes; an event with 20 tokens of a position has a few KB
HEAD = 1 << 16  # bytes of an answer that is no stream, to find the reason in
DONE = b"[DONE]"
FIELDS = (b"data", b"event", b"id", b"retry", b"")


class EventTooLarge(ValueError):
    """An event of a stream has more than `LARGEST_EVENT` bytes."""


class ServerEvent(NamedTuple):
    """
    One event of a stream: the value of its ``data`` lines, joined by line breaks, and its *name*.

    *data* is empty for a block of comments. *raw* is the bytes of the event, with the blank line
    that ends it.
    """

    data: bytes
    name: bytes
    raw: bytes


class EventReader:
    """
    Divides the bytes of one stream into its events, however the network divides the bytes.

    The *raw* bytes of all events and `rest` together are the bytes of the stream.
    """

    def __init__(self) -> None:
        self._line: list[bytes] = []  # the parts of a line that has not ended
        # the complete lines of an event that has not ended, with their line breaks
        self._lines: list[bytes] = []
        self._data: list[bytes] = []
        self._name = b""
        self._size = 0
        self._first = True  # no line of the stream has ended
        self._after_cr = False  # the last line ended with CR, to which an LF may belong

    @property
    def rest(self) -> bytes:
        """The bytes of the event that has not ended."""
        return b"".join([*self._lines, *self._line])

    def end(self) -> bytes:
        """
        End the stream, and return the data of the event that has not ended: its blank line may be
        missing.
        """
        return b"".join(event.data for event in self.feed(b"\n\n"))

    def feed(self, part: bytes) -> list[ServerEvent]:
        """
        Read the next *part* of the stream and return the events that end in it. Raise
        `EventTooLarge`.
        """
        if self._after_cr and part:
            self._after_cr = False
            if part[:1] == b"\n":
                self._lines.append(b"\n")
                part = part[1:]
        events = list[ServerEvent]()
        # of bytes, at no other character than LF and CR
        for piece in part.splitlines(keepends=True):
            self._size += len(piece)
            if piece[-1] not in b"\r\n":
                self._line.append(piece)
            elif (event := self._end_line(piece)) is not None:
                events.append(event)
            if self._size > LARGEST_EVENT:
                raise EventTooLarge(f"an event of a stream has more than {LARGEST_EVENT >> 20} MiB")
        self._after_cr = part[-1:] == b"\r" or (self._after_cr and not part)
        return events

    def _end_line(self, piece: bytes) -> ServerEvent | None:
        if self._line:
            piece = b"".join([*self._line, piece])
            self._line.clear()
        self._lines.append(piece)
        line = piece.rstrip(b"\r\n")
        if self._first:
            line = line.removeprefix(BOM_UTF8)
            self._first = False
        if line:
            field, _, value = line.partition(b":")
            if field == b"data":
                self._data.append(value.removeprefix(b" "))
            elif field == b"event":
                self._name = value.removeprefix(b" ")
            return None
        data = self._data[0] if len(self._data) == 1 else b"\n".join(self._data)
        event = ServerEvent(data, self._name, b"".join(self._lines))
        self._lines.clear()
        self._data.clear()
        self._name = b""
        self._size = 0
        return event


def begins_events(head: bytes) -> bool:
    """
    Whether *head*, the beginning of a body, may be that of events: no other line than theirs has
    begun.
    """
    line = b"".join(head.lstrip(BOM_UTF8 + b"\r\n").splitlines(keepends=True)[:1])
    name, colon, _ = line.partition(b":")
    ended = colon or line.endswith((b"\r", b"\n"))
    return (
        name.strip(b"\r\n") in FIELDS if ended else any(field.startswith(name) for field in FIELDS)
    )


class Events:
    """
    The data of the events of one open stream, as bytes, up to the event ``[DONE]``.

    *pieces* are the bytes of the response as they arrive, and *release* gives its connection back
    or closes it.

    The stream closes itself when no event arrives within the deadline between two tokens, or at
    second *ends* of the event loop's clock. One timer per stream, restarted only when it fires,
    serves both deadlines: a timer per event would cost as much as reading the event.
    """

    def __init__(
        self,
        call: Call,
        pieces: AsyncIterator[bytes],
        release: Callable[[], Awaitable[None]],
        deadlines: Deadlines,
        ends: float,
    ) -> None:
        self._call = call
        self._pieces = pieces
        self._release = release
        self._reader = EventReader()
        self._ready: deque[bytes] = deque()
        self._begun = self._done = False  # the server has sent an event with data, and [DONE]
        self._head = b""  # the bytes before the first event with data
        self._deadlines = deadlines
        self._ends = ends
        self._loop = asyncio.get_running_loop()
        self._arrived = self._loop.time()
        self._late = ""  # the deadline that has passed
        self._closing: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    async def prime(self) -> None:
        """Wait for the first event, within the caller's own deadline, and start the timer."""
        while not self._ready and not self._done:
            await self._read()
        self._watch()

    async def next(self) -> bytes | None:
        """Return the next event's data; None at the end of the stream."""
        while not self._ready:
            if self._done:
                return None
            await self._read()
        return self._ready.popleft()

    async def close(self) -> None:
        """
        Release the connection: keep it open if the stream is complete, or close it, which aborts
        the request.
        """
        if self._timer:
            self._timer.cancel()
        with suppress(*BROKEN, TimeoutError):
            async with asyncio.timeout(CLOSING):
                await self._finish()

    async def _finish(self) -> None:
        try:
            if self._done:
                async for _ in self._pieces:
                    pass
        finally:
            await asyncio.shield(self._close())

    def _close(self) -> asyncio.Future[None]:
        self._closing = self._closing or asyncio.ensure_future(self._release())
        return self._closing

    async def _read(self) -> None:
        try:
            piece = await anext(self._pieces)
        except (StopAsyncIteration, *BROKEN) as exc:
            if self._reader.end().strip() == DONE:
                self._done = True
                return
            whole = isinstance(exc, StopAsyncIteration) and not self._late
            if whole and not self._begun and not (self._head.strip() and begins_events(self._head)):
                raise no_stream(self._call, self._head) from None
            reason = self._late or "the stream broke off: did the server die?"
            # aiohttp raises one and the same exception for all streams that were closed: its
            # traceback, with the frames of the streams that it ended, would grow for ever.
            raise self._call.error(EndpointUnavailable, reason) from exc.with_traceback(None)
        self._arrived = self._loop.time()
        if not self._begun:
            self._head = (self._head + piece)[:HEAD]
        try:
            events = self._reader.feed(piece)
        except EventTooLarge as exc:
            raise self._call.error(MalformedReply, f"{exc}; is this a vLLM server?") from None
        for data, _, _ in events:
            if data.strip() == DONE:
                self._done = True
                # What follows in the same bytes does not count, as it does not if it comes later.
                break
            if data:
                self._ready.append(data)
                self._begun = True
                self._head = b""

    def _watch(self) -> None:
        due = min(self._arrived + self._deadlines.between, self._ends)
        if self._loop.time() < due:
            self._timer = self._loop.call_at(due, self._watch)
            return
        self._late = f"no token for {self._deadlines.between:g} s (deadlines.between)"
        if due == self._ends:
            self._late = f"not finished after {self._deadlines.total:g} s (deadlines.total)"
        self._close()
