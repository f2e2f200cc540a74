"""The routes of the OpenAI API."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from . import openapi, run_requests
from .chat import Chat, Wanted
from .context import ServiceContext
from .errors import ApiError, bad
from .middleware import ServiceRequest, service_request
from .payloads import json_response
from .responses import Responding
from .run_requests import RunRequest, ServedModel
from .runs import deadline
from .schemas import ChatRequest, ResponsesRequest
from .streaming import Line


def router(parts: ServiceContext) -> APIRouter:
    """Make the routes over *parts*."""
    routes = APIRouter()

    @routes.post("/v1/chat/completions", **openapi.CHAT)
    async def chat(request: Request) -> Response:
        """Answer a conversation, streaming every step of the thinking as it is verified."""
        visit = service_request(request)
        body = await request.body()
        given = run_requests.parse(body)
        found = _find(parts, visit, given)
        if isinstance(found, ServedModel):
            return _passed(parts, visit, found, given, body)
        return parts.attended(visit, _chat(parts, visit, found, run_requests.read(ChatRequest, given)))

    @routes.post("/v1/completions", **openapi.COMPLETIONS)
    async def completions(request: Request) -> Response:
        """Pass a completion on to one of the served models."""
        visit = service_request(request)
        body = await request.body()
        given = run_requests.parse(body)
        found = _find(parts, visit, given)
        if isinstance(found, ServedModel):
            return _passed(parts, visit, found, given, body)
        names = ", ".join(parts.catalogue.raw)
        raise bad(
            f"{given['model']!r} is a method, and methods answer conversations: POST /v1/chat/completions, or ask a "
            f"served model by its own name ({names})",
            "model",
            "unsupported_model",
        )

    @routes.post("/v1/responses", **openapi.RESPONSES)
    async def responses(request: Request) -> Response:
        """Answer as the newer API does, streaming every step of the thinking as it is verified."""
        visit = service_request(request)
        body = await request.body()
        given = run_requests.parse(body)
        found = _find(parts, visit, given)
        if isinstance(found, ServedModel):
            return _passed(parts, visit, found, given, body)
        asked = run_requests.read(ResponsesRequest, given)
        visit.notes["user"] = asked.safety_identifier or asked.user
        return parts.attended(visit, Responding(parts, visit, asked, _response_order(parts, found, asked)))

    @routes.get("/v1/models", **openapi.MODELS)
    async def models() -> Response:
        """List the methods, and both served models by their own names."""
        return json_response({"object": "list", "data": parts.catalogue.listed(parts.created)})

    @routes.get("/v1/models/{name:path}", **openapi.MODEL)
    async def model(name: str) -> Response:
        """Describe one of them."""
        return json_response(parts.catalogue.described(name, parts.created))

    return routes


def _find(parts: ServiceContext, visit: ServiceRequest, given: Mapping[str, Any]) -> str | ServedModel:
    name = given.get("model")
    if not isinstance(name, str) or not name:
        missing = "model" not in given
        raise bad("model is missing" if missing else "model has to be a name", "model", "missing" if missing else None)
    visit.model = parts.catalogue.label(name)
    visit.stream = given.get("stream") is True
    return parts.catalogue.find(name)


def _chat(parts: ServiceContext, visit: ServiceRequest, method: str, request: ChatRequest) -> Chat:
    wanted = Wanted(
        request.model,
        request.wishes.thinking or parts.settings.thinking,
        stream=bool(request.stream),
        tell_usage=request.stream_options is not None and request.stream_options.include_usage,
    )
    visit.notes["user"] = request.safety_identifier or request.user
    made = run_requests.of_chat(request, method, parts.offer, parts.settings)
    return Chat(parts, visit, wanted, made)


def _response_order(parts: ServiceContext, method: str, asked: ResponsesRequest) -> RunRequest:
    """The order for a response; what is wrong with it is told in this API's words."""
    if not asked.turns or asked.turns[-1].role == "assistant":
        raise bad("the input has to end with what is to be answered", "input", "invalid_value")
    try:
        (order,) = run_requests.of_chat(asked.as_chat, method, parts.offer, parts.settings)
    except ApiError as exc:
        words = {"messages": "input", "max_completion_tokens": "max_output_tokens"}
        name = words.get(exc.param or "")
        if name is None:
            raise
        raise replace(exc, param=name, message=exc.message.replace(exc.param or "", name)) from exc
    return order


def _passed(
    parts: ServiceContext, visit: ServiceRequest, raw: ServedModel, given: Mapping[str, Any], body: bytes
) -> Response:
    async def work(line: Line) -> None:
        async with parts.gate.enter() as waited:
            visit.queued, visit.begun = waited, visit.seconds
            seconds = deadline(parts.settings, visit, stream=visit.stream) - waited
            await parts.passing(raw, visit.path, given, body, visit, line, max(seconds, 0.001))

    return parts.attended(visit, work)
