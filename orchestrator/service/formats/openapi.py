"""The OpenAPI description of the service, under ``/openapi.json``. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel
from starlette.responses import Response

from ..http.middleware import PUBLIC_PATHS
from .chat import ChatRequest, LiveRequest
from .messages import CountTokensRequest, MessagesRequest
from .requests import ModelCatalog
from .responses import ResponsesRequest


def _schema(*required: str, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "required": list(required), "properties": properties}


TEXT = {"type": "string"}
ERROR = _schema(
    "error",
    error=_schema(
        *("message", "type", "param", "code"),
        message=TEXT,
        type=TEXT,
        param={"type": ["string", "null"]},
        code={"type": ["string", "null"]},
    ),
)
ANTHROPIC_ERROR = _schema(
    *("type", "error", "request_id"),
    type={"const": "error"},
    error=_schema("type", "message", type=TEXT, message=TEXT, details=_schema(error_code=TEXT)),
    request_id=TEXT,
)
DESCRIPTIONS: Mapping[int, str] = {
    400: "The request is wrong; the message names the parameter and a cure.",
    401: "The API key is missing or wrong.",
    404: "There is no such model.",
    408: "The body did not arrive in time.",
    413: "The body is too large.",
    429: "Too many requests at once, or a client is over its limit; Retry-After says when to retry.",
    500: "The service failed, or a server sent a malformed reply.",
    503: "The service is shutting down, or a served model is down; Retry-After says when to retry.",
    504: "No answer before the deadline.",
    529: "Too many requests at once, in Anthropic's API; Retry-After says when to retry.",
}
MODEL_ERRORS = (400, 401, 404, 408, 413, 429, 500, 503, 504)


CHUNK = _schema(
    *("id", "object", "created", "model", "choices"),
    object={"const": "chat.completion.chunk"},
    choices={
        "type": "array",
        "items": _schema(
            *("index", "delta", "finish_reason"),
            delta={"type": "object"},
            finish_reason={"enum": ["stop", "length", "tool_calls", None]},
        ),
    },
    usage=_schema("prompt_tokens", "completion_tokens", "total_tokens"),
    steps={"type": "array"},
    ledger={"type": "object"},
)
RESPONSE_EVENT = _schema(
    "type", "sequence_number", type={"type": "string"}, sequence_number={"type": "integer", "minimum": 0}
)
MESSAGE_EVENT = _schema("type", type={"type": "string"})
EVENTS: Mapping[str, Any] = {
    "ChatCompletionChunk": CHUNK,
    "ResponseEvent": RESPONSE_EVENT,
    "MessageEvent": MESSAGE_EVENT,
}
"""What the data of an event may be, besides an error."""


def _stream(event: str = "", error: str = "Error") -> dict[str, Any]:
    """Describe a stream of server-sent events; ``x-event-schema`` is that of their data."""
    names = [event, error] if event else []
    data = {"x-event-schema": {"anyOf": [{"$ref": f"#/components/schemas/{name}"} for name in names]}} if event else {}
    return {"text/event-stream": {"schema": {}, **data}}


MESSAGES_ERRORS = (*MODEL_ERRORS, 529)


def _object(*required: str) -> dict[str, Any]:
    return {"application/json": {"schema": _schema(*required)}}


def _answers(success: str, content: Mapping[str, Any], *statuses: int, error: str = "Error") -> dict[str, Any]:
    failure = {"application/json": {"schema": {"$ref": f"#/components/schemas/{error}"}}}
    errors: dict[int | str, Any] = {
        status: {"description": DESCRIPTIONS[status], "content": failure} for status in statuses
    }
    responses: dict[int | str, Any] = {200: {"description": success, "content": dict(content)}, **errors}
    return {"responses": responses, "response_class": Response}


def _body(name: str) -> dict[str, Any]:
    schema = {"$ref": f"#/components/schemas/{name}"}
    return {"openapi_extra": {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}}


COMPLETION = _object("id", "object", "created", "model", "choices", "usage", "steps", "ledger", "stepspec")
CHAT = _answers(
    "The completion, or its stream.", {**COMPLETION, **_stream("ChatCompletionChunk")}, *MODEL_ERRORS
) | _body("ChatRequest")
COMPLETIONS = _answers("The model's answer, or its stream.", {**_object(), **_stream()}, *MODEL_ERRORS) | _body(
    "ServedModelRequest"
)
RESPONSE = _object("id", "object", "created_at", "status", "model", "output", "usage", "steps", "ledger", "stepspec")
RESPONSES = _answers("The response, or its stream.", {**RESPONSE, **_stream("ResponseEvent")}, *MODEL_ERRORS) | _body(
    "ResponsesRequest"
)
MESSAGE = _object("id", "type", "role", "model", "content", "stop_reason", "usage", "steps", "ledger", "stepspec")
MESSAGES = _answers(
    "The message, or its stream.",
    {**MESSAGE, **_stream("MessageEvent", "AnthropicError")},
    *MESSAGES_ERRORS,
    error="AnthropicError",
) | _body("MessagesRequest")
COUNT_TOKENS = _answers(
    "The number of tokens.", _object("input_tokens"), *MESSAGES_ERRORS, error="AnthropicError"
) | _body("CountTokensRequest")
LIVE = _answers("The events of the run.", _stream(), *MODEL_ERRORS) | _body("LiveRequest")
LIVE_METHODS = _answers("The methods.", _object("default", "methods", "models"), 401)
MODELS = _answers("The models; with the header anthropic-version as in Anthropic's API.", _object("data"), 401)
MODEL = _answers("The model; with the header anthropic-version as in Anthropic's API.", _object("id"), 401, 404)
ALIVE = _answers("The process answers.", {})
READY = _answers(
    'New requests are admitted, if "degraded" by the large model alone.', _object("status", "small", "large")
)
READY["responses"][503] = {
    "description": "New requests are not admitted: the service is shutting down, or the large model is down.",
    "content": _object("status"),
}
VERSION = _answers("The version.", _object("version"))
METRICS = _answers("The metrics.", {"text/plain": {"schema": {"type": "string"}}})
PAGE = _answers("The page.", {"text/html": {"schema": {"type": "string"}}})


def describer(app: FastAPI, models: ModelCatalog, *, locked: bool) -> Callable[[], dict[str, Any]]:
    """Return a function that describes *app* with the current models; *locked* says that it needs an API key."""
    generate = app.openapi

    def describe() -> dict[str, Any]:
        app.openapi_schema = None
        description = generate()
        schemas = description.setdefault("components", {}).setdefault("schemas", {})
        schemas |= {"Error": ERROR, "AnthropicError": ANTHROPIC_ERROR, **EVENTS}
        schemas["ServedModelRequest"] = _schema("model", **_model_names(models.served))
        for request in (ChatRequest, ResponsesRequest, MessagesRequest, CountTokensRequest, LiveRequest):
            schemas.update(_schemas(request))
            schemas[request.__name__]["properties"] |= _model_names(models.methods)
        if locked:
            description["components"]["securitySchemes"] = {
                "key": {"type": "http", "scheme": "bearer"},
                "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            }
            for path, operations in description["paths"].items():
                for operation in operations.values() if path not in PUBLIC_PATHS else ():
                    operation["security"] = [{"key": []}, {"x-api-key": []}]
        return description

    return describe


def _model_names(names: Iterable[str]) -> dict[str, Any]:
    return {"model": {"type": "string", "enum": list(names)}}


def _schemas(request: type[BaseModel]) -> dict[str, Any]:
    schema = request.model_json_schema(ref_template="#/components/schemas/{model}")
    return {**schema.pop("$defs", {}), request.__name__: schema}
