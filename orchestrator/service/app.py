"""What the routes share."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import aiohttp
from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response

from . import dashboard, errors, health, openapi, routes
from .admission import Admission
from .errors import ApiError
from .interfaces import Offer
from .metrics import Metrics
from .middleware import RequestMiddleware, ServiceRequest, service_request
from .observers import ServiceObserver, ServiceObservers
from .run_requests import ModelCatalog
from .settings import ServiceSettings
from .streaming import Line, StreamedResponse, Work
from .upstream import HealthMonitor, UpstreamProxy


@dataclass(eq=False)
class ServiceContext:
    """The parts of one service; `passing` and `pulse` live while it is `open`."""

    offer: Offer
    settings: ServiceSettings
    witness: ServiceObserver
    gate: Admission
    catalogue: ModelCatalog
    created: int = field(default_factory=lambda: int(time.time()))
    passing: UpstreamProxy = field(init=False)
    pulse: HealthMonitor = field(init=False)

    @classmethod
    def of(cls, offer: Offer, settings: ServiceSettings, witness: ServiceObserver) -> ServiceContext:
        return cls(offer, settings, witness, Admission(settings), ModelCatalog(offer))

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[None]:
        """Hold the connections that are not the engine's, and look after the servers, while the block lasts."""
        small, large = self.offer.engine.small, self.offer.engine.large
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
            self.passing = UpstreamProxy(http, small, large)
            self.pulse = HealthMonitor(http, {"small": small, "large": large}, self.witness.looked)
            async with self.pulse.felt(self.settings.health_every):
                yield

    async def fail(self, visit: ServiceRequest, exc: Exception, line: Line, *, worked: bool) -> None:
        """Tell the client of a failure: by raising the `Refusal`, or as the last thing in a stream that has begun."""
        refusal = visit.refusal = errors.of(exc, worked=worked)
        if refusal.code == errors.UNFORESEEN:
            self.witness.failed(visit, exc)
        if not line.open:
            raise refusal from exc
        if refusal.status == errors.LEFT:
            visit.status = errors.LEFT
        else:
            await line.fail(refusal)

    def attended(self, visit: ServiceRequest, work: Work) -> StreamedResponse:
        """Answer with what *work* sends, as long as the client is there."""
        return StreamedResponse(visit, work, self.settings.send_seconds, self.gate.given_up)


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
