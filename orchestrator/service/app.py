"""The application: routes, refusals and the door, put together over what is served."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response

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
