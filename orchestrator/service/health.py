"""The routes of whoever runs the service: health, version, metrics. None of them calls a model."""

from __future__ import annotations

from collections.abc import Callable

from fastapi import APIRouter
from starlette.responses import Response

from . import openapi
from .context import ServiceContext
from .payloads import json_response


def router(parts: ServiceContext, scrape: Callable[[], tuple[bytes, str]]) -> APIRouter:
    """Make the routes over *parts*; *scrape* returns the metrics and their content type."""
    routes = APIRouter()

    async def alive() -> Response:
        """Say that the process answers."""
        return Response()

    for path in ("/health", "/health/liveness", "/health/liveliness", "/ping"):
        routes.add_api_route(
            path, alive, methods=["GET"], operation_id=path.strip("/").replace("/", "_"), **openapi.ALIVE
        )
        routes.add_api_route(path, alive, methods=["HEAD"], include_in_schema=False)

    @routes.head("/health/readiness", include_in_schema=False)
    @routes.get("/health/readiness", **openapi.READY)
    async def ready() -> Response:
        """Say whether new work is welcome: not while shutting down, nor while a server is down."""
        draining, steady = parts.gate.closed, parts.pulse.steady
        told: dict[str, bool] = {role: up for role, up in parts.pulse.up.items()}
        status = "draining" if draining else "ready" if steady else "down"
        return json_response({"status": status, **told}, 503 if draining or not steady else 200)

    @routes.get("/version", **openapi.VERSION)
    async def version() -> Response:
        """Say which version this is."""
        return json_response({"version": parts.offer.version})

    @routes.get("/metrics", **openapi.METRICS)
    async def metrics() -> Response:
        """Tell the metrics, in Prometheus' text format."""
        text, kind = scrape()
        return Response(text, headers={"Content-Type": kind})

    return routes
