"""
Server-sent events. `EventReader` finds events in the bytes of a stream. `Events` waits for the
events of one open response.

The lines follow the WHATWG's rules: LF, CRLF or CR ends a line, a blank line ends an event, a colon
begins a comment, one space after the colon belongs to no value, and a byte order mark may begin the
stream.
"""

from __future__ import annotations

import asyncio
from codecs import BOM_UTF8
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

import aiohttp

from ..endpoints.settings import Deadlines
from ..errors import EndpointError, EndpointUnavailable, MalformedReply
from .http_errors import Call, no_stream

CONNECTION_ERRORS = (aiohttp.ClientError, OSError)
"""The exceptions of a connection that breaks."""

CLOSING_SECONDS = 1.0
"""For closing a stream. The socket closes at once, and a finished stream has no more events."""

MAX_EVENT_BYTES = 16 << 20
"""Of an event. One with 20 tokens of a position has a few KB."""

MAX_HEAD_BYTES = 1 << 16
"""Of an answer that is no stream, in which the reason is looked for."""

DONE = b"[DONE]"
FIELD_NAMES = (b"data", b"event", b"id", b"retry", b"")


class EventTooLarge(ValueError):
    """An event of a stream has more than `MAX_EVENT_BYTES`."""


class ServerEvent(NamedTuple):
    """An event of a stream."""

    data: bytes
    """The values of its ``data`` lines, joined by line breaks. b"": a block of comments."""
    name: bytes
    """The value of its ``event`` line. b"": it has none."""
    raw: bytes
    """All of its bytes, with the blank line that ends it."""


class EventReader:
    """
    Divides the bytes of one stream into its events, however the network divides the bytes.

    The raw bytes of all events and `rest` together are the bytes of the stream.
    """

    def __init__(self) -> None:
        self._line: list[bytes] = []  # the parts of a line that has not ended
        self._lines: list[bytes] = []  # the lines of an event that has not ended
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
        End the stream. Return the data of an event that has not ended, for want of a blank line.
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
        events: list[ServerEvent] = []
        # Bytes are split at LF and CR only.
        for piece in part.splitlines(keepends=True):
            self._size += len(piece)
            if piece[-1] not in b"\r\n":
                self._line.append(piece)
            else:
                events += self._end_line(piece)
            if self._size > MAX_EVENT_BYTES:
                mib = MAX_EVENT_BYTES >> 20
                raise EventTooLarge(f"an event of a stream has more than {mib} MiB")
        self._after_cr = part[-1:] == b"\r" or (self._after_cr and not part)
        return events

    def _end_line(self, piece: bytes) -> Sequence[ServerEvent]:
        """End a line with *piece*. Return the event that ends with the line, if one does."""
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
            return ()
        event = ServerEvent(b"\n".join(self._data), self._name, b"".join(self._lines))
        self._lines.clear()
        self._data.clear()
        self._name = b""
        self._size = 0
        return (event,)


def begins_events(head: bytes) -> bool:
    """Return whether *head*, the beginning of a body, may be that of a stream of events."""
    lines = head.lstrip(BOM_UTF8 + b"\r\n").splitlines(keepends=True)
    line = lines[0] if lines else b""
    name, colon, _ = line.partition(b":")
    if colon or line.endswith((b"\r", b"\n")):
        return name.strip(b"\r\n") in FIELD_NAMES
    return any(field.startswith(name) for field in FIELD_NAMES)


class Events:
    """
    The data of the events of one open stream, up to the event ``[DONE]``.

    *pieces* are the bytes of the response as they arrive. *release* gives its connection back or
    closes it. The stream closes itself if no event arrives within the deadline between two tokens,
    and at second *ends* of the event loop's clock. One timer serves both deadlines, and is
    restarted only when it fires: a timer for each event would cost as much as reading the event.
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
        self._begun = False  # an event with data has arrived
        self._done = False  # the event [DONE] has arrived
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
        """Return the next event's data. None: the stream has ended."""
        while not self._ready:
            if self._done:
                return None
            await self._read()
        return self._ready.popleft()

    async def close(self) -> None:
        """
        Release the connection. It stays open if the stream is complete, else the request is
        aborted.
        """
        if self._timer:
            self._timer.cancel()
        with suppress(*CONNECTION_ERRORS, TimeoutError):
            async with asyncio.timeout(CLOSING_SECONDS):
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
        """Read what has arrived. Raise an `EndpointError` if the stream ends or breaks."""
        try:
            piece = await anext(self._pieces)
        except (StopAsyncIteration, *CONNECTION_ERRORS) as exc:
            if self._reader.end().strip() == DONE:
                self._done = True
                return
            # aiohttp raises one and the same exception for all streams that were closed: its
            # traceback, with the frames of the streams that it ended, would grow for ever.
            raise self._failure(exc) from exc.with_traceback(None)
        self._arrived = self._loop.time()
        if not self._begun:
            self._head = (self._head + piece)[:MAX_HEAD_BYTES]
        try:
            events = self._reader.feed(piece)
        except EventTooLarge as exc:
            raise self._call.error(MalformedReply, f"{exc}; is this a vLLM server?") from None
        for event in events:
            if event.data.strip() == DONE:
                self._done = True
                return  # What follows does not count.
            if event.data:
                self._ready.append(event.data)
                self._begun = True
                self._head = b""

    def _failure(self, exc: BaseException) -> EndpointError:
        """Make the error of a stream that ended with *exc* before ``[DONE]``."""
        is_whole = isinstance(exc, StopAsyncIteration) and not self._late
        is_stream = self._begun or (self._head.strip() and begins_events(self._head))
        if is_whole and not is_stream:
            return no_stream(self._call, self._head)
        reason = self._late or "the stream broke off: did the server die?"
        return self._call.error(EndpointUnavailable, reason)

    def _watch(self) -> None:
        """Close the stream if a deadline has passed, else look again when one may have."""
        due = min(self._arrived + self._deadlines.between, self._ends)
        if self._loop.time() < due:
            self._timer = self._loop.call_at(due, self._watch)
            return
        self._late = f"no token for {self._deadlines.between:g} s (deadlines.between)"
        if due == self._ends:
            self._late = f"not finished after {self._deadlines.total:g} s (deadlines.total)"
        self._close()
