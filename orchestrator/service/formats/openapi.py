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

REQUESTS = (ChatRequest, ResponsesRequest, MessagesRequest, CountTokensRequest, LiveRequest)
TEXT = {"type": "string"}
TEXT_OR_NULL = {"type": ["string", "null"]}
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
JSON, STREAM = "application/json", "text/event-stream"


def _object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "required": list(properties), "properties": properties}


ERROR = _object(error=_object(message=TEXT, type=TEXT, param=TEXT_OR_NULL, code=TEXT_OR_NULL))
ANTHROPIC_ERROR = _object(type={"const": "error"}, error=_object(type=TEXT, message=TEXT), request_id=TEXT)


def _answers(success: str, kinds: Iterable[str], *statuses: int, error: str = "Error") -> dict[str, Any]:
    """Describe a route that answers with a body of one of these *kinds*, or with an *error* of these *statuses*."""
    failure = {"application/json": {"schema": {"$ref": f"#/components/schemas/{error}"}}}
    schemas = {kind: {"schema": {"type": "object"} if kind == JSON else {}} for kind in kinds}
    responses: dict[int | str, Any] = {200: {"description": success, "content": schemas}}
    for status in statuses:
        responses[status] = {"description": DESCRIPTIONS[status], "content": failure}
    return {"responses": responses, "response_class": Response}


def _calls(success: str, request: str, *kinds: str, anthropic: bool = False) -> dict[str, Any]:
    """Describe a route that calls models for a body of the schema *request*."""
    statuses, error = ((*MODEL_ERRORS, 529), "AnthropicError") if anthropic else (MODEL_ERRORS, "Error")
    body = {"application/json": {"schema": {"$ref": f"#/components/schemas/{request}"}}}
    more = {"openapi_extra": {"requestBody": {"required": True, "content": body}}}
    return _answers(success, kinds, *statuses, error=error) | more


CHAT = _calls("The completion, or its stream.", "ChatRequest", JSON, STREAM)
COMPLETIONS = _calls("The model's answer, or its stream.", "ServedModelRequest", JSON, STREAM)
RESPONSES = _calls("The response, or its stream.", "ResponsesRequest", JSON, STREAM)
MESSAGES = _calls("The message, or its stream.", "MessagesRequest", JSON, STREAM, anthropic=True)
COUNT_TOKENS = _calls("The number of tokens.", "CountTokensRequest", JSON, anthropic=True)
LIVE = _calls("The events of the run.", "LiveRequest", STREAM)
LIVE_METHODS = _answers("The methods.", [JSON], 401)
MODELS = _answers("The models.", [JSON], 401)
MODEL = _answers("The model.", [JSON], 401, 404)
ALIVE = _answers("The process answers.", [])
READY = _answers('New requests are admitted, if "degraded" by the large model alone.', [JSON])
READY["responses"][503] = {
    "description": "New requests are not admitted: the service is shutting down, or the large model is down.",
    "content": {JSON: {"schema": {"type": "object"}}},
}
VERSION = _answers("The version.", [JSON])
METRICS = _answers("The metrics.", ["text/plain"])
PAGE = _answers("The page.", ["text/html"])


def describer(app: FastAPI, models: ModelCatalog, *, locked: bool) -> Callable[[], dict[str, Any]]:
    """Return a function that describes *app* with the current models; *locked* says that it needs an API key."""
    generate = app.openapi

    def describe() -> dict[str, Any]:
        app.openapi_schema = None
        description = generate()
        schemas = description.setdefault("components", {}).setdefault("schemas", {})
        schemas |= {"Error": ERROR, "AnthropicError": ANTHROPIC_ERROR}
        schemas["ServedModelRequest"] = _object(**_model_names(models.served))
        for request in REQUESTS:
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
