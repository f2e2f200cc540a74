"""What the service says about itself under ``/openapi.json``. Values only."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel
from starlette.responses import Response

from .middleware import OPEN
from .run_requests import ModelCatalog
from .schemas import ChatRequest, LiveRequest, ResponsesRequest

REFUSAL: Mapping[str, Any] = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}
WORDS: Mapping[int, str] = {
    400: "The request is wrong; the message names the parameter and what would do.",
    401: "No key, or not the right one.",
    404: "There is no such model.",
    408: "The body did not come.",
    413: "The body is too large.",
    429: "Too many requests at once; Retry-After says when to come back.",
    500: "The service failed, or a server answered nonsense.",
    503: "Shutting down, or a served model is down; Retry-After says when to come back.",
    504: "No answer before the deadline.",
}
ASKED = (400, 401, 404, 408, 413, 429, 500, 503, 504)
STREAM: Mapping[str, Any] = {"text/event-stream": {"schema": {}}}


def _object(*required: str) -> dict[str, Any]:
    return {"application/json": {"schema": {"type": "object", "required": list(required)}}}


def _answers(success: str, content: Mapping[str, Any], *refusals: int) -> dict[str, Any]:
    refused = {"application/json": {"schema": {"$ref": "#/components/schemas/Refusal"}}}
    told: dict[int | str, Any] = {status: {"description": WORDS[status], "content": refused} for status in refusals}
    answers = {200: {"description": success, "content": dict(content)}, **told}
    return {"responses": answers, "response_class": Response}


def _body(name: str) -> dict[str, Any]:
    schema = {"$ref": f"#/components/schemas/{name}"}
    return {"openapi_extra": {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}}


COMPLETION = _object("id", "object", "created", "model", "choices", "usage", "steps", "ledger", "stepspec")
CHAT = _answers("The completion, or its stream.", {**COMPLETION, **STREAM}, *ASKED) | _body("ChatRequest")
COMPLETIONS = _answers("The model's answer, or its stream.", {**_object(), **STREAM}, *ASKED) | _body("RawRequest")
RESPONSE = _object("id", "object", "created_at", "status", "model", "output", "usage", "steps", "ledger", "stepspec")
RESPONSES = _answers("The response, or its stream.", {**RESPONSE, **STREAM}, *ASKED) | _body("ResponsesRequest")
LIVE = _answers("The events of the run.", STREAM, *ASKED) | _body("LiveRequest")
LIVE_METHODS = _answers("The methods.", _object("default", "methods", "models"), 401)
LIVE_TRUST = _answers("What is known about the judge.", _object("promise", "drift", "shadows"), 401)
MODELS = _answers("The models.", _object("object", "data"), 401)
MODEL = _answers("The model.", _object("id", "object", "created", "owned_by"), 401, 404)
ALIVE = _answers("The process answers.", {})
READY = _answers("New work is welcome.", _object("status", "small", "large"))
READY["responses"][503] = {
    "description": "It is not: shutting down, or a server is down.",
    "content": _object("status"),
}
VERSION = _answers("The version.", _object("version"))
METRICS = _answers("The metrics.", {"text/plain": {"schema": {"type": "string"}}})
PAGE = _answers("The page.", {"text/html": {"schema": {"type": "string"}}})


def describing(app: FastAPI, catalogue: ModelCatalog, *, locked: bool) -> Callable[[], dict[str, Any]]:
    """Describe *app*, with the models that there are now; *locked* says that it takes a key."""
    made = app.openapi

    def describe() -> dict[str, Any]:
        app.openapi_schema = None
        described = made()
        schemas = described.setdefault("components", {}).setdefault("schemas", {})
        schemas["Refusal"] = dict(REFUSAL)
        schemas["RawRequest"] = {"type": "object", "required": ["model"], "properties": _models(catalogue.raw)}
        for request in (ChatRequest, ResponsesRequest, LiveRequest):
            schemas.update(_schemas(request))
            schemas[request.__name__]["properties"] |= _models(catalogue.orchestrated)
        if locked:
            described["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
            for path, operations in described["paths"].items():
                for operation in operations.values() if path not in OPEN else ():
                    operation["security"] = [{"key": []}]
        return described

    return describe


def _models(names: Iterable[str]) -> dict[str, Any]:
    return {"model": {"type": "string", "enum": list(names)}}


def _schemas(request: type[BaseModel]) -> dict[str, Any]:
    schema = request.model_json_schema(ref_template="#/components/schemas/{model}")
    return {**schema.pop("$defs", {}), request.__name__: schema}
