"""An answer that is worked out while the client waits, and given up as soon as the client goes away."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeAlias

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from .errors import LEFT, ApiError
from .middleware import ServiceRequest

EVENT_STREAM: Mapping[str, str] = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",
}


class Line:
    """The way back to the client. What is sent has to be taken within so many *seconds*."""

    def __init__(self, send: Send, seconds: float) -> None:
        self._send, self._seconds = send, seconds
        self._last = b""
        self.open = self.over = False

    async def start(self, headers: Mapping[str, str], status: int = 200, *, last: bytes = b"") -> None:
        """Begin to answer; a stream says with *last* how it tells that it failed, the refusal in place of ``%b``."""
        self._last = last
        raw = [(name.lower().encode(), value.encode("latin-1", "replace")) for name, value in headers.items()]
        self.open = True
        await self._deliver({"type": "http.response.start", "status": status, "headers": raw})

    async def send(self, piece: bytes) -> None:
        """Send a *piece*; an empty one is not worth the way."""
        if piece:
            await self._deliver({"type": "http.response.body", "body": piece, "more_body": True})

    async def end(self) -> None:
        await self._finish(b"")

    async def fail(self, refusal: ApiError) -> None:
        """End a stream that has begun with *refusal*. Of any other answer no more comes: the server tears it off."""
        if self._last and not self.over:
            await self.send(self._last % refusal.body)
            await self.end()

    async def whole(self, body: bytes, status: int = 200, headers: Mapping[str, str] | None = None) -> None:
        """Send a complete answer."""
        head = {"Content-Type": "application/json", "Content-Length": str(len(body)), **(headers or {})}
        await self.start(head, status)
        await self._finish(body)

    async def _finish(self, body: bytes) -> None:
        await self._deliver({"type": "http.response.body", "body": body, "more_body": False})
        self.over = True

    async def _deliver(self, message: dict[str, object]) -> None:
        try:
            async with asyncio.timeout(self._seconds):
                await self._send(message)
        except TimeoutError:
            raise ApiError(LEFT, f"the client took nothing for {self._seconds:g} s", code="client_stalled") from None


Work: TypeAlias = Callable[[Line], Coroutine[Any, Any, None]]


class StreamedResponse(Response):
    """
    Runs *work*, which answers on the line that it is given.

    When the client goes away, or the service has *ended*, *work* is cancelled, and this waits until it is gone: so is
    everything that it had begun. A client that is still there is told why there is no more.
    """

    def __init__(self, visit: ServiceRequest, work: Work, send_seconds: float, ended: asyncio.Event) -> None:
        super().__init__()
        self._visit, self._work, self._seconds, self._ended = visit, work, send_seconds, ended

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        line = Line(send, self._seconds)
        working = asyncio.create_task(self._work(line))
        interruptions = asyncio.create_task(_left(receive)), asyncio.create_task(self._ended.wait())
        try:
            await asyncio.wait((working, *interruptions), return_when=asyncio.FIRST_COMPLETED)
            done, left = working.done(), interruptions[0].done()
        finally:
            for task in (working, *interruptions):
                task.cancel()
            await asyncio.wait((working, *interruptions))
        if done:
            working.result()
        elif left:
            self._visit.status = LEFT
        else:
            await self._give_up(line)

    async def _give_up(self, line: Line) -> None:
        message = "the service ended before the answer was complete"
        refusal = self._visit.refusal = ApiError(503, message, code="shut_down", retry=True)
        if not line.open:
            raise refusal
        await line.fail(refusal)


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
