"""The routes: OpenAI's and Anthropic's APIs, the page with its own runs, and health and metrics."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import orjson
from fastapi import APIRouter, Request
from pydantic import BaseModel
from starlette.responses import HTMLResponse, Response

from ...chain import Message, Tool
from ...errors import StepspecError
from ..formats import openapi
from ..formats.chat import ChatReply, ChatRequest, LiveReply, LiveRequest
from ..formats.deltas import json_response
from ..formats.message_reply import MessagesReply
from ..formats.messages import CountTokensRequest, MessagesRequest
from ..formats.requests import AUTO, Resolver, ServedModel, forwarded_priority
from ..formats.responses import ResponsesReply, ResponsesRequest
from ..formats.schemas import MAX_ITEMS, parse_json
from ..formats.schemas import Request as RunRequestBody
from ..formats.validation import parse_request
from ..settings import Thinking
from ..watch.records import COUNT_PATH, MESSAGES_PATH, ServiceRequest
from .errors import api_error, bad_request
from .middleware import service_request
from .runs import LEAST_SECONDS, ReplyFormat, Runs, ServiceContext, reply
from .streaming import ClientConnection

P = TypeVar("P", bound=BaseModel)


def api_router(context: ServiceContext) -> APIRouter:
    """Make the routes of OpenAI's API."""
    router = APIRouter()

    @router.post("/v1/chat/completions", **openapi.CHAT)
    async def chat(http_request: Request) -> Response:
        """Answer a conversation, and stream every step of the reasoning as it is verified."""
        return await answer(context, http_request, ChatRequest, ChatReply)

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
        return await answer(context, http_request, ResponsesRequest, ResponsesReply)

    @router.get("/v1/models", **openapi.MODELS)
    async def models() -> Response:
        """List the methods, and both served models by their own names."""
        return json_response({"object": "list", "data": context.models.listing(context.created)})

    @router.get("/v1/models/{name:path}", **openapi.MODEL)
    async def model(name: str) -> Response:
        """Describe one model."""
        return json_response(context.models.describe(name, context.created))

    return router


def messages_router(context: ServiceContext) -> APIRouter:
    """Make the routes of Anthropic's Messages API."""
    router = APIRouter()

    @router.post(MESSAGES_PATH, **openapi.MESSAGES)
    async def messages(http_request: Request) -> Response:
        """Answer a conversation as Anthropic's API does, and stream every step of the thinking as it is verified."""
        return await answer(context, http_request, MessagesRequest, MessagesReply)

    @router.post(COUNT_PATH, **openapi.COUNT_TOKENS)
    async def count_tokens(http_request: Request) -> Response:
        """Count the tokens of a conversation, as the large model reads it."""
        call = await ModelCall.read(context, http_request)
        if isinstance(call.model, ServedModel):
            return call.forward(call.model)
        body = call.parsed(CountTokensRequest)
        return call.count(body.wanted.conversation, body.wanted.tools)

    return router


def page_router(context: ServiceContext) -> APIRouter:
    """Make the routes of the page."""
    router = APIRouter()

    @router.get("/", **openapi.PAGE)
    async def page() -> Response:
        """Return the page that shows a run."""
        from ..watch.page import headers, html  # reads the page from disk on first use

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

    @router.post("/live", **openapi.LIVE)
    async def live(http_request: Request) -> Response:
        """Run a problem; stream every event as it happens, and the solution at the end."""
        request = service_request(http_request)
        body = parse_request(LiveRequest, parse_json(await http_request.body()), _max_items(context))
        request.model, request.stream = context.models.label(body.model), True
        method = context.models.find(body.model)
        if isinstance(method, ServedModel):
            raise bad_request(f"{body.model!r} is a served model, and only the runs of methods have events", "model")
        call = ModelCall(context, request, b"", {"model": body.model}, method)
        return call.reply(call.runs(method, body), LiveReply(), stream=True)

    return router


def health_router(context: ServiceContext, scrape: Callable[[], tuple[bytes, str]]) -> APIRouter:
    """Make the routes for operators, none of which calls a model. *scrape* returns metrics and their content type."""
    router = APIRouter()

    async def alive() -> Response:
        """Confirm that the process answers."""
        return Response()

    for path in ("/health", "/health/liveness"):
        name = path.strip("/").replace("/", "_")
        router.add_api_route(path, alive, methods=["GET"], operation_id=name, **openapi.ALIVE)
        router.add_api_route(path, alive, methods=["HEAD"], include_in_schema=False)

    @router.head("/health/readiness", include_in_schema=False)
    @router.get("/health/readiness", **openapi.READY)
    async def ready() -> Response:
        """
        Say whether new requests are admitted: not while shutting down, nor while the large model is down.

        The status is "degraded" while only the small model is down: the large one answers alone.
        """
        status = "draining" if context.admission.closed else context.health.status
        roles: dict[str, bool] = {role: role_up for role, role_up in context.health.up.items()}
        return json_response({"status": status, **roles}, 200 if status in ("ready", "degraded") else 503)

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

    def parsed(self, schema: type[P]) -> P:
        """Validate the body. Raise `ApiError`."""
        return parse_request(schema, self.content, _max_items(self.context))

    def runs(self, method: str, body: RunRequestBody) -> Runs:
        """Make the runs of *method* that *body* asks for. Raise `ApiError`."""
        context, auto = self.context, self.content.get("model") == AUTO
        best = context.clients.best_priority(self.request.client)
        resolver = Resolver(method, context.offer, context.settings, auto, best)
        return Runs(context, self.request, resolver.runs(body))

    def reply(self, runs: Runs, format: ReplyFormat, *, stream: bool) -> Response:
        """Answer with *runs*, written in *format*."""
        return self.context.respond(self.request, partial(reply, runs, format, stream=stream))

    def forward(self, model: ServedModel) -> Response:
        """Answer with what the server of *model* answers."""

        async def work(connection: ClientConnection) -> None:
            priority = forwarded_priority(self.content, self.context.clients.best_priority(self.request.client))
            async with self._admitted(priority or 0) as seconds:
                upstream = self.context.upstream
                await upstream.forward(self.request, model, self.content, self.body, connection, seconds, priority)

        return self.context.respond(self.request, work)

    def count(self, conversation: tuple[Message, ...], tools: tuple[Tool, ...]) -> Response:
        """Answer with the number of tokens of *conversation* with *tools*."""

        async def work(connection: ClientConnection) -> None:
            async with self._admitted() as seconds, asyncio.timeout(seconds):
                try:
                    tokens = await self.context.offer.engine.large.count(conversation, tools)
                except StepspecError as exc:
                    raise api_error(exc) from exc
            await connection.send_json(orjson.dumps({"input_tokens": tokens}))

        return self.context.respond(self.request, work)

    @asynccontextmanager
    async def _admitted(self, priority: int = 0) -> AsyncGenerator[float]:
        """Wait for admission, and yield the seconds that the request may still take. Raise `ApiError`."""
        context, request = self.context, self.request
        async with context.admission.enter(priority) as waited:
            request.queued, request.admitted = waited, request.seconds
            yield max(context.settings.max_seconds - waited, LEAST_SECONDS)


B = TypeVar("B", bound=RunRequestBody)


async def answer(
    context: ServiceContext,
    http_request: Request,
    schema: type[B],
    format: Callable[[Runs, ServiceRequest, B, Thinking], ReplyFormat],
) -> Response:
    """Answer a request of *schema* with runs, written in *format*, or forward it to a served model."""
    call = await ModelCall.read(context, http_request)
    if isinstance(call.model, ServedModel):
        return call.forward(call.model)
    body = call.parsed(schema)
    call.request.log_fields["user"] = body.end_user
    runs, thinking = call.runs(call.model, body), body.place_of_thinking(context.settings.thinking)
    return call.reply(runs, format(runs, call.request, body, thinking), stream=call.request.stream)


def _max_items(context: ServiceContext) -> int:
    """The most items of a list in a request: a configured number of messages is one, if it is larger than usual."""
    return max(MAX_ITEMS, context.settings.max_messages)
