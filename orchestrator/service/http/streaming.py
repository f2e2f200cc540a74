"""A response that is produced while the client waits, and cancelled as soon as the client disconnects."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeAlias

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ...concurrency import background
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
