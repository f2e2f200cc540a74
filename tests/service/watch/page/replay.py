"""A service that tells a trace instead of a run: line by line, as fast as it is let."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import orjson
from aiohttp import web

from stepspec.service.watch.page import html

METHODS: dict[str, Any] = {
    "default": "specreason",
    "methods": [
        {
            "name": "specreason",
            "about": "Accept a step of a high grade.",
            "options": {"threshold": 7, "read": "expected"},
        },
        {
            "name": "bild",
            "about": "Write until unsure.",
            "options": {"scale": 0.5, "strict": True, "cues": ["So"], "n": None},
        },
        {"name": "large", "about": "Let the large model do it alone.", "options": {}},
    ],
    "models": {"small": "tiny", "large": "huge"},
}
SOLUTION = {
    "answer": "16",
    "text": "Maya has \\boxed{16} shells.",
    "finish_reason": "stop",
    "seconds": 1.38,
}


@dataclass
class Replay:
    """
    Answers every problem with *trace*. A line waits for a permit of *gate*, if there is one.

    With a *key*, nobody else gets in. *refusal* is answered instead, or sent in the middle of the
    stream after so many lines of *breaks*, or nothing at all is sent any more. *requests* are those
    that were let in.
    """

    trace: bytes
    gate: asyncio.Semaphore | None = None
    key: str = ""
    refusal: tuple[int, dict[str, Any], dict[str, str]] | None = None
    breaks: int | None = None
    requests: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    left: asyncio.Event = field(default_factory=asyncio.Event)
    url: str = ""

    async def page(self, _: web.Request) -> web.Response:
        return web.Response(text=html(), content_type="text/html")

    async def methods(self, request: web.Request) -> web.Response:
        return self._closed(request) or web.Response(
            body=orjson.dumps(METHODS), content_type="application/json"
        )

    async def live(self, request: web.Request) -> web.StreamResponse:
        if closed := self._closed(request):
            return closed
        self.requests.append(await request.json())
        if self.refusal is not None and self.breaks is None:
            status, error, headers = self.refusal
            return web.json_response({"error": error}, status=status, headers=headers)
        reply = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await reply.prepare(request)
        try:
            await self._tell(reply)
        except (ConnectionError, asyncio.CancelledError):
            self.left.set()
            raise
        return reply

    async def _tell(self, reply: web.StreamResponse) -> None:
        for number, line in enumerate(self.trace.splitlines()):
            if number == self.breaks:
                if self.refusal is not None:
                    await reply.write(
                        b"event: error\ndata: " + orjson.dumps({"error": self.refusal[1]}) + b"\n\n"
                    )
                return
            if self.gate is not None:
                await self.gate.acquire()
            await reply.write(b": keep-alive\n\ndata: " + line + b"\n\n")
        await reply.write(b"event: solution\ndata: " + orjson.dumps(SOLUTION) + b"\n\n")

    def _closed(self, request: web.Request) -> web.Response | None:
        if not self.key or request.headers.get("Authorization") == f"Bearer {self.key}":
            return None
        error = {
            "message": "this service asks for a key",
            "type": "authentication_error",
            "param": None,
            "code": None,
        }
        return web.json_response({"error": error}, status=401)

    @asynccontextmanager
    async def serving(self) -> AsyncGenerator[Replay]:
        """Listen on a free port; *url* is the page's then."""
        app = web.Application()
        app.add_routes(
            [
                web.get("/", self.page),
                web.get("/live/methods", self.methods),
                web.post("/live", self.live),
            ]
        )
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=1)
        await runner.setup()
        try:
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            self.url = f"http://127.0.0.1:{runner.addresses[0][1]}/"
            yield self
        finally:
            await runner.cleanup()
