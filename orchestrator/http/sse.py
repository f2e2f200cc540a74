"""
Server-sent events. `EventReader` finds events in the bytes of a stream. `Events` waits for the
events of one open response.

The lines follow the WHATWG's rules: LF, CRLF or CR ends a line, a blank line ends an event, a colon
begins a comment, one space after the colon belongs to no value, and a byte order mark may begin the
stream.
"""

from __future__ import annotations

import asyncio
import re
from codecs import BOM_UTF8
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import NamedTuple

import aiohttp

from ..endpoints.settings import Deadlines
from ..errors import EndpointError, EndpointUnavailable, MalformedReply
from .http_errors import Call, no_stream

CONNECTION_ERRORS = (aiohttp.ClientError, OSError)
"""The exceptions of a connection that breaks, or is too late (`TimeoutError`)."""

CLOSING_SECONDS = 1.0
"""For closing a stream. The socket closes at once, and a finished stream has no more events."""

MAX_EVENT_BYTES = 16 << 20
"""Of an event. One with 20 tokens of a position has a few KB."""

MAX_HEAD_BYTES = 1 << 16
"""Of an answer that is no stream, in which the reason is looked for."""

DONE = b"[DONE]"
FIELD_NAMES = (b"data", b"event", b"id", b"retry", b"")
BLANK_LINE = re.compile(rb"(?>\r\n|\n|\r){2}")
"""The end of a line and the blank line after it."""


class EventTooLarge(ValueError):
    """An event of a stream has more than `MAX_EVENT_BYTES`."""


class ServerEvent(NamedTuple):
    """An event of a stream."""

    data: bytes
    """The values of its ``data`` lines, joined by line breaks. b"": a block of comments."""
    raw: bytes
    """All of its bytes, with the blank line that ends it."""


class EventReader:
    """
    Divides the bytes of one stream into its events, however the network divides the bytes.

    The raw bytes of all events and `rest` together are the bytes of the stream.
    """

    def __init__(self) -> None:
        self._unread = bytearray()
        self._mark = BOM_UTF8  # what the next event may begin with

    @property
    def rest(self) -> bytes:
        """The bytes of the event that has not ended."""
        return bytes(self._unread)

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
        # The end of the last line may be there already.
        searched = max(0, len(self._unread) - 2)
        self._unread += part
        events: list[ServerEvent] = []
        begin = 0
        for blank in BLANK_LINE.finditer(self._unread, searched):
            events.append(self._event(bytes(self._unread[begin : blank.end()])))
            begin = blank.end()
        del self._unread[:begin]
        if len(self._unread) > MAX_EVENT_BYTES:
            mib = MAX_EVENT_BYTES >> 20
            raise EventTooLarge(f"an event of a stream has more than {mib} MiB")
        return events

    def _event(self, raw: bytes) -> ServerEvent:
        data: list[bytes] = []
        # Bytes are split at LF and CR only.
        for line in raw.removeprefix(self._mark).splitlines():
            field, _, value = line.partition(b":")
            if field == b"data":
                data.append(value.removeprefix(b" "))
        self._mark = b""
        return ServerEvent(b"\n".join(data), raw)


def begins_events(head: bytes) -> bool:
    """Return whether *head*, the beginning of a body, may be that of a stream of events."""
    line = head.lstrip(BOM_UTF8 + b"\r\n")
    name = re.split(rb"[:\r\n]", line)[0]
    if name == line:
        return any(field.startswith(name) for field in FIELD_NAMES)
    return name in FIELD_NAMES


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
        release: Callable[[], None],
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
        self._timer: asyncio.TimerHandle | None = None

    async def prime(self) -> None:
        """Wait for the first event, within the caller's own deadline, and start the timer."""
        await self._fill()
        self._watch()

    async def next(self) -> bytes | None:
        """Return the next event's data. None: the stream has ended."""
        await self._fill()
        return self._ready.popleft() if self._ready else None

    async def close(self) -> None:
        """
        Release the connection. It stays open if the stream is complete, else the request is
        aborted.
        """
        if self._timer:
            self._timer.cancel()
        try:
            async with asyncio.timeout(CLOSING_SECONDS):
                await asyncio.sleep(0)  # A task that was cancelled meanwhile ends here.
                is_unread = self._done
                while is_unread:
                    is_unread = bool(await anext(self._pieces, b""))
        except CONNECTION_ERRORS:
            return
        finally:
            self._release()

    async def _fill(self) -> None:
        """Read until an event with data has arrived, or the stream has ended."""
        while not self._ready and not self._done:
            await self._read()

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
        self._release()
