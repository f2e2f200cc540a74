"""
Requests that are answered in another process: they travel as values, and their answers come back as messages.

The front of the Ray application holds the clients' connections. `ReplicaProxy` sends each request to a replica, and to
another one if that dies before any of its answer was sent. Nothing here imports Ray, so that it is tested without it.
"""

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

from ..concurrency import background
from .http.errors import ApiError, api_error
from .http.middleware import PUBLIC_PATHS, service_request
from .http.runs import GRACE
from .http.streaming import ForwardedAnswer
from .settings import ServiceSettings, private
from .watch.records import ServiceRequest

Messages: TypeAlias = tuple[Message, ...]

SCOPE_KEYS = ("method", "path", "raw_path", "root_path", "query_string", "client", "server", "scheme", "http_version")
CLIENT_TIMEOUT = b"x-stainless-read-timeout"
CLOSE_SECONDS = 5.0  # for an application to notice that its client has disconnected
TRAVEL_SECONDS = 10.0  # for an answer to travel from a replica
LABEL = "replica"  # of every metric


@dataclass(frozen=True, slots=True)
class BufferedRequest:
    """A complete request of plain values, which can be sent to another process."""

    scope: Mapping[str, Any]
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes

    @classmethod
    async def read(cls, request: Request) -> BufferedRequest:
        """Read all of *request*. It keeps the id of its `ServiceRequest`."""
        headers = [(name, value) for name, value in request.scope["headers"] if name != b"x-request-id"]
        scope = {name: request.scope[name] for name in SCOPE_KEYS if name in request.scope}
        id_header = (b"x-request-id", service_request(request).id.encode())
        return cls(scope, (*headers, id_header), await request.body())

    def after(self, seconds: float) -> BufferedRequest:
        """Return a copy for a later attempt: the client's own timeout is shorter by *seconds*."""
        return replace(self, headers=tuple([(name, _less(name, value, seconds)) for name, value in self.headers]))

    @property
    def asgi_scope(self) -> Scope:
        return {"type": "http", "asgi": {"version": "3.0"}, **self.scope, "headers": [*self.headers], "state": {}}


def _less(name: bytes, value: bytes, seconds: float) -> bytes:
    if name != CLIENT_TIMEOUT:
        return value
    try:
        return b"%.3f" % max(float(value) - seconds, 1.0)
    except ValueError:
        return value


async def stream_messages(app: ASGIApp, request: BufferedRequest) -> AsyncGenerator[Messages]:
    """
    Yield what *app* answers: an empty tuple at first, and then all messages since the last time.

    Closing the generator disconnects the client of *app*, and waits until *app* has ended.
    """
    sent, changed, disconnected = list[Message](), asyncio.Event(), asyncio.Event()
    unread = True

    async def receive() -> Message:
        nonlocal unread
        if unread:
            unread = False
            return {"type": "http.request", "body": request.body, "more_body": False}
        await disconnected.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        sent.append(message)
        changed.set()

    work = cast("Coroutine[Any, Any, None]", app(request.asgi_scope, receive, send))
    async with background(work) as (working,):
        working.add_done_callback(lambda _: changed.set())
        try:
            yield ()
            while sent or not working.done():
                await changed.wait()
                changed.clear()
                if sent:
                    messages, sent[:] = tuple(sent), ()
                    yield messages
            working.result()
        finally:
            disconnected.set()
            await asyncio.wait([working], timeout=CLOSE_SECONDS)  # before it is cancelled


SendToReplica: TypeAlias = Callable[[BufferedRequest], AsyncGenerator[Messages]]
"""
Sends a request to a replica and yields its answer; the first item says only that a replica took the request. Raises
`ReplicaLost` if the replica dies, and `ApiError` if there is none.
"""
Scrape: TypeAlias = Callable[[], Awaitable[Mapping[str, bytes]]]
"""Returns the metrics of every replica, by its name."""
Log: TypeAlias = Callable[..., None]


class ReplicaLost(Exception):
    """The replica that answered has died."""


class ReplicaProxy:
    """
    Answers requests with what *send_to_replica* yields, and ``/metrics`` with what *scrape* returns.

    Anything but HTTP is for *app*. *log* receives every lost replica. It runs behind a `RequestMiddleware`.
    """

    def __init__(
        self, app: ASGIApp, send_to_replica: SendToReplica, scrape: Scrape, settings: ServiceSettings, log: Log
    ) -> None:
        self._app, self._send_to_replica, self._scrape = app, send_to_replica, scrape
        self._settings, self._log = settings, log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope, receive)
        record = service_request(request)
        self._check_address(record.path, scope.get("server"))
        if record.path == "/metrics" and request.method == "GET":
            text = merge_metrics(await self._scrape())
            await Response(text, headers={"Content-Type": CONTENT_TYPE_LATEST})(scope, receive, send)
        else:
            await self._answer(record, await BufferedRequest.read(request), send)

    def _check_address(self, path: str, server: Any) -> None:
        """Refuse requests at a public address without a key, unless the settings allow them."""
        settings = self._settings
        if settings.locked or settings.insecure or path in PUBLIC_PATHS or server is None or private(str(server[0])):
            return
        raise ApiError(
            403,
            f"the service has no key, and {server[0]} can be reached from outside: set STEPSPEC_SERVICE__KEYS, or "
            "STEPSPEC_SERVICE__INSECURE=true to admit every client",
            code="no_key",
        )

    async def _answer(self, record: ServiceRequest, request: BufferedRequest, send: Send) -> None:
        began, attempts = time.perf_counter(), self._settings.ray.attempts
        for attempt in range(1, attempts + 1):
            answer = HeldAnswer(send, record.path)
            try:
                await self._attempt(request if attempt == 1 else request.after(time.perf_counter() - began), answer)
                return
            except ReplicaLost as exc:
                self._log("lost", path=record.path, attempt=attempt, begun=answer.started, cause=str(exc))
                if answer.started:
                    message = "the replica that answered has died; send the request again"
                    await answer.fail(record, ApiError(503, message, code="replica_lost", retry=True))
                    return
            except (ApiError, TimeoutError) as exc:
                if not answer.started:
                    raise
                await answer.fail(record, api_error(exc))
                return
        message = f"{attempts} replicas of the service died while they worked on this request"
        raise ApiError(503, message, code="replica_lost", retry=False)

    async def _attempt(self, request: BufferedRequest, answer: HeldAnswer) -> None:
        settings = self._settings
        async with aclosing(self._send_to_replica(request)) as replies:
            try:
                async with asyncio.timeout(settings.max_wait):
                    await anext(replies, None)
            except TimeoutError:
                message = f"no replica of the service took the request within {settings.max_wait:g} s"
                raise ApiError(503, message, code="no_replica", retry=True) from None
            async with asyncio.timeout(settings.max_seconds + GRACE + TRAVEL_SECONDS):
                async for messages in replies:
                    await answer.send(messages)
        if not answer.finished:
            raise ReplicaLost("the answer broke off")


@dataclass(slots=True)
class HeldAnswer:
    """
    The answer of a replica on its way to the client.

    Its headers are held back until there is a body: until then another replica can answer instead.
    """

    to: Send
    path: str
    head: Message | None = None
    started: bool = False
    finished: bool = False
    events: ForwardedAnswer | None = None

    async def send(self, messages: Messages) -> None:
        for message in messages:
            if message["type"] == "http.response.start":
                self.head = message
                continue
            if not self.started and self.head is not None:
                self.started = True
                await self.to(self.head)
                if self._streams(self.head):
                    self.events = ForwardedAnswer(self.path, stream=True)
            self.finished = not message.get("more_body", False)
            body: bytes = message.get("body", b"")
            if self.events is not None:
                body = self.events.add(body) + (self.events.finish() if self.finished else b"")
            await self.to({**message, "body": body})

    async def fail(self, request: ServiceRequest, error: ApiError) -> None:
        """End the stream of *request* with *error*. Any other answer is cut off: *error* is raised."""
        if self.events is None:
            raise error
        error = request.in_its_api(error)
        last = self.events.failed(error, request.error_body(error))
        await self.to({"type": "http.response.body", "body": last, "more_body": False})

    @staticmethod
    def _streams(head: Message) -> bool:
        headers: list[tuple[bytes, bytes]] = head["headers"]
        return any(name == b"content-type" and value.startswith(b"text/event-stream") for name, value in headers)


def merge_metrics(scrapes: Mapping[str, bytes]) -> bytes:
    """Merge the metrics of all replicas, texts in Prometheus' format by name; each sample gets the name as a label."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(ScrapedMetrics(scrapes))
    return generate_latest(registry)


@dataclass(frozen=True, eq=False)
class ScrapedMetrics(Collector):
    """Collects metrics that were scraped from replicas."""

    scrapes: Mapping[str, bytes]

    def collect(self) -> Iterable[Metric]:
        families: dict[str, Metric] = {}
        for name, text in self.scrapes.items():
            for scraped in text_string_to_metric_families(text.decode()):
                new = Metric(scraped.name, scraped.documentation, scraped.type)
                samples = [sample._replace(labels={**sample.labels, LABEL: name}) for sample in scraped.samples]
                families.setdefault(scraped.name, new).samples += samples
        return families.values()
