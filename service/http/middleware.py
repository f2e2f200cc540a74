"""
Between the server and the routes: the record of a request, its key and size, and the response while
a client waits.

`RequestMiddleware` is the outermost layer of the application. A `StreamedResponse` is produced
while the client waits, and cancelled as soon as the client disconnects.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
import uuid
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeAlias

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect, HTTPConnection
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from stepspec.orchestrator.concurrency import background

from ..admission import Admission, Clients
from ..errors import CLIENT_CLOSED, INTERNAL_ERROR, ApiError, api_error
from ..records import (
    HEALTH_PATHS,
    TRACE_HEADERS,
    RequestArrived,
    RequestFailed,
    RequestFinished,
    ServiceObserver,
    ServiceRequest,
)
from ..settings import ServiceSettings

PUBLIC_PATHS = HEALTH_PATHS | {"/", "/version", "/metrics", "/openapi.json"}
"""
The only paths that need no key: health and metrics, and the page, which asks for a key itself.
"""

# nobody can register a name below them
LOCAL_DOMAINS = (".localhost", ".local", ".internal", ".home.arpa", ".test")
_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")


def service_request(connection: HTTPConnection) -> ServiceRequest:
    """Return the record that `RequestMiddleware` made of this request."""
    request = connection.scope["stepspec.request"]
    assert isinstance(request, ServiceRequest)
    return request


def request_id(header: str | None) -> str:
    """Return the client's own id if it is safe in a header and in a log; otherwise a new one."""
    return header if header and _ID.fullmatch(header) else uuid.uuid4().hex


class RequestMiddleware:
    """
    Makes a `ServiceRequest` of every HTTP request; refuses those without a key, over a limit, and
    too large.

    Where no key is needed, it refuses those of other sites' pages, unless *settings* allow them.

    A slash at the end of a path is ignored. Once *admission* is closed, each response closes its
    connection, so that the client's next request finds another process.

    *observe* receives `RequestArrived`, `RequestFailed` and `RequestFinished`. The *session_header*
    of a request is forwarded to the served models; "" if there is none.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        settings: ServiceSettings,
        clients: Clients,
        version: str,
        observe: ServiceObserver,
        admission: Admission,
        session_header: str = "",
    ) -> None:
        self._app = app
        self._version = version
        self._observe = observe
        self._clients = clients
        self._admission = admission
        self._max_bytes = settings.max_body_bytes
        self._body_seconds = settings.send_seconds
        self._checks_origin = not (settings.locked or settings.insecure)
        self._origins = settings.cors_origins
        self._session_header = session_header.lower()
        self._forward = (*TRACE_HEADERS, *([self._session_header] if session_header else []))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if request_path(scope) != "/":
            scope["path"] = scope["path"].rstrip("/") or "/"
        headers = Headers(scope=scope)
        request = ServiceRequest(
            request_id(headers.get("x-request-id")),
            scope["method"],
            request_path(scope),
            headers,
            self._forward,
        )
        request.session = request.forwarded.get(self._session_header, "")
        scope["stepspec.request"] = request
        self._observe(RequestArrived(request))
        try:
            await self._handle(request, scope, receive, self._with_headers(request, send))
        finally:
            request.status = request.status or CLIENT_CLOSED
            self._clients.charge(request)
            self._observe(RequestFinished(request))
            forget_frames(request.error)

    async def _handle(
        self, request: ServiceRequest, scope: Scope, receive: Receive, send: Send
    ) -> None:
        try:
            self._check(request)
            await self._app(scope, self._limited(receive), send)
        except ClientDisconnect:
            request.status = CLIENT_CLOSED
        except Exception as exc:
            request.error = error = request.in_its_api(api_error(exc))
            if error.code == INTERNAL_ERROR:
                self._observe(RequestFailed(request, exc))
            if not request.status:
                response = error_response(error, request)
                # A response that has begun is broken off by the server.
                await response(scope, receive, send)

    def _check(self, request: ServiceRequest) -> None:
        if self._checks_origin:
            check_origin(request.headers, self._origins)
        client = self._clients.find(
            request.headers.get("authorization"), request.headers.get("x-api-key")
        )
        if client is None and request.path not in PUBLIC_PATHS:
            raise ApiError(
                401,
                "an API key is needed: send the header Authorization: Bearer KEY, or x-api-key:"
                " KEY, with one of the service's keys",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )
        request.client = client or ""
        self._clients.admit(request)
        length = request.headers.get("content-length", "")
        if length.isdecimal() and int(length) > self._max_bytes:
            raise self._too_large()

    def _limited(self, receive: Receive) -> Receive:
        """Limit the size of the body, and the time until all of it is there."""
        size = 0
        complete = False
        deadline = asyncio.get_running_loop().time() + self._body_seconds

        async def limited() -> Message:
            nonlocal size, complete
            try:
                async with asyncio.timeout_at(None if complete else deadline):
                    message = await receive()
            except TimeoutError:
                text = f"the body did not arrive within {self._body_seconds:g} s"
                raise ApiError(408, text, retry=True) from None
            size += len(message.get("body", b""))
            complete = not message.get("more_body", False)
            if size > self._max_bytes:
                raise self._too_large()
            return message

        return limited

    def _too_large(self) -> ApiError:
        return ApiError(
            413, f"the body is larger than {self._max_bytes} bytes", code="body_too_large"
        )

    def _with_headers(self, request: ServiceRequest, send: Send) -> Send:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                request.status = request.status or message["status"]
                headers = MutableHeaders(scope=message)
                headers["X-Request-Id"] = request.id
                if self._admission.closed:
                    headers["Connection"] = "close"
                if request.anthropic:
                    headers["request-id"] = request.id
                headers["x-stepspec-version"] = self._version
                headers["x-stepspec-overhead-ms"] = f"{request.overhead * 1000:.2f}"
            await send(message)

        return send_with_headers


def request_path(scope: Scope) -> str:
    """
    Return the path without the prefix that a proxy may leave in it; routes are found by the same
    rule.
    """
    path = str(scope["path"])
    root = str(scope.get("root_path", "")).rstrip("/")
    return path.removeprefix(root) or "/" if root and f"{path}/".startswith(f"{root}/") else path


def forget_frames(error: ApiError | None) -> None:
    """
    Take the traceback off *error*, which nobody reads any more, and off its causes.

    The frames hold the request, the request the error, and all of them the parsed body, which may
    take a hundred megabytes: only a full garbage collection would free it.
    """
    seen: list[BaseException] = []  # causes may form a circle
    each: BaseException | None = error
    while each is not None and each not in seen:
        seen.append(each)
        each.__traceback__ = None
        each = each.__cause__ or each.__context__


def error_response(error: ApiError, request: ServiceRequest) -> Response:
    return Response(request.error_body(error), error.status, error.all_headers, "application/json")


def check_origin(headers: Mapping[str, str], origins: Sequence[str]) -> None:
    """
    Raise `ApiError` if a request to a service without keys comes from a page other than its own and
    *origins*.

    A browser sends a page's requests to any address, this machine's own included, and a page whose
    name is made to point there (DNS rebinding) may read the answers too. Keys stop both; without
    them, `Host` and `Origin` do.
    """
    host = headers.get("host", "")
    origin = headers.get("origin")
    if (
        origin is not None
        and "*" not in origins
        and origin not in origins
        and origin.partition("://")[2] != host
    ):
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
    Whether *host*, with or without a port, is a name that others can own: no address, and no name
    of a local net.
    """
    before, _, port = host.rpartition(":")
    name = (before if port.isdecimal() else host).lower().rstrip(".")
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return "." in name and not name.endswith(LOCAL_DOMAINS)
    return False


EVENT_STREAM: Mapping[str, str] = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",
}
Failure: TypeAlias = Callable[[ApiError, bytes], bytes]
"""Makes the last event of a stream from an error, and from its body in the shape of the API."""


class ClientConnection:
    """
    Sends the response to *request*.

    The client has to take each message within *send_seconds*, or `ApiError` is raised.
    """

    def __init__(self, request: ServiceRequest, send: Send, send_seconds: float) -> None:
        self._request = request
        self._send = send
        self._send_seconds = send_seconds
        self._failure: Failure | None = None
        self.started = self.finished = False

    async def start(
        self, headers: Mapping[str, str], status: int = 200, *, failure: Failure | None = None
    ) -> None:
        """Send status and *headers*. *failure* makes the last event of a stream that fails."""
        self._failure = failure
        raw = [
            (name.lower().encode(), value.encode("latin-1", "replace"))
            for name, value in headers.items()
        ]
        self.started = True
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
        End a stream that has started with *error*. Any other response stays incomplete: the server
        cuts it off.
        """
        if self._failure is not None and not self.finished:
            error = self._request.in_its_api(error)
            await self.finish(self._failure(error, self._request.error_body(error)))

    async def send_json(self, body: bytes) -> None:
        """Send a complete response."""
        await self.start({"Content-Type": "application/json", "Content-Length": str(len(body))})
        await self.finish(body)

    async def _deliver(self, message: dict[str, object]) -> None:
        try:
            async with asyncio.timeout(self._send_seconds):
                await self._send(message)
        except TimeoutError:
            text = f"the client took nothing for {self._send_seconds:g} s"
            raise ApiError(CLIENT_CLOSED, text, code="client_stalled") from None


Work: TypeAlias = Callable[[ClientConnection], Coroutine[Any, Any, None]]


class StreamedResponse(Response):
    """
    Runs *work*, which sends the response over its connection.

    When the client disconnects, or *aborted* is set, *work* is cancelled, and this waits until all
    that it started is cancelled too. A client that is still connected receives an error.
    """

    def __init__(
        self, request: ServiceRequest, work: Work, send_seconds: float, aborted: asyncio.Event
    ) -> None:
        super().__init__()
        self._request = request
        self._work = work
        self._send_seconds = send_seconds
        self._aborted = aborted

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        connection = ClientConnection(self._request, send, self._send_seconds)
        async with background(
            self._work(connection), _disconnected(receive), self._aborted.wait()
        ) as tasks:
            working, disconnecting, _ = tasks
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            # A complete response counts as a disconnect.
            if connection.finished and not working.done():
                await asyncio.wait([working])
            done = working.done()
            disconnected = disconnecting.done()
        if done:
            working.result()
        elif disconnected:
            self._request.status = CLIENT_CLOSED
        else:
            await self._abort(connection)

    async def _abort(self, connection: ClientConnection) -> None:
        message = "the service shut down before the answer was complete"
        error = self._request.error = ApiError(503, message, code="shut_down", retry=True)
        if not connection.started:
            raise error
        await connection.fail(error)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
