"""What to do instead of asking for what no method can do, by where a request asks for it. Values only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any, TypeAlias, cast

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from ..budget import Budget
from ..errors import near
from .errors import ApiError, bad, place
from .schemas import RAW, TOOLS, StepspecOptions, Turn

LOGPROBS = f"the steps come from two models, whose probabilities do not compare; {RAW}"
IDS = f"the token ids of two models do not agree; {RAW}"
WRITING = f"two models write in turns, step by step, which leaves no place for it; leave it out, or {RAW}"
TEMPLATE = f"the prompts are written by both models' own chat templates; leave it out, or {RAW}"
FORMAT = f"send response_format with a JSON schema, or {RAW}"
CONVERSATION = "nothing is stored; send the whole conversation as input"
TIER = "there is one tier; leave it out"
HISTORY = "it is not read; leave it out"

CURES: Mapping[str, str] = {
    **dict.fromkeys(("tools", "tool_choice", "functions", "function_call", "parallel_tool_calls"), TOOLS),
    **dict.fromkeys(("messages.tool_calls", "messages.tool_call_id", "messages.function_call"), TOOLS),
    **dict.fromkeys(("max_tool_calls", "input.call_id", "input.arguments"), TOOLS),
    **dict.fromkeys(("logprobs", "top_logprobs", "prompt_logprobs"), LOGPROBS),
    **dict.fromkeys(("logit_bias", "stop_token_ids", "allowed_token_ids", "return_token_ids"), IDS),
    **dict.fromkeys(("previous_response_id", "conversation", "prompt"), CONVERSATION),
    **dict.fromkeys(("chat_template", "add_generation_prompt", "add_special_tokens", "documents"), TEMPLATE),
    **dict.fromkeys(("continue_final_message", "echo", "mm_processor_kwargs"), TEMPLATE),
    **dict.fromkeys(("min_tokens", "ignore_eos", "bad_words", "best_of", "use_beam_search"), WRITING),
    **dict.fromkeys(("length_penalty", "include_stop_str_in_output", "skip_special_tokens"), WRITING),
    **dict.fromkeys(("spaces_between_special_tokens", "truncate_prompt_tokens", "logits_processors"), WRITING),
    **dict.fromkeys(("structured_outputs", "guided_json", "guided_regex", "guided_choice"), FORMAT),
    **dict.fromkeys(("guided_grammar", "guided_decoding_backend"), FORMAT),
    **dict.fromkeys(("messages.refusal", "messages.annotations", "messages.audio"), HISTORY),
    "chat_template_kwargs": f"a method always thinks, as both models' templates say; send reasoning_effort, or {RAW}",
    "enable_thinking": f"a method always thinks; send reasoning_effort, or {RAW}",
    "thinking_token_budget": "send max_completion_tokens or reasoning_effort",
    "include_reasoning": 'send {"stepspec": {"thinking": "none"}} to be told the answer only',
    "priority": 'send {"stepspec": {"priority": 0}}, for servers that schedule by priority',
    "session_id": "send it in the header X-Session-ID",
    "cache_salt": f"the prefix caches are the servers' own; leave it out, or {RAW}",
    "request_id": "send it in the header X-Request-Id",
    "background": "nothing is stored; leave it out, and stream",
    "include": "there is nothing more to include; leave it out",
    "truncation": "a conversation that does not fit is refused; leave it out",
    "reasoning.summary": "the thinking is told as it is; leave it out",
    "reasoning.generate_summary": "the thinking is told as it is; leave it out",
    "audio": "only text is written; leave it out",
    "modalities": "only text is written; leave it out",
    "prediction": f"the small model's drafts are the prediction; leave it out, or {RAW}",
    "web_search_options": "there is no web search; leave it out",
    "store": "nothing is stored; leave it out",
    "service_tier": TIER,
    "verbosity": "leave it out, and say in the messages how long the answer should be",
    "text.verbosity": "leave it out, and say in the input how long the answer should be",
    "stream_options.include_obfuscation": "nothing is added to a stream; leave it out",
    "stream_options.continuous_usage_stats": "the usage is told once, at the end; leave it out",
    "messages.name": "the models are told the role of a turn only; leave it out, or write the name into the content",
    "reasoning_effort": f"a method always thinks; choose minimal, low, medium, high or xhigh, or {RAW}",
    "reasoning.effort": f"a method always thinks; choose minimal, low, medium, high or xhigh, or {RAW}",
}
"""By the names on the way to a parameter, without the numbers."""

ELSEWHERE: Mapping[str, str] = {
    "max_tokens": "max_output_tokens",
    "max_completion_tokens": "max_output_tokens",
    "response_format": "text.format",
    "reasoning_effort": "reasoning.effort",
    "messages": "input",
    "max_output_tokens": "max_completion_tokens",
    "text": "response_format",
    "reasoning": "reasoning_effort",
    "input": "messages",
}
"""What one of both APIs calls as the key says, the other one calls otherwise."""


Where: TypeAlias = tuple[int | str, ...]

EXPECTED = "Input should be "
OBJECTS = ("model_type", "model_attributes_type", "dict_type")  # pydantic names the class, which no client knows


def explain(kind: type[BaseModel], given: object, exc: ValidationError) -> ApiError:
    """Refuse what was *given* instead of a request of this *kind*."""
    found = [(error, spelt(error["loc"], given, error["type"])) for error in exc.errors()]
    error, where = min(found, key=_weight)
    param = place(where)
    if error["type"] == "missing":
        return bad(f"{param} is missing", param, "missing")
    name, unknown = ".".join(part for part in where if isinstance(part, str)), error["type"] == "extra_forbidden"
    other = ELSEWHERE.get(name, "") if unknown else ""
    if other.partition(".")[0] in kind.model_fields:
        return bad(f"{param} is called {other} in this API", param, "unknown_parameter")
    if name in CURES:
        verb = "is not known here" if unknown else "cannot be honoured"
        return bad(f"{param} {verb}: {CURES[name]}", param, "unsupported_parameter")
    if unknown:
        hint = near(str(where[-1]), _known(kind, where))
        return bad(f"unknown parameter {param!r}{hint}", param, "unknown_parameter")
    words = _joined(_words(each) for each, its in found if its == where)
    return bad(f"{param}: {words}", param, "invalid_value")


def spelt(location: Where, given: object, kind: str) -> Where:
    """Leave out of an error's *location* what only names an alternative, and stands nowhere in what was *given*."""
    walked = _walk(location, given, kind)
    return location[:1] if walked is None else walked


def _walk(location: Where, given: object, kind: str) -> Where | None:
    if not location:
        return ()
    part, rest = location[0], location[1:]
    inner = _at(given, part)
    if inner is not None:
        walked = _walk(rest, inner[0], kind)
        if walked is not None:
            return (part, *walked)
    if not rest and kind == "missing" and inner is None:
        return (part,)
    if isinstance(part, int) or (not rest and kind == "extra_forbidden"):
        return None
    return _walk(rest, given, kind)


def _at(given: object, part: int | str) -> tuple[object] | None:
    """What stands at *part*, in a tuple; None if there is no such place."""
    if isinstance(given, dict) and part in given:
        return (cast("dict[Any, object]", given)[part],)
    if isinstance(given, list) and isinstance(part, int):
        items = cast("list[object]", given)
        return (items[part],) if part < len(items) else None
    return None


def _weight(one: tuple[ErrorDetails, Where]) -> tuple[bool, int]:
    """Unknown parameters come first, and of the alternatives that failed the one that fitted farthest."""
    error, where = one
    return error["type"] != "extra_forbidden", -len(where)


def _words(error: ErrorDetails) -> str:
    return EXPECTED + "an object" if error["type"] in OBJECTS else error["msg"].removeprefix("Value error, ")


def _joined(words: Iterable[str]) -> str:
    first, *others = dict.fromkeys(words)
    return " or ".join([first, *(other.removeprefix(EXPECTED) for other in others)])


def _known(kind: type[BaseModel], where: Sequence[int | str]) -> list[str]:
    if where[0] == "stepspec":
        return [*StepspecOptions.model_fields, *[one.name for one in fields(Budget)]]
    if where[0] in ("messages", "input"):
        return [*Turn.model_fields]
    return [*kind.model_fields] if len(where) == 1 else []
