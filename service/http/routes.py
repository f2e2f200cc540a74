"""
The routes: OpenAI's and Anthropic's APIs, the page with its own runs, and health.

``/openapi.json`` describes them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import cache
from typing import Any, TypeAlias, TypeVar

from fastapi import APIRouter, FastAPI, Request
from pydantic.json_schema import models_json_schema
from starlette.responses import HTMLResponse, PlainTextResponse, Response

from stepspec.orchestrator.json_values import write_json

from ..errors import OVERLOADED, ApiError, bad_request
from ..formats.chat import ChatReply, ChatRequest, LiveReply, LiveRequest
from ..formats.deltas import json_response
from ..formats.messages import CountTokensRequest, MessagesReply, MessagesRequest
from ..formats.reply_format import ReplyFormat
from ..formats.requests import AUTO, ROLES, Resolver, ServedModel
from ..formats.responses import ResponsesReply, ResponsesRequest
from ..formats.schemas import Request as RunRequestBody
from ..formats.schemas import parse_json
from ..formats.validation import parse_request
from ..json_types import JsonObject
from ..records import COUNT_PATH, MESSAGES_PATH, ServiceRequest
from ..settings import ServiceSettings, Thinking
from .connection import ClientConnection
from .runs import Runs, ServiceContext
from .upstream import ClientRequest

B = TypeVar("B", bound=RunRequestBody)
Responses: TypeAlias = dict[int | str, JsonObject]
"""OpenAPI's description of answers, by their status."""

REQUEST_SCHEMAS = (ChatRequest, ResponsesRequest, MessagesRequest, CountTokensRequest, LiveRequest)
"""
The classes of all request bodies, to which the routes refer by name.

A new POST route adds its class here and its path to `MODEL_PATHS`. If the body needs no model, the
class has ``model: ModelName = "auto"``, and `read_client_request` gets `AUTO` as its default:
`LiveRequest` and the route ``/live`` are the example. `count_tokens` is the example of a route that
runs no method: it is admitted, and sends its reply itself.
"""
TEXT = {"type": "string"}
TEXT_OR_NULL = {"type": ["string", "null"]}
DESCRIPTIONS: Mapping[int, str] = {
    400: "The request is wrong; the message names the parameter and says what to send instead.",
    401: "The API key is missing or wrong.",
    404: "There is no such model.",
    408: "The body did not arrive in time.",
    413: "The body is too large.",
    429: (
        "Too many requests at once, or a client is over its limit; Retry-After says when to retry."
    ),
    500: "The service failed, or a server sent a malformed reply.",
    503: (
        "The service is shutting down, or a served model is down or has no free slot; Retry-After"
        " says when to retry."
    ),
    504: "No answer before the deadline.",
    529: "Too many requests at once, in Anthropic's API; Retry-After says when to retry.",
}
MODEL_ERRORS = (400, 401, 404, 408, 413, 429, 500, 503, 504)
"""The statuses with which a route that calls models can fail."""
JSON = "application/json"
STREAM: Responses = {200: {"content": {"text/event-stream": {}}}}
"""The description of an answer that may be a stream."""
SCHEMA_PATH = "#/components/schemas/{model}"
UNKNOWN_MODEL = "unknown"
"""The label in metrics for a model that does not exist."""


def _object(**properties: Any) -> JsonObject:
    """Return the JSON schema of an object with these *properties*. All are required."""
    return {"type": "object", "required": list(properties), "properties": properties}


OWN_SCHEMAS: Mapping[str, JsonObject] = {
    "Error": _object(
        error=_object(message=TEXT, type=TEXT, param=TEXT_OR_NULL, code=TEXT_OR_NULL),
    ),
    "AnthropicError": _object(
        type={"const": "error"},
        error=_object(type=TEXT, message=TEXT),
        request_id=TEXT,
    ),
    "ServedModelRequest": _object(model=TEXT),
}
"""The schemas of bodies that have no class, by name."""


def _schema(name: str) -> JsonObject:
    """Return OpenAPI's description of a JSON body that has the schema called *name*."""
    return {JSON: {"schema": {"$ref": SCHEMA_PATH.format(model=name)}}}


def _body(name: str) -> JsonObject:
    """Return OpenAPI's description of a request with a body that has the schema called *name*."""
    return {"requestBody": {"required": True, "content": _schema(name)}}


def _errors(*statuses: int, schema: str = "Error") -> Responses:
    """Return OpenAPI's description of answers with *statuses*, whose bodies have *schema*."""
    return {
        status: {"description": DESCRIPTIONS[status], "content": _schema(schema)}
        for status in statuses
    }


def models_router(context: ServiceContext) -> APIRouter:
    """Make the routes that name the models and the methods."""
    router = APIRouter(responses=_errors(401))

    @router.get("/v1/models")
    async def models() -> Response:
        """List the methods, and both served models by their own names."""
        return json_response({"object": "list", "data": context.models.listing(context.created)})

    @router.get("/v1/models/{name:path}", responses=_errors(404))
    async def model(name: str) -> Response:
        """Describe one model."""
        return json_response(context.models.describe(name, context.created))

    @router.get("/live/methods")
    async def methods() -> Response:
        """
        List the methods with their options, the default method, and the names of the served models.
        """
        offer = context.offer
        methods = [
            {"name": name, "about": method.description, "options": offer.default_options(name)}
            for name, method in offer.methods.items()
        ]
        models = {"small": offer.engine.small.name, "large": offer.engine.large.name}
        return json_response(
            {"default": offer.defaults.policy, "methods": methods, "models": models}
        )

    return router


def api_router(context: ServiceContext) -> APIRouter:
    """
    Make the routes of OpenAI's APIs, and of the page's own runs.

    Their paths have to be in `MODEL_PATHS`.
    """
    router = APIRouter(responses=_errors(*MODEL_ERRORS))
    router.post(
        "/v1/chat/completions",
        description=(
            "Answer a conversation, and stream every step of the reasoning as it is verified."
        ),
        responses=STREAM,
        openapi_extra=_body("ChatRequest"),
    )(answerer(context, ChatRequest, ChatReply))
    router.post(
        "/v1/responses",
        description=(
            "Answer in the Responses API, and stream every step of the reasoning as it is verified."
        ),
        responses=STREAM,
        openapi_extra=_body("ResponsesRequest"),
    )(answerer(context, ResponsesRequest, ResponsesReply))

    @router.post(
        "/v1/completions",
        responses=STREAM,
        openapi_extra=_body("ServedModelRequest"),
    )
    async def completions(http_request: Request) -> Response:
        """Forward a completion to one of the served models."""
        client_request = await read_client_request(context, http_request)
        if isinstance(client_request.model, ServedModel):
            return client_request.forward(client_request.model)
        names = ", ".join(context.models.served)
        raise bad_request(
            f"{client_request.content['model']!r} is a method, and methods answer conversations:"
            f" POST /v1/chat/completions, or ask a served model by its own name ({names})",
            "model",
            "unsupported_model",
        )

    @router.post(
        "/live",
        response_class=Response,
        responses=STREAM,
        openapi_extra=_body("LiveRequest"),
    )
    async def live(http_request: Request) -> Response:
        """Run a problem. Stream every event as it happens, and the solution at the end."""
        client_request = await read_client_request(context, http_request, AUTO)
        client_request.record.stream = True
        if isinstance(client_request.model, ServedModel):
            raise bad_request(
                "model is a served model, and only the runs of methods have events", "model"
            )
        body = parse_request(LiveRequest, client_request.content)
        return runs_of(client_request, client_request.model, body).respond(LiveReply())

    return router


def messages_router(context: ServiceContext) -> APIRouter:
    """
    Make the routes of Anthropic's API.

    Their paths have to be in `MODEL_PATHS`.
    """
    errors = _errors(*MODEL_ERRORS, OVERLOADED, schema="AnthropicError")
    router = APIRouter(responses=errors)
    router.post(
        MESSAGES_PATH,
        description=(
            "Answer a conversation as Anthropic's API does, and stream every step of the thinking"
            " as it is verified."
        ),
        responses=STREAM,
        openapi_extra=_body("MessagesRequest"),
    )(answerer(context, MessagesRequest, MessagesReply))

    @router.post(COUNT_PATH, openapi_extra=_body("CountTokensRequest"))
    async def count_tokens(http_request: Request) -> Response:
        """Count the tokens of a conversation, as the large model reads it."""
        client_request = await read_client_request(context, http_request)
        if isinstance(client_request.model, ServedModel):
            return client_request.forward(client_request.model)
        wanted = parse_request(CountTokensRequest, client_request.content).wanted
        if not wanted.conversation:
            raise bad_request("the conversation is empty: send a message", "messages")

        async def work(connection: ClientConnection, seconds: float) -> None:
            async with asyncio.timeout(seconds):
                large = context.offer.engine.large
                tokens = await large.call(
                    lambda server: server.count(wanted.conversation, wanted.tools.tools)
                )
            await connection.send_whole(write_json({"input_tokens": tokens}))

        return context.respond(client_request.record, work)

    return router


def public_router(context: ServiceContext, scrape: Callable[[], tuple[bytes, str]]) -> APIRouter:
    """
    Make the routes that need no key: the page, and the routes for operators.

    Their paths have to be in `PUBLIC_PATHS`. *scrape* returns the metrics and their content type.
    """
    router = APIRouter()

    @router.get("/", response_class=HTMLResponse)
    async def page() -> Response:
        """Return the page that shows a run."""
        from ..watch.page import headers, html  # reads the page from disk on first use

        return HTMLResponse(html(), headers=headers())

    @router.head("/health", include_in_schema=False)
    @router.head("/health/liveness", include_in_schema=False)
    @router.get("/health/liveness", response_class=Response)
    @router.get("/health", response_class=Response)
    async def alive() -> Response:
        """Confirm that the process answers."""
        return Response()

    @router.head("/health/readiness", include_in_schema=False)
    @router.get(
        "/health/readiness",
        responses={503: {"description": "New requests are not admitted.", "content": {JSON: {}}}},
    )
    async def ready() -> Response:
        """
        Say whether new requests are admitted: not while shutting down, nor while the large model is
        down.

        The status is "degraded" while only the small model is down: the large one answers alone.
        """
        up: JsonObject = {role: context.models.endpoint(role).usable for role in ROLES}
        status = "ready" if up["small"] else "degraded"
        if not up["large"]:
            status = "down"
        if context.admission.closed:
            status = "draining"
        code = 200 if status in ("ready", "degraded") else 503
        return json_response({"status": status, **up}, code)

    @router.get("/version")
    async def version() -> Response:
        """Return the version."""
        return json_response({"version": context.offer.version})

    @router.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> Response:
        """Return the metrics in Prometheus' text format."""
        text, kind = scrape()
        return Response(text, headers={"Content-Type": kind})

    return router


async def read_client_request(
    context: ServiceContext,
    http_request: Request,
    default: str | None = None,
) -> ClientRequest:
    """
    Read the body of a request, and find the model that it names.

    *default* is the model of a body without one. None: the body has to name a model. Raise
    `ApiError` if the body is wrong.
    """
    request: ServiceRequest = http_request.scope["stepspec.request"]
    coding = http_request.headers.get("content-encoding", "identity")
    if coding != "identity":
        raise bad_request(
            f"the body has the Content-Encoding {coding}: send it uncompressed",
            code="invalid_json",
        )
    body = await read_body(http_request, context.settings)
    content = parse_json(body)
    name = content.get("model", default)
    if not isinstance(name, str) or not name:
        raise bad_request("model has to be the name of a model", "model")
    request.model = UNKNOWN_MODEL
    request.stream = content.get("stream") is True
    model = context.models.find(name)
    request.model = f"raw:{model.role}" if isinstance(model, ServedModel) else model
    return ClientRequest(context, request, body, content, model)


async def read_body(http_request: Request, settings: ServiceSettings) -> bytes:
    """Read the body of a request. Raise `ApiError` if it is too large, or arrives too late."""
    limit = settings.max_body_bytes
    seconds = settings.send_seconds
    check_size(int(http_request.headers.get("content-length", 0)), limit)
    body = bytearray()
    try:
        async with asyncio.timeout(seconds):
            async for part in http_request.stream():
                body += part
                check_size(len(body), limit)
    except TimeoutError:
        raise ApiError(408, f"the body did not arrive within {seconds:g} s", retry=True) from None
    return bytes(body)


def check_size(size: int, limit: int) -> None:
    """Raise `ApiError` if a body of *size* bytes is larger than *limit*."""
    if size > limit:
        raise ApiError(413, f"the body is larger than {limit} bytes", code="body_too_large")


def runs_of(client_request: ClientRequest, method: str, body: RunRequestBody) -> Runs:
    """Make the runs of *method* that *body* asks for. Raise `ApiError` if *body* is wrong."""
    context = client_request.context
    auto = client_request.content.get("model", AUTO) == AUTO
    resolver = Resolver(method, context.offer, context.settings, auto, client_request.best_priority)
    return Runs(context, client_request.record, resolver.runs(body))


def answerer(
    context: ServiceContext,
    schema: type[B],
    format: Callable[[Runs, ServiceRequest, B, Thinking], ReplyFormat],
) -> Callable[[Request], Awaitable[Response]]:
    """
    Make the function that answers the requests of a route.

    It makes the runs that a body of *schema* asks for, and answers in the *format* of the API. A
    request to a served model is forwarded.
    """

    async def answer(http_request: Request) -> Response:
        client_request = await read_client_request(context, http_request)
        if isinstance(client_request.model, ServedModel):
            return client_request.forward(client_request.model)
        record = client_request.record
        body = parse_request(schema, client_request.content)
        record.log_fields["user"] = body.end_user
        runs = runs_of(client_request, client_request.model, body)
        thinking = body.place_of_thinking(context.settings.thinking)
        return runs.respond(format(runs, record, body, thinking))

    return answer


def describer(app: FastAPI) -> Callable[[], JsonObject]:
    """Return a function that describes *app*."""
    generate = app.openapi

    @cache  # a description takes a tenth of a second, and a client needs no key to ask for it
    def describe() -> JsonObject:
        description = generate()
        _, definitions = models_json_schema(
            [(request, "validation") for request in REQUEST_SCHEMAS],
            ref_template=SCHEMA_PATH,
        )
        schemas = description.setdefault("components", {}).setdefault("schemas", {})
        schemas |= OWN_SCHEMAS | definitions["$defs"]
        return description

    return describe
