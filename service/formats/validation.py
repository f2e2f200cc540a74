"""
Validation of the JSON of a request. An error names the parameter, and says what to send instead.

No I/O.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any, TypeAlias, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from stepspec.orchestrator.errors import near
from stepspec.orchestrator.run_options import models

from ..errors import ApiError, bad_request, format_path
from ..json_types import JsonFields
from .defaults import has_no_effect
from .schemas import check_bounds

P = TypeVar("P", bound=BaseModel)

SERVED_MODEL_HINT = (
    "ask one of the served models by its own name (GET /v1/models): such requests are forwarded"
    " unchanged"
)
TOOLS_HINT = (
    "the service runs no tools; send tools of the type function (in Anthropic's API: tools with an"
    " input_schema), which the client runs"
)
CONTENT_HINT = (
    "the methods read text only, and the service runs no tools; in Anthropic's API, thinking and"
    " calls belong into a message of the assistant, and results into a message of the user;"
    f" {SERVED_MODEL_HINT}"
)
ITEM_HINT = (
    "the service stores no items and runs no tools; send the whole item in place of its id; an item"
    " is a message, reasoning, or a call of one of the client's tools of the type function or"
    " custom, or its result"
)

PENALTIES = ("presence_penalty", "frequency_penalty")
"""Parameters that may only be 0."""

_PARAMETERS: Mapping[str, Sequence[str]] = {
    TOOLS_HINT: ["tools.type", "messages.tool_calls.type", "tool_choice.type"],
    CONTENT_HINT: [
        "messages.content.type",
        "messages.content.content.type",
        "input.content.type",
        "input.output.type",
        "system.type",
    ],
    ITEM_HINT: ["input.type"],
    "only a message of the assistant makes calls": ["messages.tool_calls"],
    "only a message of the role tool has the id of the call": ["messages.tool_call_id"],
    "send tools, which have replaced it": ["functions", "function_call", "messages.function_call"],
    "vLLM counts for it only what one request wrote, and a run makes many requests: leave it at 0"
    " and set repetition_penalty, which counts the whole chain, or send the request to the served"
    " model itself": PENALTIES,
    "the steps come from two models, and their probabilities do not compare;"
    f" {SERVED_MODEL_HINT}": ["logprobs", "top_logprobs", "prompt_logprobs"],
    f"the token ids of two models do not agree; {SERVED_MODEL_HINT}": [
        "logit_bias",
        "stop_token_ids",
        "allowed_token_ids",
        "return_token_ids",
    ],
    "nothing is stored; send the whole conversation": [
        "previous_response_id",
        "conversation",
        "prompt",
        "store",
        "background",
        "compaction",
        "thread",
    ],
    "leave it out: the models read the whole conversation": ["truncation"],
    f"send response_format with a JSON schema, or {SERVED_MODEL_HINT}": [
        "structured_outputs",
        "guided_json",
        "guided_regex",
        "guided_choice",
        "guided_grammar",
    ],
    f"a method always thinks; send reasoning_effort, or {SERVED_MODEL_HINT}": [
        "chat_template_kwargs",
        "enable_thinking",
    ],
    "send low, medium or high: a method always thinks": [
        "reasoning_effort",
        "reasoning.effort",
        "output_config.effort",
    ],
    "send max_completion_tokens or reasoning_effort": ["thinking_token_budget"],
    'send {"stepspec": {"thinking": "none"}} for the answer alone': ["include_reasoning"],
    'send {"stepspec": {"priority": 0}}, for servers that schedule by priority': ["priority"],
}
HINTS = {name: hint for hint, names in _PARAMETERS.items() for name in names}
"""What to send in place of a parameter, by the path of the parameter without indices."""

CODES = {
    # after an error with this code, Anthropic's SDK sends the whole conversation
    "thread": "thread_unsupported_request",
    **dict.fromkeys(PENALTIES, "invalid_value"),
}
"""The code of an error, by the parameter. All other parameters: "unsupported_parameter"."""

SYNONYMS: Sequence[tuple[str, ...]] = (
    ("max_completion_tokens", "max_tokens", "max_output_tokens"),
    ("response_format", "text", "output_config", "output_format"),
    ("reasoning_effort", "reasoning", "output_config"),
    ("messages", "input"),
    ("stop", "stop_sequences"),
    ("instructions", "system"),
    ("user", "metadata"),
)
"""The names of one parameter in the three APIs."""

MISSING = object()
"""Stands for a value that is not in a request."""
Path: TypeAlias = tuple[int | str, ...]

EXPECTED = "Input should be "
"""The beginning of most of pydantic's messages."""
LISTED = f"/openapi.json lists all parameters of a method; or {SERVED_MODEL_HINT}"
OBJECT_ERRORS = ("model_type", "model_attributes_type", "dict_type")
"""pydantic's errors whose messages name a class, which clients do not know."""


def parse_request(schema: type[P], content: JsonFields) -> P:
    """
    Validate a request. A parameter that is null, or that has no effect, counts as left out.

    Raise `ApiError`, which names the wrong parameter and says what to send instead.
    """
    check_bounds(content)
    known = schema.model_fields
    given = {
        name: value
        for name, value in content.items()
        if name in known or not has_no_effect(name, value)
    }
    try:
        return schema.model_validate(given)
    except ValidationError as exc:
        raise explain(schema, content, exc) from exc


def explain(schema: type[BaseModel], body: object, exc: ValidationError) -> ApiError:
    """Make the error for a *body* that is not valid for *schema*."""
    errors = [
        (error, body_path(error["loc"], body, error["type"]))
        for error in exc.errors(include_url=False, include_input=False)
    ]
    error, path = min(errors, key=_weight)
    param = format_path(path)
    name = _name(error, path)
    unknown = error["type"] == "extra_forbidden"
    if error["type"] == "missing":
        return bad_request(f"{param} is missing", param, "missing")
    synonym = _synonym(name, schema)
    if unknown and synonym:
        message = f"{param} is called {synonym} in this API"
        return bad_request(message, param, "unknown_parameter")
    if name in HINTS:
        verb = "is not supported" if unknown else "cannot have this value"
        code = CODES.get(name, "unsupported_parameter")
        return bad_request(f"{param} {verb}: {HINTS[name]}", param, code)
    if unknown:
        suggestion = near(str(path[-1]), _known(schema, path)) or f"; {LISTED}"
        message = f"unknown parameter {param!r}{suggestion}"
        return bad_request(message, param, "unknown_parameter")
    if error["type"] == "none_required":
        message = f"{param} is not supported: leave it out"
        return bad_request(message, param, "unsupported_parameter")
    messages = [_message(other) for other, other_path in errors if other_path == path]
    first, *others = dict.fromkeys(messages)
    others = [other.removeprefix(EXPECTED) for other in others]
    return bad_request(f"{param}: {' or '.join([first, *others])}", param)


def _name(error: ErrorDetails, path: Path) -> str:
    """Return the *path* of an error without indices. A wrong type is an error of ``type``."""
    names = [part for part in path if isinstance(part, str)]
    if error["type"] == "union_tag_invalid":
        names.append("type")
    return ".".join(names)


def _synonym(name: str, schema: type[BaseModel]) -> str | None:
    """Return the parameter of *schema* that other APIs call *name*; None if there is none."""
    synonyms = [synonym for names in SYNONYMS if name in names for synonym in names]
    return next((synonym for synonym in synonyms if synonym in schema.model_fields), None)


def body_path(location: Path, body: object, kind: str) -> Path:
    """
    Return the part of an error's *location* that exists in *body*.

    pydantic adds the names of alternatives to the location. *kind* is pydantic's type of the error.
    """
    path: list[int | str] = []
    value = body
    for part, following in zip_longest(location, location[1:]):
        inner = _at(value, part)
        if inner is MISSING:
            if following is None and kind == "missing":
                path.append(part)
            continue
        is_alternative = (
            following is not None
            and _at(inner, following) is MISSING
            and _at(value, following) is not MISSING
        )
        if not is_alternative:
            path.append(part)
            value = inner
    return tuple(path) or location[:1]


def _at(body: Any, part: int | str) -> object:
    """Return the value at *part* of *body*; `MISSING` if there is none."""
    try:
        return body[part]
    except (KeyError, IndexError, TypeError):
        return MISSING


def _weight(error_at: tuple[ErrorDetails, Path]) -> tuple[bool, bool, int]:
    """
    Return the sort key of an error.

    Wrong types come first, because they cause further errors, and then unknown parameters. Of
    failed alternatives, the one with the longest path comes first.
    """
    error, path = error_at
    is_type = _name(error, path).endswith(".type")
    return not is_type, error["type"] != "extra_forbidden", -len(path)


def _message(error: ErrorDetails) -> str:
    if error["type"] in OBJECT_ERRORS:
        return EXPECTED + "an object"
    return error["msg"].removeprefix("Value error, ")


def _known(schema: type[BaseModel], path: Sequence[int | str]) -> set[str]:
    """Return the names of the parameters that *schema* has at *path*."""
    found = [schema]
    for name in path[:-1]:
        fields = [model.model_fields.get(str(name)) for model in found]
        found = [inner for field in fields if field for inner in models(field.annotation)]
    return {name for model in found for name in model.model_fields}
