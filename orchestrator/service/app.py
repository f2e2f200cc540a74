"""The application: routes, refusals and the door, put together over what is served."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from types import FrameType

import uvicorn
from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response

from ..errors import ConfigurationError
from . import dashboard, health, openapi, routes
from .context import ServiceContext
from .errors import ApiError
from .interfaces import Offer
from .metrics import Metrics
from .middleware import RequestMiddleware, service_request
from .observers import ServiceObserver, ServiceObservers
from .settings import ServiceSettings

TOLD = ("X-Request-Id", "x-stepspec-version", "x-stepspec-overhead-ms", "Retry-After", "x-should-retry")


class Service:
    """One service: the `app` that a server runs, the `parts` that it may want to close, and the `metrics` of both."""

    def __init__(self, offer: Offer, settings: ServiceSettings, witnesses: Sequence[ServiceObserver] = ()) -> None:
        watching: list[ServiceObserver] = [*witnesses]
        witness = ServiceObservers(watching)
        self.parts = parts = ServiceContext.of(offer, settings, witness)
        self.metrics = metrics = Metrics(parts.gate, offer.version, offer.trust, offer.unjudged, offer.speculation)
        watching.append(metrics)

        @asynccontextmanager
        async def lifespan(_: FastAPI) -> AsyncGenerator[None]:
            async with parts.open():
                yield

        self.app = app = FastAPI(
            title="stepspec",
            version=offer.version,
            lifespan=lifespan,
            docs_url=None,  # Both pages would load scripts from elsewhere.
            redoc_url=None,
            root_path=settings.root_path,
        )
        app.openapi = openapi.describing(app, parts.catalogue, locked=bool(settings.keys))  # type: ignore[method-assign]
        for router in (routes.router(parts), dashboard.router(parts), health.router(parts, metrics.scrape)):
            app.include_router(router)
        app.add_exception_handler(ApiError, _refused)
        app.add_exception_handler(HTTPException, _refused)
        app.add_middleware(
            RequestMiddleware,
            settings=settings,
            version=offer.version,
            begins=witness.begins,
            ends=witness.ends,
            failed=witness.failed,
            session_header=offer.session_header,
        )
        if settings.cors_origins:
            app.add_middleware(
                CORSMiddleware,
                allow_origins=list(settings.cors_origins),
                allow_methods=["GET", "POST"],
                allow_headers=["*"],
                expose_headers=list(TOLD),
            )


async def _refused(request: Request, exc: Exception) -> Response:
    refusal = exc if isinstance(exc, ApiError) else _of_http(request, exc)
    service_request(request).refusal = refusal
    return Response(refusal.body, refusal.status, refusal.all_headers, "application/json")


def _of_http(request: Request, exc: Exception) -> ApiError:
    assert isinstance(exc, HTTPException)
    path = request.scope["path"]
    if exc.status_code == 404:
        return ApiError(404, f"there is nothing at {path}; /openapi.json lists what there is", code="not_found")
    message = f"{request.method} is not for {path}" if exc.status_code == 405 else exc.detail
    return ApiError(exc.status_code, message, code="method_not_allowed", headers=exc.headers)


GOODBYE = 5.0  # seconds to close what is open when the time to drain is over


def listen(host: str, port: int) -> socket.socket:
    """Open the port. Raise `ConfigurationError` if it cannot be had."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listening = socket.create_server((host, port), family=family, backlog=2048)
    except OSError as exc:
        raise ConfigurationError(
            f"cannot listen at {host} port {port}: {exc.strerror or exc}; choose another with --port (0: any)"
        ) from exc
    # Else a step waits up to 40 ms for the client to acknowledge the one before; connections inherit it.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening


class Server(uvicorn.Server):
    """
    A uvicorn server that drains: told to end, it goes on answering, takes no new work, and leaves when all is done.

    That takes *drain_seconds* at most. Told a second time, it leaves at once. *tell* hears what it is doing.
    """

    def __init__(self, service: Service, settings: ServiceSettings, tell: Callable[[str], None]) -> None:
        config = uvicorn.Config(
            service.app,
            host=settings.host,
            port=settings.port,
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=int(GOODBYE),
            timeout_keep_alive=75,  # longer than the proxies before it keep a connection
            h11_max_incomplete_event_size=64 * 1024,
        )
        super().__init__(config)
        self._gate, self._patience, self._tell = service.parts.gate, settings.drain_seconds, tell
        self._draining: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        await super().serve(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to drain; the second signal ends at once."""
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._begin_to_drain)

    def _begin_to_drain(self) -> None:
        if self._draining is not None:
            self._gate.give_up()
            self.should_exit = True
            return
        self._gate.close()
        self._draining = asyncio.create_task(self._drain())

    async def _drain(self) -> None:
        inside = self._gate.running + self._gate.waiting
        self._tell(f"shutting down: {inside} requests may finish within {self._patience:g} s")
        try:
            async with asyncio.timeout(self._patience):
                await self._gate.emptied()
        except TimeoutError:
            self._tell(f"giving up on {self._gate.running + self._gate.waiting} requests")
            self._gate.give_up()
        self.should_exit = True
