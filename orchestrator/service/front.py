"""
What stands before services that run elsewhere: it has a request answered by one of them, and by another if that dies.

Nothing is lost as long as no part of the answer was sent. After that a stream ends with an error that says so.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, TypeAlias

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from . import errors, reply
from .door import OPEN
from .errors import Refusal
from .exchange import Asked, Messages
from .runs import GRACE
from .scrapes import KIND, together
from .settings import ServiceSettings, private
from .visit import visit_of

Ask: TypeAlias = Callable[[Asked], AsyncGenerator[Messages]]
"""
Has a request answered elsewhere. What comes first says only that somebody began. Raise `Lost` if that one dies, and
`Refusal` if there is no one.
"""
Scrape: TypeAlias = Callable[[], Awaitable[Mapping[str, bytes]]]
"""The metrics of every service, by its name."""
Tell: TypeAlias = Callable[..., None]

SLACK = 10.0  # seconds for an answer to travel


class Lost(Exception):
    """Who was answering has died."""


class Front:
    """
    Answers requests with what *ask* brings, and the metrics with what *scrape* does; the rest is for *app*.

    *tell* hears of every service that was lost. It stands behind a `Door`.
    """

    def __init__(self, app: ASGIApp, ask: Ask, scrape: Scrape, settings: ServiceSettings, tell: Tell) -> None:
        self._app, self._ask, self._scrape, self._settings, self._tell = app, ask, scrape, settings, tell

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope, receive)
        path = visit_of(request).path
        self._look(path, scope.get("server"))
        if path == "/metrics" and request.method == "GET":
            text = together(await self._scrape())
            await Response(text, headers={"Content-Type": KIND})(scope, receive, send)
        else:
            await self._answer(path, await Asked.read(request), send)

    def _look(self, path: str, server: Any) -> None:
        """Refuse to work for everybody who can reach a public address, unless that is meant."""
        settings = self._settings
        if settings.keys or settings.insecure or path in OPEN or server is None or private(str(server[0])):
            return
        raise Refusal(
            403,
            f"the service has no key, and {server[0]} can be reached from outside: set STEPSPEC_SERVICE__KEYS, or "
            "STEPSPEC_SERVICE__INSECURE=true to let anybody in",
            code="no_key",
        )

    async def _answer(self, path: str, asked: Asked, send: Send) -> None:
        began, attempts = time.perf_counter(), self._settings.ray.attempts
        for attempt in range(1, attempts + 1):
            way = Way(send)
            try:
                await self._attempt(asked if attempt == 1 else asked.after(time.perf_counter() - began), way)
                return
            except Lost as exc:
                self._tell("lost", path=path, attempt=attempt, begun=way.begun, cause=str(exc))
                if way.begun:
                    refusal = Refusal(503, "who was answering has died; ask again", code="replica_lost", retry=True)
                    await way.break_off(path, refusal)
                    return
            except (Refusal, TimeoutError) as exc:
                if not way.begun:
                    raise
                await way.break_off(path, errors.of(exc))
                return
        message = f"{attempts} replicas of the service died while they worked on this request"
        raise Refusal(503, message, code="replica_lost", retry=False)

    async def _attempt(self, asked: Asked, way: Way) -> None:
        settings = self._settings
        async with aclosing(self._ask(asked)) as answer:
            try:
                async with asyncio.timeout(settings.max_wait):
                    await anext(answer, None)
            except TimeoutError:
                message = f"no replica of the service took the request within {settings.max_wait:g} s"
                raise Refusal(503, message, code="no_replica", retry=True) from None
            async with asyncio.timeout(settings.max_seconds + GRACE + SLACK):
                async for messages in answer:
                    await way.send(messages)
        if not way.ended:
            raise Lost("the answer broke off")


@dataclass(slots=True)
class Way:
    """The way back to the client. The head of an answer is held until there is a body, so that it can be replaced."""

    to: Send
    head: Message | None = None
    begun: bool = False
    ended: bool = False

    async def send(self, messages: Messages) -> None:
        for message in messages:
            if message["type"] == "http.response.start":
                self.head = message
                continue
            if not self.begun and self.head is not None:
                self.begun = True
                await self.to(self.head)
            self.ended = not message.get("more_body", False)
            await self.to(message)

    async def break_off(self, path: str, refusal: Refusal) -> None:
        """End a stream with *refusal*. Raise it if there is no stream: the connection breaks off then."""
        heads: list[tuple[bytes, bytes]] = self.head["headers"] if self.head else []
        if not any(name == b"content-type" and value.startswith(b"text/event-stream") for name, value in heads):
            raise refusal
        await self.to({"type": "http.response.body", "body": reply.failed(path) % refusal.body, "more_body": False})
