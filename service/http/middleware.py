"""
The layer between the server and the routes: the record and the checks of a request, and a response
that ends with its client.

`RequestMiddleware` is the outermost layer of the application. A `StreamedResponse` is produced
while the client waits, and cancelled as soon as the client disconnects.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
import uuid
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect, HTTPConnection
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from stepspec.orchestrator.concurrency import background

from ..admission import Admission, Clients
from ..errors import CLIENT_CLOSED, INTERNAL_ERROR, ApiError, api_error
from ..json_types import HttpHeaders
from ..records import (
    HEALTH_PATHS,
    RequestArrived,
    RequestFailed,
    RequestFinished,
    ServiceObserver,
    ServiceRequest,
)
from ..settings import ServiceSettings

PUBLIC_PATHS = HEALTH_PATHS | {"/", "/version", "/metrics", "/openapi.json"}
"""
The only paths that need no key: health, metrics, and the page, which asks for a key itself.
"""
LOCAL_DOMAINS = (".localhost", ".local", ".internal", ".home.arpa", ".test")
"""Domains below which nobody can register a name."""
SAFE_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
"""A client's own id of a request that is safe in a header and in a log."""


def service_request(connection: HTTPConnection) -> ServiceRequest:
    """Return the record that `RequestMiddleware` made of this request."""
    request = connection.scope["stepspec.request"]
    assert isinstance(request, ServiceRequest)
    return request


@dataclass(frozen=True, slots=True)
class RequestChecks:
    """What `RequestMiddleware` checks requests by, and where it reports them."""

    settings: ServiceSettings
    """The settings of the service."""
    clients: Clients
    """The clients with their keys and limits."""
    admission: Admission
    """The admission of the service. Once it is closed, each response closes its connection."""
    observe: ServiceObserver
    """The receiver of `RequestArrived`, `RequestFailed` and `RequestFinished`."""
    version: str = "0"
    """The version of the service, for a header of each response."""
    session_header: str = ""
    """The header of the session, which served models receive. "": there is none."""


class RequestMiddleware:
    """
    Makes a `ServiceRequest` of every HTTP request, and refuses requests by *checks*.

    It refuses a request without a key, over a limit of its client, or too large. Where no key is
    needed, it refuses requests of other sites' pages unless the settings allow them. A slash at the
    end of a path is ignored.
    """

    def __init__(self, app: ASGIApp, checks: RequestChecks) -> None:
        self._app = app
        self._checks = checks

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if request_path(scope) != "/":
            scope["path"] = scope["path"].rstrip("/") or "/"
        headers = Headers(scope=scope)
        own_id = headers.get("x-request-id", "")
        request = ServiceRequest(
            own_id if SAFE_ID.fullmatch(own_id) else uuid.uuid4().hex,
            scope["method"],
            request_path(scope),
            headers,
            self._checks.session_header.lower(),
        )
        scope["stepspec.request"] = request
        self._checks.observe(RequestArrived(request))
        try:
            await self._handle(request, scope, receive, self._with_headers(request, send))
        finally:
            request.status = request.status or CLIENT_CLOSED
            self._checks.clients.charge(request)
            self._checks.observe(RequestFinished(request))
            forget_frames(request.error)

    async def _handle(
        self,
        request: ServiceRequest,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        try:
            self._check(request)
            await self._app(scope, self._limited(receive), send)
        except ClientDisconnect:
            request.status = CLIENT_CLOSED
        except Exception as exc:
            error = request.in_its_api(api_error(exc))
            request.error = error
            if error.code == INTERNAL_ERROR:
                self._checks.observe(RequestFailed(request, exc))
            if not request.status:  # else the server breaks off the response, which has begun
                body = request.error_body(error)
                response = Response(body, error.status, error.all_headers, "application/json")
                await response(scope, receive, send)

    def _check(self, request: ServiceRequest) -> None:
        """Raise `ApiError` if the request is refused."""
        headers = request.headers
        settings = self._checks.settings
        if not (settings.locked or settings.insecure):
            check_origin(headers, settings.cors_origins)
        client = self._checks.clients.find(headers.get("authorization"), headers.get("x-api-key"))
        if client is None and request.path not in PUBLIC_PATHS:
            raise ApiError(
                401,
                "an API key is needed: send the header Authorization: Bearer KEY, or x-api-key:"
                " KEY, with one of the service's keys",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )
        request.client = client or ""
        self._checks.clients.admit(request)
        length = headers.get("content-length", "")
        self._check_size(int(length) if length.isdecimal() else 0)

    def _check_size(self, size: int) -> None:
        """Raise `ApiError` if a body of *size* bytes is too large."""
        limit = self._checks.settings.max_body_bytes
        if size > limit:
            raise ApiError(413, f"the body is larger than {limit} bytes", code="body_too_large")

    def _limited(self, receive: Receive) -> Receive:
        """Return *receive* with limits for the size of the body and the time until its end."""
        size = 0
        complete = False
        seconds = self._checks.settings.send_seconds
        deadline = asyncio.get_running_loop().time() + seconds

        async def limited() -> Message:
            nonlocal size, complete
            try:
                async with asyncio.timeout_at(None if complete else deadline):
                    message = await receive()
            except TimeoutError:
                raise ApiError(
                    408,
                    f"the body did not arrive within {seconds:g} s",
                    retry=True,
                ) from None
            size += len(message.get("body", b""))
            complete = not message.get("more_body", False)
            self._check_size(size)
            return message

        return limited

    def _with_headers(self, request: ServiceRequest, send: Send) -> Send:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                request.status = request.status or message["status"]
                headers = MutableHeaders(scope=message)
                headers["X-Request-Id"] = request.id
                if self._checks.admission.closed:  # the client's next request finds another process
                    headers["Connection"] = "close"
                if request.anthropic:
                    headers["request-id"] = request.id
                headers["x-stepspec-version"] = self._checks.version
                headers["x-stepspec-overhead-ms"] = f"{request.overhead * 1000:.2f}"
            await send(message)

        return send_with_headers


def request_path(scope: Scope) -> str:
    """
    Return the path without the prefix that a proxy may leave in it.

    Starlette finds routes by the same rule.
    """
    path = str(scope["path"])
    root = str(scope.get("root_path", "")).rstrip("/")
    if root and f"{path}/".startswith(f"{root}/"):
        return path.removeprefix(root) or "/"
    return path


def forget_frames(error: ApiError | None) -> None:
    """
    Remove the tracebacks of *error* and its causes, which nobody reads any more.

    The frames hold the request with its parsed body, which may take a hundred megabytes. The
    request holds the error, so only a full garbage collection would free the body.
    """
    seen: list[BaseException] = []  # causes may form a circle
    cause: BaseException | None = error
    while cause is not None and cause not in seen:
        seen.append(cause)
        cause.__traceback__ = None
        cause = cause.__cause__ or cause.__context__


def check_origin(headers: HttpHeaders, origins: Sequence[str]) -> None:
    """
    Raise `ApiError` if a page of another site asks a service that has no keys.

    Pages of *origins* may ask; "*" means every page. A browser sends a page's requests to any
    address, also of this machine. A page whose name was made to point to this machine (DNS
    rebinding) may read the answers too. Keys stop both. Without keys, the headers `Origin` and
    `Host` do.
    """
    host = headers.get("host", "")
    origin = headers.get("origin")
    own = origin is None or origin.partition("://")[2] == host
    if not own and "*" not in origins and origin not in origins:
        raise ApiError(
            403,
            f"pages of {origin!r} may not use this service: list it in"
            " STEPSPEC_SERVICE__CORS_ORIGINS (or --cors-origin), or set STEPSPEC_SERVICE__KEYS (or"
            " --key)",
            code="origin_not_allowed",
        )
    if registrable(host):
        raise ApiError(
            403,
            f"the service has no key, and {host!r} is not a name of this machine alone: use its"
            " address, set STEPSPEC_SERVICE__KEYS (or --key), or add --insecure to admit every"
            " client",
            code="host_not_allowed",
        )


def registrable(host: str) -> bool:
    """
    Return whether *host*, with or without a port, is a name that others can own.

    Addresses and the names of a local net are not.
    """
    before, _, port = host.rpartition(":")
    name = (before if port.isdecimal() else host).lower().rstrip(".")
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return "." in name and not name.endswith(LOCAL_DOMAINS)
    return False


EVENT_STREAM: HttpHeaders = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",
}
LastEvent: TypeAlias = Callable[[ApiError, bytes], bytes]
"""Makes the last event of a stream from an error, and from its body in the shape of the API."""


class ClientConnection:
    """
    Sends the response to *request*.

    Each method raises `ApiError` if the client does not take a message within *send_seconds*.
    """

    def __init__(self, request: ServiceRequest, send: Send, send_seconds: float) -> None:
        self._request = request
        self._send = send
        self._send_seconds = send_seconds
        self._failure: LastEvent | None = None
        self.started = False
        """Whether the response has begun."""
        self.finished = False
        """Whether the response is complete."""

    async def start(
        self,
        headers: HttpHeaders,
        status: int = 200,
        *,
        failure: LastEvent | None = None,
    ) -> None:
        """Send status and *headers*. *failure* makes the last event of a stream that fails."""
        self._failure = failure
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
        await self._deliver({"type": "http.response.body", "body": body, "more_body": False})
        self.finished = True

    async def fail(self, error: ApiError) -> None:
        """
        End the response with *error*, or raise *error* if the response has not started.

        A stream gets a last event. Any other response stays incomplete, and the server cuts it off.
        """
        request = self._request
        request.error = error
        if not self.started:
            raise error
        if error.status == CLIENT_CLOSED:  # the client takes nothing
            request.status = CLIENT_CLOSED
        elif self._failure is not None and not self.finished:
            error = request.in_its_api(error)
            await self.finish(self._failure(error, request.error_body(error)))

    async def send_json(self, body: bytes) -> None:
        """Send a complete response."""
        await self.start({"Content-Type": "application/json", "Content-Length": str(len(body))})
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


Work: TypeAlias = Callable[[ClientConnection], Coroutine[Any, Any, None]]


class StreamedResponse(Response):
    """
    Runs *work*, which sends the response over its connection.

    *work* is cancelled when the client disconnects or *aborted* is set. The call ends when all
    tasks of *work* have ended. A client that is still connected receives an error.
    """

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

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        connection = ClientConnection(self._request, send, self._send_seconds)
        async with background(
            self._work(connection),
            _disconnected(receive),
            self._aborted.wait(),
        ) as tasks:
            working, disconnecting, _ = tasks
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if connection.finished and not working.done():  # which counts as a disconnect
                await asyncio.wait([working])
            done = working.done()
            disconnected = disconnecting.done()
        if done:
            working.result()
        elif disconnected:
            self._request.status = CLIENT_CLOSED
        else:
            await connection.fail(
                ApiError(
                    503,
                    "the service shut down before the answer was complete",
                    code="shut_down",
                    retry=True,
                )
            )


async def _disconnected(receive: Receive) -> None:
    """Wait until the client disconnects."""
    while (await receive())["type"] != "http.disconnect":
        pass
