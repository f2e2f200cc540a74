"""HTTP of uvicorn with two limits that it lacks: the size of a request's headers, and the time they may take."""

from __future__ import annotations

import asyncio

from httptools import HttpParserError
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEADERS = 64 * 1024  # bytes
TOO_LARGE = f"The headers are larger than {MAX_HEADERS} bytes."


class LimitedProtocol(HttpToolsProtocol):
    """
    A connection whose client has as long for the headers of a request as an idle connection is kept.

    Whatever else is no part of a body counts as headers, such as trailers, extensions of chunks, and blank lines.
    """

    _unread = 0  # bytes of headers that are not complete
    _headers = 0  # bytes of the names and values of the headers of this request
    _waiting: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._unread += len(data)
        super().data_received(data)
        if self._unread > MAX_HEADERS:
            self.send_400_response(TOO_LARGE)

    def send_400_response(self, msg: str) -> None:
        if not self.transport.is_closing():
            super().send_400_response(msg)

    def on_message_begin(self) -> None:
        self._headers = 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value))
        super().on_header(name, value)

    def _count(self, size: int) -> None:
        """Count *size* bytes of headers, all of which may be in one packet. Raise if they are too many."""
        self._headers += size
        if self._headers > MAX_HEADERS:
            self.send_400_response(TOO_LARGE)
            raise HttpParserError(TOO_LARGE)  # ends the parsing of the packet

    def on_headers_complete(self) -> None:
        self._unread = 0
        self._stop_waiting()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._unread = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._unread = 0
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.cycle.response_complete and not self.transport.is_closing():  # else the next request is there already
            self._wait()

    def _wait(self) -> None:
        self._stop_waiting()
        self._waiting = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)

    def _stop_waiting(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None
