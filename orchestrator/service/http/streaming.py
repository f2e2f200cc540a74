"""
Responses that are produced while the client waits, and cancelled as soon as the client disconnects.

Answers of served models pass through: their whole events, the tokens that they tell of, and how they fail.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeAlias, cast

import orjson
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ...concurrency import background
from ...endpoints.sse import EventReader
from ..formats.deltas import failure, response_failed
from ..watch.records import ServiceRequest
from .errors import CLIENT_CLOSED, ApiError

EVENT_STREAM: Mapping[str, str] = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",
}


Failure: TypeAlias = Callable[[ApiError, bytes], bytes]
"""Makes the last event of a stream from an error, and from its body in the shape of the API."""


class ClientConnection:
    """
    Sends the response to *request*.

    The client has to take each message within *send_seconds*, or `ApiError` is raised.
    """

    def __init__(self, request: ServiceRequest, send: Send, send_seconds: float) -> None:
        self._request, self._send, self._send_seconds = request, send, send_seconds
        self._failure: Failure | None = None
        self.started = self.finished = False

    async def start(self, headers: Mapping[str, str], status: int = 200, *, failure: Failure | None = None) -> None:
        """Send status and *headers*. *failure* makes the last event of a stream that fails."""
        self._failure = failure
        raw = [(name.lower().encode(), value.encode("latin-1", "replace")) for name, value in headers.items()]
        self.started = True
        await self._deliver({"type": "http.response.start", "status": status, "headers": raw})

    async def send(self, body: bytes) -> None:
        """Send a further part of the body, if it is not empty."""
        if body:
            await self._deliver({"type": "http.response.body", "body": body, "more_body": True})

    async def finish(self, body: bytes = b"") -> None:
        """Send the last part of the body."""
        await self._deliver({"type": "http.response.body", "body": body, "more_body": False})
        self.finished = True

    async def fail(self, error: ApiError) -> None:
        """End a stream that has started with *error*. Any other response stays incomplete: the server cuts it off."""
        if self._failure is not None and not self.finished:
            error = self._request.in_its_api(error)
            await self.finish(self._failure(error, self._request.error_body(error)))

    async def send_json(self, body: bytes) -> None:
        """Send a complete response."""
        await self.start({"Content-Type": "application/json", "Content-Length": str(len(body))})
        await self.finish(body)

    async def _deliver(self, message: dict[str, object]) -> None:
        try:
            async with asyncio.timeout(self._send_seconds):
                await self._send(message)
        except TimeoutError:
            text = f"the client took nothing for {self._send_seconds:g} s"
            raise ApiError(CLIENT_CLOSED, text, code="client_stalled") from None


Work: TypeAlias = Callable[[ClientConnection], Coroutine[Any, Any, None]]


class StreamedResponse(Response):
    """
    Runs *work*, which sends the response over its connection.

    When the client disconnects, or *aborted* is set, *work* is cancelled, and this waits until all that it started is
    cancelled too. A client that is still connected receives an error.
    """

    def __init__(self, request: ServiceRequest, work: Work, send_seconds: float, aborted: asyncio.Event) -> None:
        super().__init__()
        self._request, self._work, self._send_seconds, self._aborted = request, work, send_seconds, aborted

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        connection = ClientConnection(self._request, send, self._send_seconds)
        async with background(self._work(connection), _disconnected(receive), self._aborted.wait()) as tasks:
            working, disconnecting, _ = tasks
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            done, disconnected = working.done(), disconnecting.done()
        if done:
            working.result()
        elif disconnected:
            self._request.status = CLIENT_CLOSED
        else:
            await self._abort(connection)

    async def _abort(self, connection: ClientConnection) -> None:
        message = "the service shut down before the answer was complete"
        error = self._request.error = ApiError(503, message, code="shut_down", retry=True)
        if not connection.started:
            raise error
        await connection.fail(error)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


USAGE_PATHS = frozenset({"/v1/chat/completions", "/v1/completions"})
"""The paths whose streams tell the usage only if asked to."""


def asking_for_usage(path: str, content: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return *content*, the body of a request to *path*, with the wish for the usage; None if it needs no change."""
    options = content.get("stream_options")
    wished = isinstance(options, Mapping) and bool(cast("Mapping[str, Any]", options).get("include_usage"))
    if path not in USAGE_PATHS or content.get("stream") is not True or wished:
        return None
    kept = dict(cast("Mapping[str, Any]", options)) if isinstance(options, Mapping) else {}
    return {**content, "stream_options": {**kept, "include_usage": True}}


class ForwardedAnswer:
    """
    Reads the answer to a request to *path* as it passes. `written` is the tokens that it says the model wrote.

    Of a *stream* only whole events are passed on, so that an error may follow at any time. Its tokens are *counted* by
    its events until the usage is there. With *hidden* the event that has the usage alone is left out, because the
    client has not asked for it.
    """

    def __init__(self, path: str, *, stream: bool, counted: bool = False, hidden: bool = False) -> None:
        self._path, self._stream, self._counted, self._hidden = path, stream, counted, hidden
        self._reader = EventReader()
        self._whole = list[bytes]()  # the parts of an answer in one piece
        self._first = self._last = b""  # the data of the first and the last event of a stream
        self._events, self._told = 0, -1

    @property
    def written(self) -> int:
        return self._told if self._told >= 0 else self._events

    @property
    def begun(self) -> bool:
        """Whether the stream has had an event with data."""
        return self._first != b""

    def add(self, part: bytes) -> bytes:
        """Read the next *part*, and return what is to be passed on now. Raise `EventTooLarge`."""
        if not self._stream:
            if self._counted:
                self._whole.append(part)
            return part
        return b"".join(raw for data, _, raw in self._reader.feed(part) if self._passes(data))

    def finish(self) -> bytes:
        """Return what is still to be passed on at the end."""
        self._read(b"".join(self._whole))
        rest = self._reader.rest
        return rest if rest and self._passes(self._reader.open_data) else b""

    def failed(self, error: ApiError, body: bytes) -> bytes:
        """Return the last event of a stream that breaks off: *error*, whose *body* is in the shape of its API."""
        if self._path != "/v1/responses":
            return failure(self._path) % body
        last, begun = _object(self._last), _object(self._first).get("response")
        number: Any = last.get("sequence_number")
        response = cast("dict[str, Any]", begun) if isinstance(begun, dict) else {}
        return response_failed(response, number + 1 if isinstance(number, int) else 0, error.status, error.message)

    def _passes(self, data: bytes) -> bool:
        if not data:
            return True
        self._first, self._last = self._first or data, data if data.startswith(b"{") else self._last
        if not (self._counted and data.startswith(b"{")):
            return True
        self._events += 1
        if b'"usage"' not in data:
            return True
        content = self._read(data)
        return not (self._hidden and content.get("choices") == [])

    def _read(self, data: bytes) -> Mapping[str, Any]:
        content = _object(data)
        inner: Any = content.get("response")  # of the Responses API's events
        holder = cast("dict[str, Any]", inner) if isinstance(inner, dict) else content
        usage: Any = holder.get("usage")
        if isinstance(usage, dict):
            counts = cast("dict[str, Any]", usage)
            tokens: Any = counts.get("completion_tokens", counts.get("output_tokens"))
            if type(tokens) is int and tokens >= 0:
                self._told = tokens
        return content


def _object(data: bytes) -> Mapping[str, Any]:
    """Parse a JSON object; empty for anything else."""
    try:
        parsed: Any = orjson.loads(data)
    except orjson.JSONDecodeError:
        return {}
    return cast("dict[str, Any]", parsed) if isinstance(parsed, dict) else {}
