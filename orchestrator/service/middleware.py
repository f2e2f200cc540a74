"""One request to the service, from the door and back: what is known about it, for headers, logs and metrics."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import re
import time
import uuid
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect, HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..chain import Role
from .errors import LEFT, ApiError, of
from .settings import ServiceSettings

CARRIED = ("traceparent", "tracestate")

_NAME = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_SHARE_OF_TIMEOUT = 0.95  # the rest is for the answer to travel


@dataclass(slots=True, eq=False)
class UpstreamCall:
    """
    That a request was passed on to the server at *url*, for *seconds* from the second *started* of the visit.

    *first* is when the answer began, in seconds since then, and *status* its own; 0 if there was none. *failure* names
    what went wrong, if anything did.
    """

    role: Role
    model: str
    url: str
    started: float
    seconds: float = 0.0
    first: float | None = None
    status: int = 0
    failure: str | None = None

    def answered(self, status: int, at: float) -> None:
        """Note that an answer with this *status* began *at* that second of the visit."""
        self.status, self.first = status, at - self.started
        self.failure = str(status) if status >= 400 else None


@dataclass(slots=True, eq=False)
class ServiceRequest:
    """
    What is known about one request. Seconds are since *began*, on the monotonic clock.

    *queued* it waited for a place; *begun* is when the engine took over and *upstream* how long some served model was
    working for it, None while that is not known. *first_step* is when its first verified step was sent. *carried* are
    the headers that go on to the served models, at first those named by *carries*; *notes* are what the log tells
    besides. *passed* has one entry for each server that the request was passed on to.
    """

    id: str
    method: str
    path: str
    headers: Mapping[str, str]
    carries: tuple[str, ...] = CARRIED
    began: float = field(default_factory=time.perf_counter)
    model: str = ""
    stream: bool = False
    status: int = 0
    refusal: ApiError | None = None
    queued: float = 0.0
    begun: float | None = None
    upstream: float | None = None
    first_step: float | None = None
    carried: Mapping[str, str] = field(init=False)
    notes: dict[str, Any] = field(default_factory=dict[str, Any])
    passed: list[UpstreamCall] = field(default_factory=list[UpstreamCall])

    def __post_init__(self) -> None:
        self.carried = {name: self.headers[name] for name in self.carries if name in self.headers}

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.began

    @contextmanager
    def passing(self, role: Role, model: str, url: str) -> Generator[UpstreamCall]:
        """Note in `passed` what becomes of the request that is passed on in the block."""
        passed = UpstreamCall(role, model, url, self.seconds)
        self.passed.append(passed)
        try:
            yield passed
        except BaseException as exc:
            passed.failure = passed.failure or type(exc).__name__
            raise
        finally:
            passed.seconds = self.seconds - passed.started

    @property
    def overhead(self) -> float:
        """Seconds that were the service's own; of a stream that has only begun, until the engine took over."""
        if self.begun is not None and self.upstream is None:
            return max(0.0, self.begun - self.queued)
        return max(0.0, self.seconds - self.queued - (self.upstream or 0.0))

    @property
    def patience(self) -> float | None:
        """How long the client waits for an answer, if it says so (the OpenAI SDK does), with time to spare."""
        try:
            seconds = float(self.headers.get("x-stainless-read-timeout", ""))
        except ValueError:
            return None
        return seconds * _SHARE_OF_TIMEOUT if 0 < seconds < float("inf") else None


def service_request(connection: HTTPConnection) -> ServiceRequest:
    """The visit that a request belongs to."""
    visit = connection.scope["stepspec.visit"]
    assert isinstance(visit, ServiceRequest)
    return visit


def request_id(given: str | None) -> str:
    """The client's own id, if it can stand in a header and in a log; otherwise a new one."""
    return given if given and _NAME.fullmatch(given) else uuid.uuid4().hex


HEALTH = frozenset({"/health", "/health/liveness", "/health/liveliness", "/health/readiness", "/ping"})
OPEN = HEALTH | {"/", "/version", "/metrics", "/openapi.json"}
"""The only paths that need no key: the upkeep, and the page, which asks for one itself."""


class ApiKeys:
    """The keys that open the service. Comparing takes the same time, however much of a guess is right."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._digests = [hashlib.sha256(key.encode()).digest() for key in keys]

    def open(self, authorization: str | None) -> bool:
        """Whether an ``Authorization`` header holds one of them; without any, everything opens."""
        if not self._digests:
            return True
        scheme, _, key = (authorization or "").partition(" ")
        given = hashlib.sha256(key.strip().encode()).digest()
        right = [hmac.compare_digest(given, digest) for digest in self._digests]
        return scheme.lower() == "bearer" and any(right)


class RequestMiddleware:
    """
    Makes a `Visit` of every request, and refuses what comes without a key or with too much.

    *begins* is told of every visit, and *ends* when it is over. The *session_header* of a request goes on to the served
    models.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        settings: ServiceSettings,
        version: str,
        begins: Callable[[ServiceRequest], None],
        ends: Callable[[ServiceRequest], None],
        failed: Callable[[ServiceRequest, Exception], None],
        session_header: str = "",
    ) -> None:
        self._app, self._version = app, version
        self._keys = ApiKeys(key.get_secret_value() for key in settings.keys)
        self._most, self._patience = settings.max_body_bytes, settings.send_seconds
        self._begins, self._ends, self._failed = begins, ends, failed
        self._carries = (*CARRIED, *([session_header.lower()] if session_header else []))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        visit = ServiceRequest(
            request_id(headers.get("x-request-id")), scope["method"], _path(scope), headers, self._carries
        )
        scope["stepspec.visit"] = visit
        self._begins(visit)
        try:
            await self._enter(visit, scope, receive, self._labelled(visit, send))
        finally:
            visit.status = visit.status or LEFT
            self._ends(visit)

    async def _enter(self, visit: ServiceRequest, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            self._look(visit)
            await self._app(scope, self._measured(receive), send)
        except ClientDisconnect:
            visit.status = LEFT
        except Exception as exc:
            refusal = of(exc)
            if not isinstance(exc, ApiError):
                self._failed(visit, exc)
            visit.refusal = refusal
            if not visit.status:
                await refuse(refusal, visit, send)  # Otherwise it has begun, and is broken off by the server.

    def _look(self, visit: ServiceRequest) -> None:
        if visit.path not in OPEN and not self._keys.open(visit.headers.get("authorization")):
            raise ApiError(
                401,
                "a key is needed: send the header Authorization: Bearer KEY, with one of the service's keys",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )
        length = visit.headers.get("content-length", "")
        if length.isdecimal() and int(length) > self._most:
            raise self._too_large()

    def _measured(self, receive: Receive) -> Receive:
        size, whole = 0, False
        ends = asyncio.get_running_loop().time() + self._patience

        async def measured() -> Message:
            nonlocal size, whole
            try:
                async with asyncio.timeout_at(None if whole else ends):
                    message = await receive()
            except TimeoutError:
                raise ApiError(408, f"the body did not come within {self._patience:g} s", retry=True) from None
            size += len(message.get("body", b""))
            whole = not message.get("more_body", False)
            if size > self._most:
                raise self._too_large()
            return message

        return measured

    def _too_large(self) -> ApiError:
        return ApiError(413, f"the body is larger than {self._most} bytes", code="body_too_large")

    def _labelled(self, visit: ServiceRequest, send: Send) -> Send:
        async def labelled(message: Message) -> None:
            if message["type"] == "http.response.start":
                visit.status = visit.status or message["status"]
                headers = MutableHeaders(scope=message)
                headers["X-Request-Id"] = visit.id
                headers["x-stepspec-version"] = self._version
                headers.setdefault("x-stepspec-overhead-ms", f"{visit.overhead * 1000:.2f}")  # a front brings one
            await send(message)

        return labelled


def _path(scope: Scope) -> str:
    """The path without what a proxy may leave before it; routes are found by the same rule."""
    path, root = str(scope["path"]), str(scope.get("root_path", "")).rstrip("/")
    return path.removeprefix(root) if root and path.startswith(f"{root}/") else path


async def refuse(refusal: ApiError, visit: ServiceRequest, send: Send) -> None:
    """Answer with *refusal*."""
    headers = {"Content-Type": "application/json", "Content-Length": str(len(refusal.body)), **refusal.all_headers}
    raw = [(name.lower().encode(), value.encode("latin-1", "replace")) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": refusal.status, "headers": raw})
    await send({"type": "http.response.body", "body": b"" if visit.method == "HEAD" else refusal.body})
