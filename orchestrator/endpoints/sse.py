"""The events of one open stream. It is closed from within as soon as nothing arrives for too long."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress

import aiohttp
import httpx2

from ..errors import EndpointUnavailable
from .failures import Call
from .settings import Deadlines

BROKEN = (httpx2.HTTPError, httpx2.StreamError, aiohttp.ClientError, OSError)
CLOSING = 1.0  # seconds; shutting the socket takes none, and the end of a finished stream comes with its last event


class Events:
    """
    Server-sent events as bytes, one by one.

    One timer per stream, set anew only when it fires, watches over both deadlines: a timer per event would cost as much
    as reading it. *ends* is when the whole stream has to be over, on the event loop's clock.
    """

    def __init__(self, call: Call, response: httpx2.Response, deadlines: Deadlines, ends: float) -> None:
        self._call = call
        self._response = response
        self._pieces = response.aiter_bytes()
        self._rest = b""
        self._ready: deque[bytes] = deque()
        self._done = False
        self._deadlines, self._ends = deadlines, ends
        self._loop = asyncio.get_running_loop()
        self._arrived = self._loop.time()
        self._late = ""
        self._closing: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    async def prime(self) -> None:
        """Wait for the first event, under the caller's deadline, and begin to watch the clock."""
        while not self._ready and not self._done:
            await self._read()
        self._watch()

    async def next(self) -> bytes | None:
        """Return the next event, or None once the server has said that there are no more."""
        while not self._ready:
            if self._done:
                return None
            await self._read()
        return self._ready.popleft()

    async def close(self) -> None:
        """Let go of the connection: keep it if the stream was read to its end, or shut it, which is the abort."""
        if self._timer:
            self._timer.cancel()
        with suppress(*BROKEN, TimeoutError):
            async with asyncio.timeout(CLOSING):
                if self._done:
                    async for _ in self._pieces:
                        pass
                await asyncio.shield(self._close())
                async for _ in self._pieces:  # The generators inside end now, by the error that closing gives them.
                    pass

    def _close(self) -> asyncio.Future[None]:
        self._closing = self._closing or asyncio.ensure_future(self._response.aclose())
        return self._closing

    async def _read(self) -> None:
        try:
            piece = await anext(self._pieces)
        except (StopAsyncIteration, *BROKEN) as exc:
            reason = self._late or f"the stream broke off ({exc!r}): did the server die?"
            raise self._call.error(EndpointUnavailable, reason) from exc
        self._arrived = self._loop.time()
        *lines, self._rest = (self._rest + piece).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                self._take(line[5:].strip())

    def _take(self, event: bytes) -> None:
        if event == b"[DONE]":
            self._done = True
        else:
            self._ready.append(event)

    def _watch(self) -> None:
        due = min(self._arrived + self._deadlines.between, self._ends)
        if self._loop.time() < due:
            self._timer = self._loop.call_at(due, self._watch)
            return
        between, total = self._deadlines.between, self._deadlines.total
        self._late = (
            f"not finished after {total:g} s (deadlines.total)"
            if due == self._ends
            else f"no token for {between:g} s (deadlines.between)"
        )
        self._close()
