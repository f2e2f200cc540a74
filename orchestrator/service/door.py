"""What every request passes on its way in and out: its id, the key, the size of its body, and the last resort."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from collections.abc import Callable, Iterable

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .errors import LEFT, Refusal, of
from .settings import ServiceSettings
from .visit import CARRIED, Visit, request_id

HEALTH = frozenset({"/health", "/health/liveness", "/health/liveliness", "/health/readiness", "/ping"})
OPEN = HEALTH | {"/", "/version", "/metrics", "/openapi.json"}
"""The only paths that need no key: the upkeep, and the page, which asks for one itself."""


class Keys:
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


class Door:
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
        begins: Callable[[Visit], None],
        ends: Callable[[Visit], None],
        failed: Callable[[Visit, Exception], None],
        session_header: str = "",
    ) -> None:
        self._app, self._version = app, version
        self._keys = Keys(key.get_secret_value() for key in settings.keys)
        self._most, self._patience = settings.max_body_bytes, settings.send_seconds
        self._begins, self._ends, self._failed = begins, ends, failed
        self._carries = (*CARRIED, *([session_header.lower()] if session_header else []))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        visit = Visit(request_id(headers.get("x-request-id")), scope["method"], _path(scope), headers, self._carries)
        scope["stepspec.visit"] = visit
        self._begins(visit)
        try:
            await self._enter(visit, scope, receive, self._labelled(visit, send))
        finally:
            visit.status = visit.status or LEFT
            self._ends(visit)

    async def _enter(self, visit: Visit, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            self._look(visit)
            await self._app(scope, self._measured(receive), send)
        except ClientDisconnect:
            visit.status = LEFT
        except Exception as exc:
            refusal = of(exc)
            if not isinstance(exc, Refusal):
                self._failed(visit, exc)
            visit.refusal = refusal
            if not visit.status:
                await refuse(refusal, visit, send)  # Otherwise it has begun, and is broken off by the server.

    def _look(self, visit: Visit) -> None:
        if visit.path not in OPEN and not self._keys.open(visit.headers.get("authorization")):
            raise Refusal(
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
                raise Refusal(408, f"the body did not come within {self._patience:g} s", retry=True) from None
            size += len(message.get("body", b""))
            whole = not message.get("more_body", False)
            if size > self._most:
                raise self._too_large()
            return message

        return measured

    def _too_large(self) -> Refusal:
        return Refusal(413, f"the body is larger than {self._most} bytes", code="body_too_large")

    def _labelled(self, visit: Visit, send: Send) -> Send:
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


async def refuse(refusal: Refusal, visit: Visit, send: Send) -> None:
    """Answer with *refusal*."""
    headers = {"Content-Type": "application/json", "Content-Length": str(len(refusal.body)), **refusal.all_headers}
    raw = [(name.lower().encode(), value.encode("latin-1", "replace")) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": refusal.status, "headers": raw})
    await send({"type": "http.response.body", "body": b"" if visit.method == "HEAD" else refusal.body})
