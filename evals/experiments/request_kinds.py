"""
The kinds of requests that `mixed_requests` sends: a table, and how a reply of each API is read.

A further kind is a line of `KINDS`; a further API is a reader of its replies in `READERS`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import orjson

from ..sample import Task

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"
SEED = 11
ROOM = 512  # tokens of a reply; the problems of the miniature pair need a third of it

Json: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Names:
    """The names under which both models are served."""

    small: str
    large: str


@dataclass(frozen=True, slots=True)
class Said:
    """What a reply says: its *text*, with tool calls, and the *tokens* of its usage; None without one."""

    text: str
    tokens: int | None


class ReplyError(ValueError):
    """A reply that is not as its API has it, or that reports an error; the message says which."""


@dataclass(frozen=True, slots=True)
class Kind:
    """
    One kind of requests, of which a mix has *share* parts.

    *fields* makes the body for a task, or its bytes as they are. The client *leaves* after so many events of a stream,
    or else after so many seconds. A refusal has this *status*, and names *param*. *needs* says whether a service that
    describes itself so can answer; *real*, that a stand-in cannot.
    """

    name: str
    share: int
    path: str
    fields: Callable[[Names, Task], Json | bytes]
    stream: bool = False
    leaves: tuple[float, float] | None = None
    status: int = 200
    param: str | None = None
    needs: Callable[[Json], bool] | None = None
    real: bool = False

    def body(self, names: Names, task: Task, *, stream: bool | None = None) -> bytes:
        """Return the body for *task*; with *stream*, as a stream or not."""
        fields = self.fields(names, task)
        if isinstance(fields, bytes):
            return fields
        streamed = self.stream if stream is None else stream
        more = {"stream_options": {"include_usage": True}} if self.path in (CHAT, COMPLETIONS) else {}
        return orjson.dumps({**fields, "stream": True, **more} if streamed else fields)

    def served(self, description: Json) -> bool:
        """Whether a service with this OpenAPI *description* answers such requests."""
        return self.path in description["paths"] and (self.needs is None or self.needs(description))

    def patience(self, chance: random.Random) -> float | None:
        """Draw how long the client stays, in events of a stream or in seconds; None for to the end."""
        if self.leaves is None:
            return None
        return chance.randint(*map(int, self.leaves)) if self.stream else chance.uniform(*self.leaves)


# Bodies


def _turn(task: Task) -> list[Json]:
    return [{"role": "user", "content": task.problem}]


def _chat(model: str | None, names: Names, task: Task, **more: Any) -> Json:
    return {"model": model or names.large, "messages": _turn(task), "temperature": 0, "max_tokens": ROOM, **more}


def _auto(names: Names, task: Task, **more: Any) -> Json:
    """Return a body with a seed: `auto` steps aside without one, and then the time decides who writes."""
    return _chat("auto", names, task, seed=SEED, **more)


def _completion(names: Names, task: Task) -> Json:
    return {"model": names.small, "prompt": task.problem, "temperature": 0, "max_tokens": 64}


def _response(model: str | None, names: Names, task: Task, **more: Any) -> Json:
    return {"model": model or names.large, "input": task.problem, "temperature": 0, "max_output_tokens": ROOM, **more}


def _message(model: str | None, names: Names, task: Task, **more: Any) -> Json:
    return {"model": model or names.large, "messages": _turn(task), "temperature": 0, "max_tokens": ROOM, **more}


def _after_a_turn(names: Names, task: Task) -> Json:
    turns = [{"role": "user", "content": "Hello."}, {"role": "assistant", "content": "Hello.", "reasoning": "A word."}]
    return {**_chat("specreason", names, task), "messages": [*turns, *_turn(task)]}


def _raw(body: bytes) -> Callable[[Names, Task], bytes]:
    return lambda names, task: body


# Tools, as OpenAI's and Anthropic's references document them

PARAMETERS: Json = {
    "type": "object",
    "properties": {"expression": {"type": "string", "description": "An expression such as 6 * 7."}},
    "required": ["expression"],
    "additionalProperties": False,
}
CALCULATOR: Json = {"name": "calculator", "description": "Evaluate an expression."}
TOOL: Json = {"type": "function", "function": {**CALCULATOR, "parameters": PARAMETERS}}
CALLED: Json = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "calculator", "arguments": '{"expression":"1"}'},
}


def _after_a_call(names: Names, task: Task) -> Json:
    called = {"role": "assistant", "content": None, "tool_calls": [CALLED]}
    result = {"role": "tool", "tool_call_id": "call_1", "content": task.answer}
    return {**_chat("specreason", names, task, tools=[TOOL]), "messages": [*_turn(task), called, result]}


def _accept(schema: str, field: str, description: Json) -> bool:
    """Whether the *schema* of a body lets *field* be more than an empty list."""
    described: Json = description["components"]["schemas"].get(schema, {}).get("properties", {}).get(field, {})
    choices = described.get("anyOf", [described])
    return any(choice.get("type") == "array" and choice.get("maxItems") != 0 for choice in choices)


TOOLS = partial(_accept, "ChatRequest", "tools")
RESPONSES_TOOLS = partial(_accept, "ResponsesRequest", "tools")


KINDS: Sequence[Kind] = (
    Kind("chat", 8, CHAT, partial(_chat, "specreason")),
    Kind("chat stream", 12, CHAT, partial(_chat, "specreason"), stream=True),
    Kind("chat of auto, stream", 6, CHAT, _auto, stream=True),
    Kind("chat of bild, stream", 6, CHAT, partial(_chat, "bild"), stream=True),
    Kind("chat of the large model", 4, CHAT, partial(_chat, "large")),
    Kind("chat in a conversation", 4, CHAT, _after_a_turn),
    Kind("chat passed through", 5, CHAT, partial(_chat, None)),
    Kind("chat passed through, stream", 5, CHAT, partial(_chat, None), stream=True, real=True),
    Kind("completion passed through", 4, COMPLETIONS, _completion, stream=True),
    Kind("response", 6, RESPONSES, partial(_response, "specreason")),
    Kind("response stream", 8, RESPONSES, partial(_response, "specreason"), stream=True),
    Kind("response passed through", 3, RESPONSES, partial(_response, None), stream=True, real=True),
    # Tools
    Kind("tools", 4, CHAT, partial(_chat, "specreason", tools=[TOOL]), needs=TOOLS),
    Kind("tools stream", 4, CHAT, partial(_chat, "specreason", tools=[TOOL]), stream=True, needs=TOOLS),
    Kind(
        "tools required",
        3,
        CHAT,
        partial(_chat, "specreason", tools=[TOOL], tool_choice="required", parallel_tool_calls=False),
        stream=True,
        needs=TOOLS,
    ),
    Kind("tools turned off", 2, CHAT, partial(_chat, "specreason", tools=[TOOL], tool_choice="none"), needs=TOOLS),
    Kind("tools after a call", 3, CHAT, _after_a_call, stream=True, needs=TOOLS),
    Kind(
        "response with tools",
        3,
        RESPONSES,
        partial(_response, "specreason", tools=[{"type": "function", **CALCULATOR, "parameters": PARAMETERS}]),
        stream=True,
        needs=RESPONSES_TOOLS,
    ),
    # Anthropic's API
    Kind("message", 5, MESSAGES, partial(_message, "specreason")),
    Kind("message stream", 7, MESSAGES, partial(_message, "specreason"), stream=True),
    Kind(
        "message with tools",
        3,
        MESSAGES,
        partial(_message, "specreason", tools=[{**CALCULATOR, "input_schema": PARAMETERS}]),
        stream=True,
        needs=TOOLS,
    ),
    # Clients that leave
    Kind("left in a stream", 6, CHAT, partial(_chat, "specreason"), stream=True, leaves=(1, 5)),
    Kind("left in a stream of a response", 4, RESPONSES, partial(_response, "auto"), stream=True, leaves=(1, 9)),
    Kind("left in a stream passed through", 4, CHAT, partial(_chat, None), stream=True, leaves=(1, 20), real=True),
    Kind("left before the answer", 4, CHAT, partial(_chat, "specreason"), leaves=(0.01, 0.3)),
    Kind("left in a stream of a message", 3, MESSAGES, partial(_message, "specreason"), stream=True, leaves=(1, 9)),
    # Bad input
    Kind("bad: no JSON", 1, CHAT, _raw(b'{"model"'), status=400),
    Kind("bad: no model", 1, CHAT, _raw(b'{"messages": []}'), status=400, param="model"),
    Kind("bad: unknown model", 1, CHAT, partial(_chat, "nobody"), status=404, param="model"),
    Kind("bad: no messages", 1, CHAT, _raw(b'{"model": "auto"}'), status=400, param="messages"),
    Kind("bad: unknown field", 1, CHAT, partial(_chat, "auto", tokens=5), stream=True, status=400, param="tokens"),
    Kind("bad: a wrong value", 1, CHAT, partial(_chat, "auto", temperature=3), status=400, param="temperature"),
    Kind("bad: no support", 1, CHAT, partial(_chat, "auto", logprobs=True), status=400, param="logprobs"),
    Kind("bad: an empty response", 1, RESPONSES, _raw(b'{"model": "auto", "input": []}'), status=400, param="input"),
    Kind("bad: a method's completion", 1, COMPLETIONS, _raw(b'{"model": "bild"}'), status=400, param="model"),
    Kind("bad: a message without JSON", 1, MESSAGES, _raw(b"["), status=400),
)


# Replies


def _calls(calls: Iterable[tuple[object, object]]) -> str:
    return "".join(f"\n{name}({arguments})" for name, arguments in calls)


def _chat_reply(reply: Json) -> Said:
    message = reply["choices"][0]["message"]
    functions = [call["function"] for call in message.get("tool_calls") or ()]
    text = (message["content"] or "") + _calls((each["name"], each["arguments"]) for each in functions)
    return Said(text, reply["usage"]["completion_tokens"])


def _chat_stream(events: Sequence[Json]) -> Said:
    content, finish, tokens = "", None, None
    functions: dict[int, list[str]] = {}
    for event in events:
        usage: Json = event.get("usage") or {}
        tokens = usage.get("completion_tokens", tokens)
        for choice in event["choices"]:
            finish = choice.get("finish_reason") or finish
            content += choice["delta"].get("content") or ""
            for call in choice["delta"].get("tool_calls") or ():
                parts = functions.setdefault(call["index"], ["", ""])
                function: Json = call.get("function") or {}
                parts[0] += function.get("name") or ""
                parts[1] += function.get("arguments") or ""
    if finish is None:
        raise ReplyError("a stream without a finish_reason")
    return Said(content + _calls((name, arguments) for name, arguments in functions.values()), tokens)


def _completion_reply(reply: Json) -> Said:
    return Said(reply["choices"][0]["text"], reply["usage"]["completion_tokens"])


def _completion_stream(events: Sequence[Json]) -> Said:
    choices = [choice for event in events for choice in event["choices"]]
    if not any(choice.get("finish_reason") for choice in choices):
        raise ReplyError("a stream without a finish_reason")
    return Said("".join(choice["text"] for choice in choices), events[-1]["usage"]["completion_tokens"])


def _response_reply(reply: Json) -> Said:
    if reply["status"] not in ("completed", "incomplete"):
        raise ReplyError(f"a response with the status {reply['status']!r}")
    messages = [item for item in reply["output"] if item["type"] == "message"]
    text = "".join(part["text"] for item in messages for part in item["content"])
    calls = [item for item in reply["output"] if item["type"] == "function_call"]
    tokens: int = reply["usage"]["output_tokens"]
    return Said(text + _calls((item["name"], item["arguments"]) for item in calls), tokens)


def _response_stream(events: Sequence[Json]) -> Said:
    last = events[-1]
    if last["type"] not in ("response.completed", "response.incomplete"):
        raise ReplyError(f"a stream that ends with {last['type']!r}")
    text = "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")
    said = _response_reply(last["response"])
    if not said.text.startswith(text):
        raise ReplyError("the deltas of a stream and its last event differ")
    return said


def _message_reply(reply: Json) -> Said:
    text = "".join(block["text"] for block in reply["content"] if block["type"] == "text")
    calls = [block for block in reply["content"] if block["type"] == "tool_use"]
    written = _calls((block["name"], orjson.dumps(block["input"]).decode()) for block in calls)
    return Said(text + written, reply["usage"]["output_tokens"])


def _message_stream(events: Sequence[Json]) -> Said:
    if events[-1]["type"] != "message_stop":
        raise ReplyError(f"a stream that ends with {events[-1]['type']!r}")
    blocks: dict[int, dict[str, Any]] = {}
    tokens = None
    for event in events:
        match event["type"]:
            case "content_block_start":
                blocks[event["index"]] = dict(event["content_block"]) | {"text": "", "json": ""}
            case "content_block_delta":
                delta = event["delta"]
                blocks[event["index"]]["text"] += delta.get("text", "")
                blocks[event["index"]]["json"] += delta.get("partial_json", "")
            case "message_delta":
                tokens = event["usage"]["output_tokens"]
            case _:
                pass
    text = "".join(block["text"] for block in blocks.values() if block["type"] == "text")
    calls = [block for block in blocks.values() if block["type"] == "tool_use"]
    inputs = [orjson.dumps(orjson.loads(block["json"] or "{}")).decode() for block in calls]
    return Said(text + _calls((block["name"], each) for block, each in zip(calls, inputs, strict=True)), tokens)


READERS: Mapping[str, tuple[Callable[[Json], Said], Callable[[Sequence[Json]], Said]]] = {
    CHAT: (_chat_reply, _chat_stream),
    COMPLETIONS: (_completion_reply, _completion_stream),
    RESPONSES: (_response_reply, _response_stream),
    MESSAGES: (_message_reply, _message_stream),
}
"""How a reply in one piece is read, and the events of a stream, by path."""


def read(path: str, reply: Json | Sequence[Json]) -> Said:
    """Return what a reply of the API at *path* says. Raise `ReplyError` if it is incomplete or malformed."""
    whole, stream = READERS[path]
    try:
        return whole(reply) if isinstance(reply, Mapping) else stream(_without_errors(reply))
    except (KeyError, IndexError, TypeError, ValueError) as exc:
        raise exc if isinstance(exc, ReplyError) else ReplyError(f"a malformed reply: {exc!r}") from exc


def _without_errors(events: Sequence[Json]) -> Sequence[Json]:
    for event in events:
        if event.get("error"):
            raise ReplyError(f"a stream with an error: {event['error']}")
    if not events:
        raise ReplyError("a stream without events")
    return events
