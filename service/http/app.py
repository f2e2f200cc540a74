"""
The application (routes, errors, middleware), and the server that runs it and drains at the end.

The server is uvicorn with limits for the size of a request's headers and for their time.
"""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any, ClassVar, cast

import uvicorn
from fastapi import FastAPI, Request, Security
from fastapi.security import APIKeyHeader, HTTPBearer
from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import RedirectResponse, Response
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from stepspec.orchestrator.errors import ConfigurationError, near
from stepspec.orchestrator.http.failures import shortage

from ..errors import ApiError
from ..formats.requests import Offer
from ..records import ServiceObserver
from ..settings import ServiceSettings
from ..watch.observers import Metrics
from . import routes
from .descriptors import OncePerSecond, connections_left, raise_limit
from .middleware import RequestMiddleware
from .runs import ServiceContext

MAX_HEADERS = 64 * 1024
"""Bytes of the headers of one request."""
BACKLOG = 2048
"""Connections that the system accepts before the service does."""
CLOSE_SECONDS = 5.0
"""Seconds to close open connections when the time to drain is over."""
KEYS = (
    Security(HTTPBearer(scheme_name="key", auto_error=False)),
    Security(APIKeyHeader(name="x-api-key", scheme_name="x-api-key", auto_error=False)),
)
"""The keys of a route, for its description alone. `RequestMiddleware` checks them."""
TOO_LARGE = f"The headers are larger than {MAX_HEADERS} bytes."


class Unlimited(int):
    """The unknown length of a response. No part of a response exceeds it, and none is missing."""

    def __lt__(self, other: int) -> bool:
        return False

    def __sub__(self, other: int) -> Unlimited:
        return self


class LimitedProtocol(HttpToolsProtocol):
    """
    A connection whose client has limited bytes and `timeout_keep_alive` seconds for headers.

    Everything outside of a body counts as headers: trailers, extensions of chunks, blank lines.
    """

    max_connections: ClassVar[int]
    """Connections that may be open at once. A further connection is closed as it comes."""
    warn: ClassVar[OncePerSecond]
    """Logs that a connection was closed because too many were open."""

    _packet = b""  # the last packet that was received
    _unread = 0  # bytes of headers that are not complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.max_connections:
            self.warn(f"more than {self.max_connections} connections: a new one is closed")
            transport.abort()
        self.timeout_keep_alive_task = self.loop.call_later(
            self.timeout_keep_alive,
            self.timeout_keep_alive_handler,
        )

    def connection_lost(self, exc: Exception | None) -> None:
        super()._unset_keepalive_if_required()
        super().connection_lost(exc)

    def _unset_keepalive_if_required(self) -> None:
        """Let the timer run. Only complete headers stop it, and not just any bytes."""

    def data_received(self, data: bytes) -> None:
        self._unread += len(data)
        self._packet = data
        super().data_received(data)
        if self._unread > MAX_HEADERS:
            self.send_400_response(TOO_LARGE)

    def send_400_response(self, msg: str) -> None:
        if not self.transport.is_closing():
            super().send_400_response(msg)

    def on_headers_complete(self) -> None:
        self._unread = 0
        super()._unset_keepalive_if_required()
        # a colon, a space and the end of the line are 4 bytes
        size = len(self.url) + sum(len(name + value) + 4 for name, value in self.headers)
        if size > MAX_HEADERS:
            self.send_400_response(TOO_LARGE)
            raise HttpParserError(TOO_LARGE)  # ends the parsing of the packet
        if not self._offers_upgrade:
            super().on_headers_complete()
            # HTTP/1.0 has no chunks: the end of the connection ends a stream
            if self.scope["http_version"] == "1.0":
                self.cycle.chunked_encoding = False
                self.cycle.expected_content_length = Unlimited()

    @property
    def _offers_upgrade(self) -> bool:
        """Whether the client offers another protocol than HTTP/1.1. None is supported."""
        return self.parser.should_upgrade() and self.parser.get_method() != b"CONNECT"

    def _unsupported_upgrade_warning(self) -> None:
        """
        Parse the request again without the offer of another protocol.

        A server may ignore the offer, which Java's client makes with every first request. The
        parser takes the body of such a request for the other protocol's.
        """
        if not self._offers_upgrade:
            self.send_400_response("CONNECT is not supported.")
            return
        (end,) = cast("HttpParserUpgrade", sys.exception()).args
        kept = [b"%b: %b\r\n" % header for header in self.headers if header[0] != b"upgrade"]
        line = b"%b %b HTTP/1.1\r\n" % (self.parser.get_method(), self.url)
        self.parser = HttpRequestParser(self)
        super().data_received(b"".join([line, *kept, b"\r\n", self._packet[end:]]))

    def on_body(self, body: bytes) -> None:
        self._unread = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        if not self._offers_upgrade:
            super().on_message_complete()


class Service:
    """
    One service.

    `app` is the application that a server runs, `context` what all requests share, and `metrics`
    the observer that counts.
    """

    def __init__(
        self,
        offer: Offer,
        settings: ServiceSettings,
        observers: Sequence[ServiceObserver] = (),
    ) -> None:
        self.context = context = ServiceContext(offer, settings, observers)
        self.metrics = metrics = Metrics(context.admission, offer)
        context.observers.append(metrics)

        self.app = app = FastAPI(
            title="stepspec",
            version=offer.version,
            lifespan=lambda _: context.open(),
            docs_url=None,  # these two pages would load scripts from other sites
            redoc_url=None,
            root_path=settings.root_path,
            redirect_slashes=False,
        )
        app.openapi = routes.describer(app)  # type: ignore[method-assign]
        for make_router in (routes.models_router, routes.api_router, routes.messages_router):
            app.include_router(make_router(context), dependencies=KEYS if settings.locked else ())
        app.include_router(routes.public_router(context, metrics.scrape))
        app.add_exception_handler(HTTPException, _http_error)
        app.add_middleware(RequestMiddleware, context=context)
        if settings.cors_origins:
            app.add_middleware(
                CORSMiddleware,
                allow_origins=list(settings.cors_origins),
                allow_methods=["GET", "POST"],
                allow_headers=["*"],
                expose_headers=["*"],
            )


async def _http_error(request: Request, exc: Exception) -> Response:
    """
    Raise `ApiError` for Starlette's own *exc*: no such path, or no such method.

    The prefix of a proxy alone is the page's path without its slash. The page needs the slash, and
    only the proxy knows the scheme.
    """
    assert isinstance(exc, HTTPException)
    path = request.scope["path"]
    if path == request.scope["root_path"]:
        return RedirectResponse(str(request.url.replace(scheme="", netloc="", path=f"{path}/")))
    message = f"{path} does not support {request.method}"
    code = "method_not_allowed"
    if exc.status_code == 404:
        hint = near(path, (route.path for route in request.app.routes))
        message = f"there is no path {path}{hint}; /openapi.json lists all paths"
        code = "not_found"
    raise ApiError(exc.status_code, message, code=code, headers=exc.headers)


def listen(host: str, port: int, send_seconds: float = 60.0) -> socket.socket:
    """
    Return a socket that listens at *host* and *port*.

    ``::`` means every address of IPv6 and IPv4, or of IPv4 alone where both cannot share a socket.
    A name with addresses of both families, such as ``localhost``, means that of IPv4.

    On Linux, a connection is closed if its client reads nothing for *send_seconds*. Raise
    `ConfigurationError` if the port cannot be opened.
    """
    host = host.strip("[]")
    is_any = ":" in host and not host.strip(":0")
    if is_any and not socket.has_dualstack_ipv6():
        host = "0.0.0.0"
        is_any = False
    try:
        family, *_ = min(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        listening = socket.create_server(
            (host, port),
            family=family,
            backlog=BACKLOG,
            dualstack_ipv6=is_any,
        )
    except OSError as exc:
        raise ConfigurationError(
            f"cannot listen at {host} port {port}: {exc.strerror or exc}; choose another with"
            " --port (0: any)"
        ) from exc
    # Connections inherit both options. Without TCP_NODELAY a step waits up to 40 ms for the client
    # to acknowledge the step before.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        milliseconds = max(1, round(1000 * send_seconds))
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)
    return listening


class ServiceServer(uvicorn.Server):
    """
    A uvicorn server that drains on the first of SIGTERM, SIGINT and SIGHUP.

    It admits no more requests then, and exits when all are answered, after `drain_seconds` at the
    latest. On the second signal it exits at once. *log* receives its messages.
    """

    def __init__(
        self,
        service: Service,
        settings: ServiceSettings,
        log: Callable[[str], None],
    ) -> None:
        self._warn = OncePerSecond(log)

        class Protocol(LimitedProtocol):
            max_connections = connections_left(raise_limit(), settings)
            warn = self._warn

        config = uvicorn.Config(
            service.app,
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=int(CLOSE_SECONDS),
            timeout_keep_alive=settings.idle_seconds,
            http=Protocol,
            ws="none",
        )
        super().__init__(config)
        self._admission = service.context.admission
        self._drain_seconds = settings.drain_seconds
        self._log = log
        self._draining: asyncio.Task[None] | None = None

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(self._report)
        in_main_thread = threading.current_thread() is threading.main_thread()
        if in_main_thread and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as by nohup
            loop.add_signal_handler(signal.SIGHUP, self._begin_to_end)
        await super().serve(sockets)

    def _report(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Log a shortage of this machine in one line. Log anything else as asyncio does."""
        exception = context.get("exception")
        reason = shortage(exception) if isinstance(exception, OSError) else ""
        if reason:  # asyncio reports one for each connection that waits
            self._warn(f"a connection was not accepted: {reason}")
        else:
            loop.default_exception_handler(context)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to drain; exit at once on the second signal."""
        asyncio.get_running_loop().call_soon_threadsafe(self._begin_to_end)

    def _begin_to_end(self) -> None:
        """Begin to drain. The second time, end at once."""
        admission = self._admission
        if admission.closed:
            admission.aborted.set()
            self.should_exit = True
            return
        admission.closed = True
        self._draining = asyncio.create_task(self._drain())

    async def _drain(self) -> None:
        """Wait until all requests are answered, at most `drain_seconds`. Abort the others."""
        admission = self._admission
        requests = admission.running + admission.waiting
        seconds = self._drain_seconds
        self._log(f"shutting down: {requests} requests may finish within {seconds:g} s")
        try:
            async with asyncio.timeout(seconds):
                await admission.idle()
        except TimeoutError:
            self._log(f"aborting {admission.running + admission.waiting} requests")
            admission.aborted.set()
        self.should_exit = True
