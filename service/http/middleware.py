"""
The outermost layer of the application, between the server and the routes: the record and the checks
of a request.
"""

from __future__ import annotations

import ipaddress
import re
import uuid
from collections.abc import Sequence

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..errors import CLIENT_CLOSED, INTERNAL_ERROR, ApiError
from ..json_types import HttpHeaders
from ..records import (
    PUBLIC_PATHS,
    RequestArrived,
    RequestFailed,
    RequestFinished,
    ServiceRequest,
)
from .runs import ServiceContext

LOCAL_DOMAINS = (".localhost", ".local", ".internal", ".home.arpa", ".test")
"""Domains below which nobody can register a name."""
SAFE_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
"""A client's id of a request that is safe in a header and in a log."""


class RequestMiddleware:
    """
    Makes a `ServiceRequest` of every HTTP request, and checks the request.

    It refuses a request without a key, or over the limit of its client. If the service has no keys,
    it refuses requests from pages of other sites, unless the settings allow them. A slash at the
    end of a path is ignored.
    """

    def __init__(self, app: ASGIApp, context: ServiceContext) -> None:
        self._app = app
        self._context = context

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
            self._context.offer.session_header.lower(),
        )
        scope["stepspec.request"] = request
        self._context.observe(RequestArrived(request))
        send = self._with_headers(request, send)
        try:
            self._check(request)
            await self._app(scope, receive, send)
        except ClientDisconnect:
            request.status = CLIENT_CLOSED
        except Exception as exc:
            request.error = error = request.error_of(exc)
            if error.code == INTERNAL_ERROR:
                self._context.observe(RequestFailed(request, exc))
            if error.status == CLIENT_CLOSED:
                request.status = CLIENT_CLOSED
            if not request.status:  # otherwise the response has begun, and the server breaks it off
                body = request.error_body(error)
                response = Response(body, error.status, error.all_headers, "application/json")
                await response(scope, receive, send)
            forget_frames(exc)
        finally:
            request.status = request.status or CLIENT_CLOSED
            self._context.observe(RequestFinished(request))

    def _check(self, request: ServiceRequest) -> None:
        """Raise `ApiError` if the request is refused."""
        headers = request.headers
        settings = self._context.settings
        if not (settings.locked or settings.insecure):
            check_origin(headers, settings.cors_origins)
        client = self._context.clients.find(headers.get("authorization"), headers.get("x-api-key"))
        if client is None and request.path not in PUBLIC_PATHS:
            raise ApiError(
                401,
                "an API key is needed: send the header Authorization: Bearer KEY, or x-api-key:"
                " KEY, with one of the service's keys",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )
        request.client = client or ""
        self._context.clients.admit(request)

    def _with_headers(self, request: ServiceRequest, send: Send) -> Send:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                request.status = request.status or message["status"]
                headers = {
                    "X-Request-Id": request.id,
                    "x-stepspec-version": self._context.offer.version,
                    "x-stepspec-overhead-ms": f"{request.overhead * 1000:.2f}",
                }
                if self._context.admission.closed:
                    # the client has to send its next request to another process
                    headers["Connection"] = "close"
                if request.anthropic:
                    headers["request-id"] = request.id
                MutableHeaders(scope=message).update(headers)
            await send(message)

        return send_with_headers


def request_path(scope: Scope) -> str:
    """
    Return the path without ``root_path``, the prefix that a proxy may leave in the path.

    Starlette finds the route of a request by the same rule.
    """
    path: str = scope["path"]
    root: str = scope.get("root_path", "").rstrip("/")
    if f"{path}/".startswith(f"{root}/"):
        return path.removeprefix(root) or "/"
    return path


def forget_frames(exc: BaseException) -> None:
    """
    Remove the tracebacks of *exc* and its causes. Nobody reads them any more.

    The frames of a traceback hold the parsed body, which may take a hundred megabytes. A frame
    holds a task, and the task holds the exception, so only a full garbage collection would free the
    body.
    """
    seen: list[BaseException] = []  # causes may form a circle
    cause: BaseException | None = exc
    while cause is not None and cause not in seen:
        seen.append(cause)
        cause.__traceback__ = None
        cause = cause.__cause__ or cause.__context__


def check_origin(headers: HttpHeaders, origins: Sequence[str]) -> None:
    """
    Raise `ApiError` if a page of another site sends a request to a service that has no keys.

    Pages of *origins* may send requests. "*" means all pages.

    A browser lets any page send requests to this machine. If the name of the page's site points to
    this machine (DNS rebinding), the page can read the answers too. A key prevents both. A service
    without keys checks the headers ``Origin`` and ``Host``.
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
    Return whether *host*, with or without a port, is a name that somebody can register.

    Nobody can register an address, or a name of a local network.
    """
    before, _, port = host.rpartition(":")
    name = (before if port.isdecimal() else host).lower().rstrip(".")
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return "." in name and not name.endswith(LOCAL_DOMAINS)
    return False
