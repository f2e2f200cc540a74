"""From the JSON of a request to a validated one, or to an error that names the parameter and a cure. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any, TypeAlias, TypeVar, cast

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from ...budget import Budget
from ...errors import near
from ..http.errors import ApiError, bad_request, format_path
from .bounds import MAX_ITEMS, check_bounds
from .messages import OWN_TOOLS, TEXT_ONLY, Conversation
from .schemas import SERVED, Request, StepspecOptions
from .tools import FUNCTIONS

P = TypeVar("P", bound=BaseModel)

LOGPROBS = f"the steps come from two models, and their probabilities do not compare; {SERVED}"
IDS = f"the token ids of two models do not agree; {SERVED}"
WRITING = f"two models write in turns, step by step, and cannot apply it; leave it out, or {SERVED}"
TEMPLATE = f"the prompts are written by both models' own chat templates; leave it out, or {SERVED}"
FORMAT = f"send response_format with a JSON schema, or {SERVED}"
CONVERSATION = "nothing is stored; send the whole conversation as input"
TIER = "there is one tier; leave it out"
HISTORY = "it is ignored; leave it out"

CURES: Mapping[str, str] = {
    **dict.fromkeys(("tools.type", "messages.tool_calls.type", "tool_choice.type"), FUNCTIONS),
    **dict.fromkeys(("functions", "function_call"), "send tools and tool_choice, which have replaced it"),
    "messages.function_call": "send tool_calls, which have replaced it",
    "max_tool_calls": "the client runs the tools; leave it out, and count there",
    "tools.function.strict": "send true or false",
    **dict.fromkeys(("logprobs", "top_logprobs", "prompt_logprobs"), LOGPROBS),
    **dict.fromkeys(("logit_bias", "stop_token_ids", "allowed_token_ids", "return_token_ids"), IDS),
    **dict.fromkeys(("previous_response_id", "conversation", "prompt"), CONVERSATION),
    **dict.fromkeys(("chat_template", "add_generation_prompt", "add_special_tokens", "documents"), TEMPLATE),
    **dict.fromkeys(("continue_final_message", "echo", "mm_processor_kwargs"), TEMPLATE),
    **dict.fromkeys(("bad_words", "best_of", "use_beam_search"), WRITING),
    **dict.fromkeys(("length_penalty", "include_stop_str_in_output", "skip_special_tokens"), WRITING),
    **dict.fromkeys(("spaces_between_special_tokens", "truncate_prompt_tokens", "logits_processors"), WRITING),
    **dict.fromkeys(("structured_outputs", "guided_json", "guided_regex", "guided_choice"), FORMAT),
    **dict.fromkeys(("guided_grammar", "guided_decoding_backend"), FORMAT),
    **dict.fromkeys(("messages.refusal", "messages.annotations", "messages.audio"), HISTORY),
    "chat_template_kwargs": f"a method always thinks, as the templates say; send reasoning_effort, or {SERVED}",
    "enable_thinking": f"a method always thinks; send reasoning_effort, or {SERVED}",
    "thinking_token_budget": "send max_completion_tokens or reasoning_effort",
    "include_reasoning": 'send {"stepspec": {"thinking": "none"}} for the answer alone',
    "priority": 'send {"stepspec": {"priority": 0}}, for servers that schedule by priority',
    "session_id": "send it in the header X-Session-ID",
    "cache_salt": f"the prefix caches are the servers' own; leave it out, or {SERVED}",
    "request_id": "send it in the header X-Request-Id",
    "background": "nothing is stored; leave it out, and stream",
    "include": "there is nothing more to include; leave it out",
    "truncation": "a conversation that does not fit is refused; leave it out",
    "reasoning.summary": "the reasoning is returned in full; leave it out",
    "reasoning.generate_summary": "the reasoning is returned in full; leave it out",
    "audio": "only text is written; leave it out",
    "modalities": "only text is written; leave it out",
    "prediction": f"the small model's drafts are the prediction; leave it out, or {SERVED}",
    "web_search_options": "there is no web search; leave it out",
    "store": "nothing is stored; leave it out",
    "service_tier": TIER,
    "verbosity": "leave it out, and say in the messages how long the answer should be",
    "text.verbosity": "leave it out, and say in the input how long the answer should be",
    "stream_options.include_obfuscation": "nothing is added to a stream; leave it out",
    "messages.name": "the models see the role of a message only; leave it out, or write the name into the content",
    "reasoning_effort": f"a method always thinks; choose minimal, low, medium, high or xhigh, or {SERVED}",
    "reasoning.effort": f"a method always thinks; choose minimal, low, medium, high or xhigh, or {SERVED}",
}
"""The cure for a parameter, by its path without indices."""

EFFORT = "a method always thinks; choose low, medium, high, xhigh or max"

ANTHROPIC_CURES: Mapping[str, str] = {
    **dict.fromkeys(("mcp_servers", "container"), OWN_TOOLS),
    **dict.fromkeys(("compaction", "thread"), "nothing is stored or shortened; send the whole conversation"),
    **dict.fromkeys(
        ("fallbacks", "fallback_credit_token", "billing_policy"), "there is no other model to fall back to"
    ),
    "tool_choice": "choose the type auto, any, none, or tool with a name",
    "tools.defer_loading": "there is no search for tools; leave it out, and send the tools that matter",
    "tools.allowed_callers": OWN_TOOLS,
    "thinking": "choose the type enabled, adaptive or disabled",
    "output_config.effort": EFFORT,
    "output_config.format": "send a format of the type json_schema with a schema",
    "context_management.edits": "the conversation is read as it is sent; leave the edit out",
    "inference_geo": "the models run where the service does; leave it out",
    "diagnostics": "send it in the header X-Request-Id, and read the reply's ledger; leave it out",
    "speed": "there is one speed; leave it out",
    "service_tier": TIER,
    "messages.content.citations": f"{TEXT_ONLY}; leave the citations out",
    "seed": "this API has no seed; use /v1/chat/completions, or leave it out",
    "n": "this API has one answer; send several requests",
    "metadata": "send user_id alone",
}
"""The same for the requests of Anthropic's API, in addition."""

CODES: Mapping[str, str] = {"thread": "thread_unsupported_request"}
"""The codes that clients wait for, by parameter: after this one, Anthropic's SDK sends the whole conversation."""

OTHER_NAMES: Mapping[str, tuple[str, ...]] = {
    "max_tokens": ("max_output_tokens",),
    "max_completion_tokens": ("max_output_tokens", "max_tokens"),
    "response_format": ("text.format", "output_config.format"),
    "output_format": ("output_config.format", "response_format"),
    "reasoning_effort": ("reasoning.effort", "output_config.effort"),
    "messages": ("input",),
    "max_output_tokens": ("max_completion_tokens", "max_tokens"),
    "text": ("response_format", "output_config.format"),
    "reasoning": ("reasoning_effort", "output_config.effort"),
    "input": ("messages",),
    "stop": ("stop_sequences",),
    "stop_sequences": ("stop",),
    "instructions": ("system",),
    "system": ("instructions",),
    "user": ("metadata.user_id",),
}
"""The names of one parameter in the other APIs, by that in one."""


Path: TypeAlias = tuple[int | str, ...]

EXPECTED = "Input should be "
OBJECTS = ("model_type", "model_attributes_type", "dict_type")  # pydantic names its class, which clients do not know


def parse_request(schema: type[P], content: Mapping[str, Any], max_items: int = MAX_ITEMS) -> P:
    """
    Validate a request, none of whose lists may have more than *max_items* items.

    Raise `ApiError`, which names the wrong parameter and a cure.
    """
    check_bounds(content, max_items)
    try:
        return schema.model_validate(content)
    except ValidationError as exc:
        raise explain(schema, content, exc) from exc


def explain(schema: type[BaseModel], body: object, exc: ValidationError) -> ApiError:
    """Make the error for a *body* that is not valid for *schema*."""
    details = exc.errors(include_url=False, include_input=False)
    errors = [(error, body_path(error["loc"], body, error["type"])) for error in details]
    error, path = min(errors, key=_weight)
    param = format_path(path)
    if error["type"] == "missing":
        return bad_request(f"{param} is missing", param, "missing")
    name, unknown = ".".join(part for part in path if isinstance(part, str)), error["type"] == "extra_forbidden"
    others = [other for other in OTHER_NAMES.get(name, ()) if other.partition(".")[0] in schema.model_fields]
    if unknown and others:
        return bad_request(f"{param} is called {others[0]} in this API", param, "unknown_parameter")
    cure = (ANTHROPIC_CURES.get(name) if issubclass(schema, Conversation) else None) or CURES.get(name)
    if cure is not None:
        verb = "is not supported" if unknown else "cannot have this value"
        return bad_request(f"{param} {verb}: {cure}", param, CODES.get(name, "unsupported_parameter"))
    if unknown:
        hint = near(str(path[-1]), _known(schema, path))
        return bad_request(f"unknown parameter {param!r}{hint}", param, "unknown_parameter")
    messages = _joined(_message(other) for other, other_path in errors if other_path == path)
    return bad_request(f"{param}: {messages}", param, "invalid_value")


def body_path(location: Path, body: object, kind: str) -> Path:
    """Return the part of an error's *location* that exists in *body*: pydantic adds the names of alternatives."""
    path = _walk(location, body, kind)
    return location[:1] if path is None else path


def _walk(location: Path, body: object, kind: str) -> Path | None:
    if not location:
        return ()
    part, rest = location[0], location[1:]
    inner = _at(body, part)
    path = _walk(rest, inner[0], kind) if inner is not None else None
    within = (part, *path) if path is not None else None
    if not rest and kind == "missing" and inner is None:
        return (part,)
    if isinstance(part, int) or (not rest and kind == "extra_forbidden"):
        return within
    beside = _walk(rest, body, kind)
    if within is None or beside is None:
        return within or beside
    return beside if beside[-1:] == location[-1:] != within[-1:] else within  # an alternative called like a field


def _at(body: object, part: int | str) -> tuple[object] | None:
    """Return the value at *part* in a tuple; None if *body* has no such part."""
    if isinstance(body, dict) and part in body:
        return (cast("dict[Any, object]", body)[part],)
    if isinstance(body, list) and isinstance(part, int):
        items = cast("list[object]", body)
        return (items[part],) if part < len(items) else None
    return None


def _weight(error_at: tuple[ErrorDetails, Path]) -> tuple[bool, int]:
    """Order unknown parameters first; among failed alternatives, the one that matched the longest path first."""
    error, path = error_at
    return error["type"] != "extra_forbidden", -len(path)


def _message(error: ErrorDetails) -> str:
    return EXPECTED + "an object" if error["type"] in OBJECTS else error["msg"].removeprefix("Value error, ")


def _joined(messages: Iterable[str]) -> str:
    first, *others = dict.fromkeys(messages)
    return " or ".join([first, *(other.removeprefix(EXPECTED) for other in others)])


def _known(schema: type[BaseModel], path: Sequence[int | str]) -> list[str]:
    if path[0] == "stepspec":
        return [*StepspecOptions.model_fields, *[field.name for field in fields(Budget)]]
    if path[0] in ("messages", "input", "system") and issubclass(schema, Request | Conversation):
        return [field for part in schema.parts for field in part.model_fields]
    return [*schema.model_fields] if len(path) == 1 else []
