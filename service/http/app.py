"""
The application: routes, errors and middleware over an offer; and the server that runs it and drains
at the end.

Its HTTP is that of uvicorn with limits for the size of a request's headers and the time they may
take.
"""

from __future__ import annotations

import asyncio
import errno
import signal
import socket
import sys
import threading
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from types import FrameType
from typing import Any, ClassVar, cast

import uvicorn
from fastapi import FastAPI, Request
from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from stepspec.orchestrator.backends.vllm.failures import shortage
from stepspec.orchestrator.errors import ConfigurationError, near

from ..admission import Drain
from ..errors import ApiError
from ..formats.requests import Offer
from ..records import ServiceObserver, notify
from ..settings import ServiceSettings
from ..watch.observers import Metrics
from . import routes
from .descriptors import OncePerSecond, connections_left, raise_limit
from .middleware import RequestMiddleware, error_response, service_request
from .runs import ServiceContext

MAX_HEADERS = 64 * 1024  # bytes
HEADER_SECONDS = 75.0  # for the headers of a request, from its first byte or the connection's start
ANY_ADDRESS = "::"
NO_IPV6 = (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL)
BACKLOG = 2048  # connections that the system accepts before the service does
TOO_LARGE = f"The headers are larger than {MAX_HEADERS} bytes."


class Unlimited(int):
    """The length of a response that nobody knows: no part is longer, and it may end at any time."""

    def __lt__(self, other: int) -> bool:
        return False

    def __sub__(self, other: int) -> Unlimited:
        return self


class LimitedProtocol(HttpToolsProtocol):
    """
    A connection whose client has `HEADER_SECONDS` for the headers of a request.

    Whatever else is no part of a body counts as headers, such as trailers, extensions of chunks,
    and blank lines.
    """

    _packet = b""  # the one that is read now
    _unread = 0  # bytes of headers that are not complete
    _headers = 0  # bytes of the lines of the headers of this request
    _waiting: asyncio.TimerHandle | None = None

    most_connections: ClassVar[int]
    """Connections at once. Further ones are closed as they come."""
    warn: ClassVar[OncePerSecond]
    """Logs that a connection was closed for that reason."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.most_connections:
            self.warn(f"more than {self.most_connections} connections: a new one is closed")
            transport.abort()
            return
        self._wait(min(HEADER_SECONDS, self.timeout_keep_alive))

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._unread += len(data)
        self._packet = data
        super().data_received(data)
        if self._unread > MAX_HEADERS:
            self.send_400_response(TOO_LARGE)

    def send_400_response(self, msg: str) -> None:
        if not self.transport.is_closing():
            super().send_400_response(msg)

    def on_message_begin(self) -> None:
        self._headers = 0
        if self._waiting is not None:
            self._wait(min(HEADER_SECONDS, self.timeout_keep_alive))
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value) + len(": \r\n"))
        super().on_header(name, value)

    def _count(self, size: int) -> None:
        """
        Count *size* bytes of headers, all of which may be in one packet. Raise if they are too
        many.
        """
        self._headers += size
        if self._headers > MAX_HEADERS:
            self.send_400_response(TOO_LARGE)
            raise HttpParserError(TOO_LARGE)  # ends the parsing of the packet

    def on_headers_complete(self) -> None:
        self._unread = 0
        self._stop_waiting()
        if not self._offers_upgrade:
            super().on_headers_complete()
            # knows no chunks: the end of the connection ends a stream
            if self.scope["http_version"] == "1.0":
                self.cycle.chunked_encoding, self.cycle.expected_content_length = False, Unlimited()

    @property
    def _offers_upgrade(self) -> bool:
        """
        Whether the client offers to go on in another protocol than HTTP/1.1, none of which is
        spoken here.
        """
        return (
            self.parser.should_upgrade()
            and self.parser.get_method() != b"CONNECT"
            and not self._should_upgrade()
        )

    def _unsupported_upgrade_warning(self) -> None:
        """
        Read the request again without the offer, which may be ignored: Java's client makes it with
        every first request.

        The parser takes the body of such a request for the other protocol's.
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
        self._unread = 0
        if not self._offers_upgrade:
            super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        # else the next request is there already
        if self.cycle.response_complete and not self.transport.is_closing():
            self._wait(self.timeout_keep_alive)

    def _wait(self, seconds: float) -> None:
        """Close the connection after so many *seconds*, unless the headers of a request come."""
        self._stop_waiting()
        self._waiting = self.loop.call_later(seconds, self.timeout_keep_alive_handler)

    def _stop_waiting(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None


def limited_protocol(most: int, warning: OncePerSecond) -> type[LimitedProtocol]:
    """Return the protocol of a service that holds *most* connections at once."""

    class Protocol(LimitedProtocol):
        most_connections = most
        warn = warning

    return Protocol


CLOSE_SECONDS = 5.0  # to close open connections when the time to drain is over


class Service:
    """One service: the `app` that a server runs, its shared `context`, and its `metrics`."""

    def __init__(
        self, offer: Offer, settings: ServiceSettings, observers: Sequence[ServiceObserver] = ()
    ) -> None:
        all_observers: list[ServiceObserver] = [*observers]
        observe = notify(all_observers)
        self.context = context = ServiceContext(offer, settings, observe)
        self.metrics = metrics = Metrics(
            context.admission, offer.version, lambda: offer.engine.waiting
        )
        all_observers.append(metrics)

        @asynccontextmanager
        async def lifespan(_: FastAPI) -> AsyncGenerator[None]:
            async with context.open():
                yield

        self.app = app = FastAPI(
            title="stepspec",
            version=offer.version,
            lifespan=lifespan,
            docs_url=None,  # Both pages would load scripts from other sites.
            redoc_url=None,
            root_path=settings.root_path,
        )
        app.openapi = routes.describer(app, context.models, locked=settings.locked)  # type: ignore[method-assign]
        for router in (
            routes.api_router(context),
            routes.messages_router(context),
            routes.page_router(context),
            routes.health_router(context, metrics.scrape),
        ):
            app.include_router(router)
        app.add_exception_handler(ApiError, _error_response)
        app.add_exception_handler(HTTPException, _error_response)
        app.add_middleware(
            RequestMiddleware,
            settings=settings,
            clients=context.clients,
            version=offer.version,
            observe=observe,
            admission=context.admission,
            session_header=offer.session_header,
        )
        if settings.cors_origins:
            app.add_middleware(
                CORSMiddleware,
                allow_origins=list(settings.cors_origins),
                allow_methods=["GET", "POST"],
                allow_headers=["*"],
                expose_headers=["*"],
            )


async def _error_response(request: Request, exc: Exception) -> Response:
    record = service_request(request)
    record.error = error = record.in_its_api(
        exc if isinstance(exc, ApiError) else _http_error(request, exc)
    )
    return error_response(error, record)


def _http_error(request: Request, exc: Exception) -> ApiError:
    assert isinstance(exc, HTTPException)
    path = request.scope["path"]
    if exc.status_code == 404:
        hint = near(path, (route.path for route in request.app.routes))
        return ApiError(
            404, f"there is no path {path}{hint}; /openapi.json lists all paths", code="not_found"
        )
    message = f"{path} does not support {request.method}" if exc.status_code == 405 else exc.detail
    return ApiError(exc.status_code, message, code="method_not_allowed", headers=exc.headers)


def listen(host: str, port: int, send_seconds: float = 60.0) -> socket.socket:
    """
    Open the port, at ``::`` for IPv4 too. Raise `ConfigurationError` if that is impossible.

    On Linux, a connection is closed whose client reads nothing of what was sent for *send_seconds*.
    """
    try:
        listening = _listening(host, port)
    except OSError as exc:
        raise ConfigurationError(
            f"cannot listen at {host} port {port}: {exc.strerror or exc}; choose another with"
            " --port (0: any)"
        ) from exc
    # Without it a step waits up to 40 ms for the client to acknowledge the one before. Connections
    # inherit it.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        listening.setsockopt(
            socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, max(1, round(1000 * send_seconds))
        )
    return listening


def _listening(host: str, port: int) -> socket.socket:
    """
    Listen at *host*. ``::`` is every address of both families, or of IPv4 where IPv6 is off.

    Raise `OSError` if that is impossible.
    """
    if host == ANY_ADDRESS:
        both = socket.has_dualstack_ipv6()
        try:
            return socket.create_server(
                (host, port), family=socket.AF_INET6, backlog=BACKLOG, dualstack_ipv6=both
            )
        except OSError as exc:
            if exc.errno not in NO_IPV6:
                raise
            host = "0.0.0.0"
    family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
    return socket.create_server((host, port), family=family, backlog=BACKLOG)


class ServiceServer(uvicorn.Server):
    """
    A uvicorn server that drains on the first signal: it admits no more requests, and exits when all
    are answered.

    The signals are SIGTERM, SIGINT and SIGHUP.

    Draining takes `drain_seconds` at most. On the second signal it exits at once. *log* receives
    its messages.
    """

    def __init__(
        self, service: Service, settings: ServiceSettings, log: Callable[[str], None]
    ) -> None:
        warn = OncePerSecond(log)
        connections = connections_left(raise_limit(), settings)
        config = uvicorn.Config(
            service.app,
            host=settings.host,
            port=settings.port,
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=int(CLOSE_SECONDS),
            timeout_keep_alive=settings.idle_seconds,
            http=limited_protocol(connections, warn),
        )
        super().__init__(config)
        self._drain = Drain(service.context.admission, settings, log, self._exit)
        self._warn = warn
        self._loop: asyncio.AbstractEventLoop | None = None

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        self._loop.set_exception_handler(self._report)
        with _handled(signal.SIGHUP, self.handle_exit):
            await super().serve(sockets)

    def _report(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Log that this machine lacks something as one line, and anything else as asyncio does."""
        exception = context.get("exception")
        reason = shortage(exception) if isinstance(exception, OSError) else ""
        if reason:
            self._warn(f"a connection was not accepted: {reason}")
        else:
            loop.default_exception_handler(context)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to drain; exit at once on the second signal."""
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._drain.signal)

    def _exit(self) -> None:
        self.should_exit = True


@contextmanager
def _handled(
    number: signal.Signals, handler: Callable[[int, FrameType | None], None]
) -> Generator[None]:
    """
    Have *handler* handle a signal while the block lasts, unless the process ignores it, as under
    ``nohup``.
    """
    if (
        threading.current_thread() is not threading.main_thread()
        or signal.getsignal(number) is signal.SIG_IGN
    ):
        yield
        return
    before = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, before)
