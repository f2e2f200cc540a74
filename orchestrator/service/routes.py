"""The routes: OpenAI's API, the page with its own runs, and health and metrics."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import HTMLResponse, Response

from . import openapi
from .context import ServiceContext
from .errors import bad_request
from .middleware import service_request
from .observers import ServiceRequest
from .payloads import json_response
from .replies import ChatReply, LiveReply, ReplyFormat, ResponsesReply, reply
from .run_requests import (
    AUTO,
    Resolver,
    RunRequest,
    ServedModel,
    forwarded_priority,
    parse_json,
    parse_request,
)
from .runs import Runs, deadline
from .schemas import ChatRequest, LiveRequest, ResponsesRequest
from .streaming import ClientConnection


def api_router(context: ServiceContext) -> APIRouter:
    """Make the routes of OpenAI's API."""
    router = APIRouter()

    @router.post("/v1/chat/completions", **openapi.CHAT)
    async def chat(http_request: Request) -> Response:
        """Answer a conversation, and stream every step of the reasoning as it is verified."""
        call = await ModelCall.read(context, http_request)
        if isinstance(call.model, ServedModel):
            return call.forward(call.model)
        body = parse_request(ChatRequest, call.content)
        call.request.log_fields["user"] = body.safety_identifier or body.user
        runs = call.runs(*call.resolver(call.model).chat(body))
        thinking = body.overrides.thinking or context.settings.thinking
        return call.reply(runs, ChatReply(runs, call.request, body, thinking), stream=bool(body.stream))

    @router.post("/v1/completions", **openapi.COMPLETIONS)
    async def completions(http_request: Request) -> Response:
        """Forward a completion to one of the served models."""
        call = await ModelCall.read(context, http_request)
        if isinstance(call.model, ServedModel):
            return call.forward(call.model)
        names = ", ".join(context.models.served)
        raise bad_request(
            f"{call.content['model']!r} is a method, and methods answer conversations: POST /v1/chat/completions, or "
            f"ask a served model by its own name ({names})",
            "model",
            "unsupported_model",
        )

    @router.post("/v1/responses", **openapi.RESPONSES)
    async def responses(http_request: Request) -> Response:
        """Answer in the Responses API, and stream every step of the reasoning as it is verified."""
        call = await ModelCall.read(context, http_request)
        if isinstance(call.model, ServedModel):
            return call.forward(call.model)
        body = parse_request(ResponsesRequest, call.content)
        call.request.log_fields["user"] = body.safety_identifier or body.user
        runs = call.runs(call.resolver(call.model).response(body))
        thinking = body.overrides.thinking or context.settings.thinking
        return call.reply(runs, ResponsesReply(runs, call.request, body, thinking), stream=bool(body.stream))

    @router.get("/v1/models", **openapi.MODELS)
    async def models() -> Response:
        """List the methods, and both served models by their own names."""
        return json_response({"object": "list", "data": context.models.listing(context.created)})

    @router.get("/v1/models/{name:path}", **openapi.MODEL)
    async def model(name: str) -> Response:
        """Describe one model."""
        return json_response(context.models.describe(name, context.created))

    return router


def page_router(context: ServiceContext) -> APIRouter:
    """Make the routes of the page."""
    router = APIRouter()

    @router.get("/", **openapi.PAGE)
    async def page() -> Response:
        """Return the page that shows a run."""
        from .page import headers, html  # reads the page from disk on first use

        return HTMLResponse(html(), headers=headers())

    @router.get("/live/methods", **openapi.LIVE_METHODS)
    async def methods() -> Response:
        """List the methods with their options, the default method, and the names of the served models."""
        offer = context.offer
        methods = [
            {"name": name, "about": method.description, "options": offer.default_options(name)}
            for name, method in offer.methods.items()
        ]
        served = {"small": offer.engine.small.name, "large": offer.engine.large.name}
        return json_response({"default": offer.defaults.policy, "methods": methods, "models": served})

    @router.get("/live/trust", **openapi.LIVE_TRUST)
    async def trust() -> Response:
        """Return the current evidence about the judge: calibration, drift and shadow checks."""
        return json_response(context.offer.judge_status().as_json)

    @router.post("/live", **openapi.LIVE)
    async def live(http_request: Request) -> Response:
        """Run a problem; stream every event as it happens, and the solution at the end."""
        request = service_request(http_request)
        body = parse_request(LiveRequest, parse_json(await http_request.body()))
        request.model, request.stream = context.models.label(body.model), True
        method = context.models.find(body.model)
        if isinstance(method, ServedModel):
            raise bad_request(f"{body.model!r} is a served model, and only the runs of methods have events", "model")
        call = ModelCall(context, request, b"", {"model": body.model}, method)
        return call.reply(call.runs(call.resolver(method).live(body)), LiveReply(), stream=True)

    return router


def health_router(context: ServiceContext, scrape: Callable[[], tuple[bytes, str]]) -> APIRouter:
    """Make the routes for operators, none of which calls a model. *scrape* returns metrics and their content type."""
    router = APIRouter()

    async def alive() -> Response:
        """Confirm that the process answers."""
        return Response()

    for path in ("/health", "/health/liveness", "/health/liveliness", "/ping"):
        name = path.strip("/").replace("/", "_")
        router.add_api_route(path, alive, methods=["GET"], operation_id=name, **openapi.ALIVE)
        router.add_api_route(path, alive, methods=["HEAD"], include_in_schema=False)

    @router.head("/health/readiness", include_in_schema=False)
    @router.get("/health/readiness", **openapi.READY)
    async def ready() -> Response:
        """Say whether new requests are admitted: not while shutting down, nor while the servers of a role are down."""
        draining, up = context.admission.closed, context.health.all_up
        status = "draining" if draining else "ready" if up else "down"
        roles: dict[str, bool] = {role: role_up for role, role_up in context.health.up.items()}
        return json_response({"status": status, **roles}, 200 if status == "ready" else 503)

    @router.get("/version", **openapi.VERSION)
    async def version() -> Response:
        """Return the version."""
        return json_response({"version": context.offer.version})

    @router.get("/metrics", **openapi.METRICS)
    async def metrics() -> Response:
        """Return the metrics in Prometheus' text format."""
        text, kind = scrape()
        return Response(text, headers={"Content-Type": kind})

    return router


@dataclass(frozen=True, slots=True)
class ModelCall:
    """A request to a *model*: a method, or a served model. *content* is its *body*, parsed."""

    context: ServiceContext
    request: ServiceRequest
    body: bytes
    content: Mapping[str, Any]
    model: str | ServedModel

    @classmethod
    async def read(cls, context: ServiceContext, http_request: Request) -> ModelCall:
        """Read the body and find the model. Raise `ApiError`."""
        request = service_request(http_request)
        body = await http_request.body()
        content = parse_json(body)
        name = content.get("model")
        if "model" not in content:
            raise bad_request("model is missing", "model", "missing")
        if not isinstance(name, str) or not name:
            raise bad_request("model has to be a name", "model")
        request.model = context.models.label(name)
        request.stream = content.get("stream") is True
        return cls(context, request, body, content, context.models.find(name))

    def resolver(self, method: str) -> Resolver:
        context = self.context
        best = context.clients.best_priority(self.request.client)
        return Resolver(method, context.offer, context.settings, self.content.get("model") == AUTO, best)

    def runs(self, *run_requests: RunRequest) -> Runs:
        return Runs(self.context, self.request, run_requests)

    def reply(self, runs: Runs, format: ReplyFormat, *, stream: bool) -> Response:
        """Answer with *runs*, written in *format*."""
        return self.context.respond(self.request, partial(reply, runs, format, stream=stream))

    def forward(self, model: ServedModel) -> Response:
        """Answer with what the server of *model* answers."""

        async def work(connection: ClientConnection) -> None:
            context, request = self.context, self.request
            priority = forwarded_priority(self.content, context.clients.best_priority(request.client))
            async with context.admission.enter(priority or 0) as waited:
                request.queued, request.admitted = waited, request.seconds
                seconds = max(deadline(context.settings, request, stream=request.stream) - waited, 0.001)
                await context.upstream.forward(request, model, self.content, self.body, connection, seconds, priority)

        return self.context.respond(self.request, work)
