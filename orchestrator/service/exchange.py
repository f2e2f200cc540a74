"""One request and its answer without a connection between them, so that another process can have the connection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, cast

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Scope

from .visit import visit_of

Messages: TypeAlias = tuple[Message, ...]

KEPT = ("method", "path", "raw_path", "root_path", "query_string", "client", "server", "scheme", "http_version")
PATIENCE = b"x-stainless-read-timeout"
GOODBYE = 5.0  # seconds for an application to notice that its client has gone


@dataclass(frozen=True, slots=True)
class Asked:
    """One request, whole: plain values only, so that it can travel."""

    scope: Mapping[str, Any]
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes

    @classmethod
    async def read(cls, request: Request) -> Asked:
        """Wait for all of *request*, which goes on under the id that its visit has."""
        headers = [(name, value) for name, value in request.scope["headers"] if name != b"x-request-id"]
        scope = {name: request.scope[name] for name in KEPT if name in request.scope}
        named = (b"x-request-id", visit_of(request).id.encode())
        return cls(scope, (*headers, named), await request.body())

    def after(self, seconds: float) -> Asked:
        """The same request so much later: a client that waits for an answer in one piece has that much less left."""
        return replace(self, headers=tuple([(name, _less(name, value, seconds)) for name, value in self.headers]))

    @property
    def whole(self) -> Scope:
        return {"type": "http", "asgi": {"version": "3.0"}, **self.scope, "headers": [*self.headers], "state": {}}


async def answered(app: ASGIApp, asked: Asked) -> AsyncGenerator[Messages]:
    """
    Yield what *app* sends for an answer: first nothing, and then all that there is whenever the next is asked for.

    Leaving the generator is to *app* what a client is who goes away; this waits until it is done.
    """
    sent, news, left = list[Message](), asyncio.Event(), asyncio.Event()
    asking = True

    async def receive() -> Message:
        nonlocal asking
        if asking:
            asking = False
            return {"type": "http.request", "body": asked.body, "more_body": False}
        await left.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        sent.append(message)
        news.set()

    work = cast("Coroutine[Any, Any, None]", app(asked.whole, receive, send))
    working = asyncio.create_task(work)
    working.add_done_callback(lambda _: news.set())
    try:
        yield ()
        while sent or not working.done():
            await news.wait()
            news.clear()
            if sent:
                messages, sent[:] = tuple(sent), ()
                yield messages
        working.result()
    finally:
        left.set()
        await asyncio.wait([working], timeout=GOODBYE)
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)


def _less(name: bytes, value: bytes, seconds: float) -> bytes:
    if name != PATIENCE:
        return value
    try:
        return b"%.3f" % max(float(value) - seconds, 1.0)
    except ValueError:
        return value
