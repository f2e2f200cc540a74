"""
The response to one request: a connection that its client may leave at any time.

It is produced while the client waits, and cancelled as soon as the client disconnects.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeAlias

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from stepspec.orchestrator.concurrency import background

from ..errors import CLIENT_CLOSED, ApiError
from ..json_types import HttpHeaders
from ..records import ServiceRequest

JSON_CONTENT: HttpHeaders = {"Content-Type": "application/json"}
EVENT_STREAM: HttpHeaders = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",
}
LastEvent: TypeAlias = Callable[[ApiError, bytes], bytes]
"""Makes the last event of a stream from an error, and from its body in the shape of the API."""


Work: TypeAlias = "Callable[[ClientConnection], Coroutine[Any, Any, None]]"


class ClientConnection(Response):
    """
    The connection over which *work* sends the response to *request*.

    *work* is cancelled when the client disconnects or *aborted* is set. The call ends when all
    tasks of *work* have ended. An exception ends a stream with a last event, and is raised. Any
    other response stays incomplete, and the server cuts it off.

    The methods that send raise `ApiError` if the client does not take a message within
    *send_seconds*.
    """

    last_event: LastEvent | None = None
    """Makes the last event if the response fails. None: the response is no stream."""
    started = False
    """Whether the response has begun."""
    finished = False
    """Whether the response is complete."""
    _send: Send  # of the server, set by the call

    def __init__(
        self,
        request: ServiceRequest,
        work: Work,
        send_seconds: float,
        aborted: asyncio.Event,
    ) -> None:
        super().__init__()
        self._request = request
        self._work = work
        self._send_seconds = send_seconds
        self._aborted = aborted

    async def start(self, headers: HttpHeaders, status: int = 200) -> None:
        """Send *status* and *headers*."""
        self.started = True
        raw = [
            (name.lower().encode(), value.encode("latin-1", "replace"))
            for name, value in headers.items()
        ]
        await self._deliver({"type": "http.response.start", "status": status, "headers": raw})

    async def send(self, body: bytes) -> None:
        """Send a further part of the body, if it is not empty."""
        if body:
            await self._deliver({"type": "http.response.body", "body": body, "more_body": True})

    async def finish(self, body: bytes = b"") -> None:
        """Send the last part of the body."""
        await self._deliver({"type": "http.response.body", "body": body, "more_body": False})
        self.finished = True

    async def send_whole(
        self,
        body: bytes,
        headers: HttpHeaders = JSON_CONTENT,
        status: int = 200,
    ) -> None:
        """Send a complete response."""
        await self.start({**headers, "Content-Length": str(len(body))}, status)
        await self.finish(body)

    async def _deliver(self, message: dict[str, object]) -> None:
        try:
            async with asyncio.timeout(self._send_seconds):
                await self._send(message)
        except TimeoutError:
            raise ApiError(
                CLIENT_CLOSED,
                f"the client took nothing for {self._send_seconds:g} s",
                code="client_stalled",
            ) from None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._send = send
        try:
            await self._run(receive)
        except ClientDisconnect:
            raise
        except Exception as exc:
            error = self._request.error_of(exc)
            can_receive = error.status != CLIENT_CLOSED and not self.finished
            if self.last_event is not None and can_receive:
                await self.finish(self.last_event(error, self._request.error_body(error)))
            raise

    async def _run(self, receive: Receive) -> None:
        """Do the work. Raise its exception, `ClientDisconnect`, or `ApiError` if aborted."""
        async with background(
            self._work(self),
            _disconnected(receive),
            self._aborted.wait(),
        ) as tasks:
            working, disconnecting, _ = tasks
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if self.finished and not working.done():  # which counts as a disconnect
                await asyncio.wait([working])
            if working.done():
                working.result()
                return
            if disconnecting.done():
                raise ClientDisconnect
            raise ApiError(
                503,
                "the service shut down before the answer was complete",
                code="shut_down",
                retry=True,
            )


async def _disconnected(receive: Receive) -> None:
    """Wait until the client disconnects."""
    while (await receive())["type"] != "http.disconnect":
        pass
