"""One request and its answer without a connection between them, so that another process can have the connection."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, cast

from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from . import errors, payloads
from .errors import ApiError
from .middleware import OPEN, service_request
from .runs import GRACE
from .settings import ServiceSettings, private

Messages: TypeAlias = tuple[Message, ...]

KEPT = ("method", "path", "raw_path", "root_path", "query_string", "client", "server", "scheme", "http_version")
PATIENCE = b"x-stainless-read-timeout"
GOODBYE = 5.0  # seconds for an application to notice that its client has gone


@dataclass(frozen=True, slots=True)
class BufferedRequest:
    """One request, whole: plain values only, so that it can travel."""

    scope: Mapping[str, Any]
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes

    @classmethod
    async def read(cls, request: Request) -> BufferedRequest:
        """Wait for all of *request*, which goes on under the id that its visit has."""
        headers = [(name, value) for name, value in request.scope["headers"] if name != b"x-request-id"]
        scope = {name: request.scope[name] for name in KEPT if name in request.scope}
        named = (b"x-request-id", service_request(request).id.encode())
        return cls(scope, (*headers, named), await request.body())

    def after(self, seconds: float) -> BufferedRequest:
        """The same request so much later: a client that waits for an answer in one piece has that much less left."""
        return replace(self, headers=tuple([(name, _less(name, value, seconds)) for name, value in self.headers]))

    @property
    def whole(self) -> Scope:
        return {"type": "http", "asgi": {"version": "3.0"}, **self.scope, "headers": [*self.headers], "state": {}}


async def answered(app: ASGIApp, asked: BufferedRequest) -> AsyncGenerator[Messages]:
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


Ask: TypeAlias = Callable[[BufferedRequest], AsyncGenerator[Messages]]
"""
Has a request answered elsewhere. What comes first says only that somebody began. Raise `Lost` if that one dies, and
`Refusal` if there is no one.
"""
Scrape: TypeAlias = Callable[[], Awaitable[Mapping[str, bytes]]]
"""The metrics of every service, by its name."""
Tell: TypeAlias = Callable[..., None]

SLACK = 10.0  # seconds for an answer to travel


class ReplicaLost(Exception):
    """Who was answering has died."""


class ReplicaProxy:
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
        path = service_request(request).path
        self._look(path, scope.get("server"))
        if path == "/metrics" and request.method == "GET":
            text = together(await self._scrape())
            await Response(text, headers={"Content-Type": KIND})(scope, receive, send)
        else:
            await self._answer(path, await BufferedRequest.read(request), send)

    def _look(self, path: str, server: Any) -> None:
        """Refuse to work for everybody who can reach a public address, unless that is meant."""
        settings = self._settings
        if settings.keys or settings.insecure or path in OPEN or server is None or private(str(server[0])):
            return
        raise ApiError(
            403,
            f"the service has no key, and {server[0]} can be reached from outside: set STEPSPEC_SERVICE__KEYS, or "
            "STEPSPEC_SERVICE__INSECURE=true to let anybody in",
            code="no_key",
        )

    async def _answer(self, path: str, asked: BufferedRequest, send: Send) -> None:
        began, attempts = time.perf_counter(), self._settings.ray.attempts
        for attempt in range(1, attempts + 1):
            way = Way(send)
            try:
                await self._attempt(asked if attempt == 1 else asked.after(time.perf_counter() - began), way)
                return
            except ReplicaLost as exc:
                self._tell("lost", path=path, attempt=attempt, begun=way.begun, cause=str(exc))
                if way.begun:
                    refusal = ApiError(503, "who was answering has died; ask again", code="replica_lost", retry=True)
                    await way.break_off(path, refusal)
                    return
            except (ApiError, TimeoutError) as exc:
                if not way.begun:
                    raise
                await way.break_off(path, errors.of(exc))
                return
        message = f"{attempts} replicas of the service died while they worked on this request"
        raise ApiError(503, message, code="replica_lost", retry=False)

    async def _attempt(self, asked: BufferedRequest, way: Way) -> None:
        settings = self._settings
        async with aclosing(self._ask(asked)) as answer:
            try:
                async with asyncio.timeout(settings.max_wait):
                    await anext(answer, None)
            except TimeoutError:
                message = f"no replica of the service took the request within {settings.max_wait:g} s"
                raise ApiError(503, message, code="no_replica", retry=True) from None
            async with asyncio.timeout(settings.max_seconds + GRACE + SLACK):
                async for messages in answer:
                    await way.send(messages)
        if not way.ended:
            raise ReplicaLost("the answer broke off")


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

    async def break_off(self, path: str, refusal: ApiError) -> None:
        """End a stream with *refusal*. Raise it if there is no stream: the connection breaks off then."""
        heads: list[tuple[bytes, bytes]] = self.head["headers"] if self.head else []
        if not any(name == b"content-type" and value.startswith(b"text/event-stream") for name, value in heads):
            raise refusal
        await self.to({"type": "http.response.body", "body": payloads.failed(path) % refusal.body, "more_body": False})


KIND = CONTENT_TYPE_LATEST
LABEL = "replica"


def together(scrapes: Mapping[str, bytes]) -> bytes:
    """Put *scrapes* together: texts in Prometheus' format, by the name of who told them."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Told(scrapes))
    return generate_latest(registry)


@dataclass(frozen=True, eq=False)
class Told(Collector):
    """Collects what was told elsewhere."""

    scrapes: Mapping[str, bytes]

    def collect(self) -> Iterable[Metric]:
        families: dict[str, Metric] = {}
        for name, text in self.scrapes.items():
            for told in text_string_to_metric_families(text.decode()):
                family = families.setdefault(told.name, Metric(told.name, told.documentation, told.type))
                family.samples += [one._replace(labels={**one.labels, LABEL: name}) for one in told.samples]
        return families.values()
