"""
The Responses API: what a request may contain, and how its run is answered, as items and as numbered
events.

The reasoning is an item, in which each verified step is a delta with the field ``stepspec``; the
message is the next.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, TypeAlias, cast

from pydantic import BeforeValidator, Field

from stepspec.orchestrator.chain import Message, Tool, ToolCall
from stepspec.orchestrator.events import Calling
from stepspec.orchestrator.json_values import is_json, json_text, read_json
from stepspec.orchestrator.solution import Solution

from ..errors import ApiError
from ..records import ServiceRequest
from ..settings import Thinking
from . import deltas
from .deltas import Delta, DeltaBuilder
from .reply_format import PROGRESS_EVENTS, RequestRuns, RunItem
from .schemas import (
    FUNCTION_TOOLS_CURE,
    MAX_TOOLS,
    SPEAKERS,
    AnyJson,
    Arguments,
    CallId,
    Content,
    Effort,
    FunctionTool,
    Items,
    Name,
    NamedSchema,
    Nothing,
    OpenaiRequest,
    Part,
    PlainText,
    Positive,
    Wanted,
    any_json,
    joined_text,
    kind_of,
)

INPUT = "input"
"""The one argument of the function that the models see in place of a custom tool."""

INPUT_SCHEMA = json_text(
    {
        "type": "object",
        "properties": {
            INPUT: {"type": "string", "description": "The text for this tool, in free form."}
        },
        "required": [INPUT],
        "additionalProperties": False,
    }
)


def flat_name(namespace: str | None, name: str) -> str:
    """Return the name of a tool as the models see it, which vLLM joins in the same way."""
    return name if namespace is None else f"{namespace}__{name}"


class Item(Part):
    """An item of the conversation; its id and status, of an earlier answer, are dropped."""

    id: str | None = None
    status: str | None = None


class MessageItem(Item):
    """A message of the conversation."""

    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: Content
    phase: str | None = None


class ReasoningPart(Part):
    """A part of the reasoning of an earlier answer."""

    type: Literal["reasoning_text"]
    text: str


class ReasoningItem(Item):
    """The reasoning of an earlier answer, which the models' own chat templates keep or drop."""

    type: Literal["reasoning"]
    summary: Items[Any] | None = None
    content: Items[ReasoningPart] | None = None
    encrypted_content: str | None = None


class CallItem(Item):
    """A call of a tool in an earlier answer."""

    call_id: CallId
    name: str
    namespace: str | None = None
    """The namespace of the tool; None if it has none."""
    caller: Any = None
    """Who made the call; it has no effect."""

    @property
    def flat_name(self) -> str:
        return flat_name(self.namespace, self.name)


class FunctionCallItem(CallItem):
    """A call of a function."""

    type: Literal["function_call"]
    arguments: Arguments = "{}"
    parsed_arguments: Any = None
    """What OpenAI's SDK parsed of the arguments; it is dropped."""

    @property
    def call(self) -> ToolCall:
        return ToolCall(self.call_id, self.flat_name, self.arguments)


class CustomCallItem(CallItem):
    """A call of a custom tool, with its one text."""

    type: Literal["custom_tool_call"]
    input: str = ""

    @property
    def call(self) -> ToolCall:
        return ToolCall(self.call_id, self.flat_name, json_text({INPUT: self.input}))


class CallOutputItem(Item):
    """The result of a call."""

    type: Literal["function_call_output", "custom_tool_call_output"]
    call_id: CallId
    output: Content
    name: str | None = None
    """The name of the tool; it has no effect."""
    caller: Any = None
    """Who made the call; it has no effect."""


TypedItem: TypeAlias = (
    MessageItem | ReasoningItem | FunctionCallItem | CustomCallItem | CallOutputItem
)

OWN_CALLS = (
    "function_call",
    "function_call_output",
    "custom_tool_call",
    "custom_tool_call_output",
)


def _with_type(item: object) -> object:
    """
    Add the type of a message to an item with a role, and drop what is null: the SDK dumps all
    fields that it knows.

    Raise `ValueError` for what only another server can answer.
    """
    if not isinstance(item, dict):
        return item
    fields = {
        name: value for name, value in cast("dict[str, Any]", item).items() if value is not None
    }
    kind = str(fields.get("type"))
    if kind.endswith(("_call", "_call_output")) and kind not in OWN_CALLS:
        raise ValueError(f"an item of the type {kind!r}: {FUNCTION_TOOLS_CURE}")
    if kind == "item_reference" or fields.keys() == {"id"}:
        raise ValueError(
            "an item_reference: nothing is stored; send the item itself, as clients do after store:"
            " false"
        )
    return {"type": "message", **fields} if "role" in fields else fields


InputItem: TypeAlias = Annotated[
    Annotated[TypedItem, Field(discriminator="type")], BeforeValidator(_with_type)
]


def conversation(items: Sequence[TypedItem]) -> Iterator[Message]:
    """
    Yield the messages of *items*: the reasoning, the text and the calls of one answer are one
    message.
    """
    thoughts = list[str]()
    texts = list[str]()
    calls = list[ToolCall]()
    for item in (*items, None):
        match item:
            case ReasoningItem():
                thoughts += [part.text for part in item.content or ()]
            case FunctionCallItem() | CustomCallItem():
                calls.append(item.call)
            case MessageItem(role="assistant"):
                if (text := joined_text(item.content)) or texts:
                    texts.append(text)
            case MessageItem() | CallOutputItem() | None:
                if texts or calls:
                    yield Message(
                        "assistant", "\n".join(texts), tuple(calls), reasoning="".join(thoughts)
                    )
                thoughts = []
                texts = []
                calls = []
                if isinstance(item, MessageItem):
                    yield Message(SPEAKERS[item.role], joined_text(item.content))
                elif item is not None:
                    yield Message("tool", joined_text(item.output), call_id=item.call_id)


class Reasoning(Part):
    """The effort of the reasoning. Its text is in the output, whatever *summary* asks for."""

    effort: Effort | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    generate_summary: None = None


class SchemaFormat(NamedSchema):
    """An answer that is JSON and matches a schema, in the form of the Responses API."""

    type: Literal["json_schema"]


TextFormat: TypeAlias = Annotated[PlainText | AnyJson | SchemaFormat, Field(discriminator="type")]


class TextOptions(Part):
    """The form of the answer."""

    format: TextFormat | None = None
    verbosity: Literal["medium"] | None = None


class CustomTool(Part):
    """
    A tool that takes one text. The models see a function with one argument, as vLLM shows it.

    Its *format*, such as a grammar, has no effect.
    """

    type: Literal["custom"]
    name: Name
    description: str | None = None
    format: dict[str, Any] | None = None
    defer_loading: bool | None = None
    """Whether a search has to find the tool first; the models read about every tool."""

    @property
    def tool(self) -> Tool:
        return Tool(self.name, self.description or "", INPUT_SCHEMA)


class NamespaceTool(Part):
    """Tools whose names belong to a namespace."""

    type: Literal["namespace"]
    name: Name
    description: str | None = None
    tools: Annotated[
        list[Annotated[FunctionTool | CustomTool, Field(discriminator="type")]],
        Field(max_length=MAX_TOOLS, fail_fast=True),
    ]


def _client_tool(tool: object) -> object:
    """Refuse the tools that a service would have to run itself."""
    kind = kind_of(tool)
    if kind not in ("function", "custom", "namespace", None):
        raise ValueError(f"a tool of the type {kind!r}: {FUNCTION_TOOLS_CURE}")
    return tool


ClientTool: TypeAlias = Annotated[
    Annotated[FunctionTool | CustomTool | NamespaceTool, Field(discriminator="type")],
    BeforeValidator(_client_tool),
]


class ChosenTool(Part):
    """The tool that the answer has to call."""

    type: Literal["function", "custom"]
    name: Name


@dataclass(frozen=True, slots=True)
class FlatTool:
    """A tool of the client with the namespace that it is in."""

    offered: FunctionTool | CustomTool
    """The tool as the client describes it."""
    namespace: str | None = None
    """The name of its namespace; None if it has none."""

    @property
    def tool(self) -> Tool:
        """What the models read about the tool."""
        name = flat_name(self.namespace, self.offered.name)
        return replace(self.offered.tool, name=name)

    @property
    def call(self) -> dict[str, Any]:
        """The fields of a call of the tool that name it."""
        named = {"name": self.offered.name}
        if self.namespace is not None:
            named["namespace"] = self.namespace
        kind = "custom_tool_call" if isinstance(self.offered, CustomTool) else "function_call"
        return {"type": kind, **named}


class ResponsesStreamOptions(Part):
    """Options of a stream of the Responses API."""

    include_obfuscation: bool | None = None


class ResponsesRequest(OpenaiRequest):
    """The body of a response."""

    input: str | Annotated[Items[InputItem], Field(min_length=1)]
    instructions: str | None = None
    max_output_tokens: Positive | None = None
    reasoning: Reasoning | None = None
    text: TextOptions | None = None
    stream_options: ResponsesStreamOptions | None = None
    stop: Nothing = None  # load generators send it; this API has no stop strings
    client_metadata: dict[str, Any] | None = None  # of Codex, about itself
    tools: Annotated[list[ClientTool], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = None
    tool_choice: Literal["none", "auto", "required"] | ChosenTool | None = None

    # Features that no method has; clients may send the values that turn them off.
    background: Literal[False] | None = None
    store: bool | None = None  # nothing is stored, as by vLLM
    # agents ask always; the text is in the output
    include: Items[Literal["reasoning.encrypted_content"]] | None = None
    truncation: Literal["disabled"] | None = None
    max_tool_calls: None = None

    @property
    def wanted(self) -> Wanted:
        first = (Message("system", self.instructions),) if self.instructions else ()
        text = self.input
        choice = self.tool_choice
        format = self.text.format if self.text else None
        return Wanted(
            (*first, *([Message("user", text)] if isinstance(text, str) else conversation(text))),
            "input",
            tokens=self.max_output_tokens,
            tokens_name="max_output_tokens",
            least=self.min_tokens,
            effort=self.reasoning.effort if self.reasoning else None,
            format=format.rules if isinstance(format, SchemaFormat) else any_json(format),
            tools=tuple([each.tool for each in self.flat_tools]),
            tool_choice=(
                self._chosen(choice.name) if isinstance(choice, ChosenTool) else choice or "auto"
            ),
            tool_named=isinstance(choice, ChosenTool),
            parallel=self.parallel_tool_calls is not False,
        )

    @property
    def flat_tools(self) -> list[FlatTool]:
        """The tools without their namespaces around them."""
        flat: list[FlatTool] = []
        for offered in self.tools or ():
            if isinstance(offered, NamespaceTool):
                flat += [FlatTool(tool, offered.name) for tool in offered.tools]
            else:
                flat.append(FlatTool(offered))
        return flat

    def _chosen(self, name: str) -> str:
        """Return the name, as the models see it, of the tool *name*, which may lack a namespace."""
        flat = self.flat_tools
        local = [each.tool.name for each in flat if each.offered.name == name]
        if len(local) == 1 and name not in [each.tool.name for each in flat]:
            return local[0]
        return name

    @property
    def echo(self) -> dict[str, Any]:
        """The fields of a response that repeat the request."""
        format = self.text.format if self.text else None
        choice = self.tool_choice
        return {
            "instructions": self.instructions,
            "max_output_tokens": self.max_output_tokens,
            "metadata": self.metadata or {},
            "model": self.model,
            "parallel_tool_calls": self.parallel_tool_calls is not False,
            "previous_response_id": None,
            "reasoning": {
                "effort": self.reasoning.effort if self.reasoning else None,
                "summary": None,
            },
            "store": False,
            "text": {
                "format": (
                    format.model_dump(by_alias=True, exclude={"cache_control"})
                    if format
                    else {"type": "text"}
                )
            },
            "tool_choice": (
                choice.model_dump(exclude={"cache_control"})
                if isinstance(choice, ChosenTool)
                else choice or ("auto" if self.tools else "none")
            ),
            "tools": [
                {"strict": None} | tool.model_dump(exclude_none=True, exclude={"cache_control"})
                for tool in self.tools or ()
            ],
            "truncation": "disabled",
            "user": self.user,
        }


class ResponseEvents:
    """The numbered events of one stream, and the output *items* that they build."""

    def __init__(self, request_id: str, tools: Sequence[FlatTool] = ()) -> None:
        self._number = 0
        self._request_id = request_id
        self._tools = {each.tool.name: each for each in tools}
        self.items: list[dict[str, Any]] = []
        self._texts: list[str] = []
        self._call = -1  # the index of the open call
        self.lost: dict[str, Any] | None = None
        """A call that was cut off before its arguments were complete; None if there is none."""

    def event(self, kind: str, **fields: Any) -> bytes:
        self._number += 1
        return deltas.named_event(kind, sequence_number=self._number - 1, **fields)

    def add(self, delta: Delta) -> bytes:
        """Add *delta* to the open item, or to new ones; return the events."""
        events = b"".join(map(self._add_call, delta.ended))
        for name, text in delta.fields.items():
            kind = "reasoning" if name == "reasoning" else "message"
            if not self.items or self.items[-1]["type"] != kind:
                events += self.close() + self._open(kind)
            self._texts.append(text)
            step = {"stepspec": delta.step} if delta.step else {}
            events += self._text_event("delta", delta=text, **step)
        return events + b"".join(map(self._add_call, delta.calls))

    def _add_call(self, piece: Calling) -> bytes:
        events = b""
        if not self._in_call or piece.index != self._call:
            events = self.close() + self._open_call(piece)
        if not piece.arguments:
            return events
        self._texts.append(piece.arguments)
        if self.items[-1]["type"] == "custom_tool_call":  # its text is known at the end
            return events
        return events + self.event(
            "response.function_call_arguments.delta", **self._place, delta=piece.arguments
        )

    @property
    def _in_call(self) -> bool:
        return bool(self.items) and self.items[-1]["type"].endswith("_call")

    def _open_call(self, piece: Calling) -> bytes:
        self._call = piece.index
        known = self._tools.get(piece.name)
        named = known.call if known else {"type": "function_call", "name": piece.name}
        custom = named["type"] == "custom_tool_call"
        item = {
            "id": f"{'ctc' if custom else 'fc'}_{self._request_id}_{piece.index}",
            "status": "in_progress",
            "call_id": piece.id,
            **named,
            INPUT if custom else "arguments": "",
        }
        self.items.append(item)
        return self._item_event("added")

    def close(self, status: str = "completed") -> bytes:
        """End the open item, if there is one, with this *status*; return the events."""
        if not self.items or self.items[-1]["status"] != "in_progress":
            return b""
        text = "".join(self._texts)
        item = self.items[-1]
        self._texts.clear()
        item["status"] = status
        if self._in_call and status != "completed" and not is_json(text):
            self.lost = item
        if item["type"] == "function_call":
            item["arguments"] = text
            ended = self.event(
                "response.function_call_arguments.done",
                **self._place,
                name=item["name"],
                arguments=text,
            )
        elif item["type"] == "custom_tool_call":
            item[INPUT] = custom_input(text)
            ended = self.event(
                "response.custom_tool_call_input.delta", **self._place, delta=item[INPUT]
            ) + self.event("response.custom_tool_call_input.done", **self._place, input=item[INPUT])
        else:
            item["content"] = [_part(item["type"], text)]
            ended = self._text_event("done", text=text) + self._part_event(
                "done", item["content"][0]
            )
        return ended + self._item_event("done")

    def _open(self, kind: str) -> bytes:
        place = f"{self._request_id}_{len(self.items)}"  # text may go on after a call
        item: dict[str, Any] = {
            "id": f"{'rs' if kind == 'reasoning' else 'msg'}_{place}",
            "type": kind,
        }
        more: dict[str, Any] = {"summary": []} if kind == "reasoning" else {"role": "assistant"}
        self.items.append(item | more | {"content": [], "status": "in_progress"})
        return self._item_event("added") + self._part_event("added", _part(kind, ""))

    @property
    def _place(self) -> dict[str, Any]:
        return {"item_id": self.items[-1]["id"], "output_index": len(self.items) - 1}

    def _item_event(self, stage: str) -> bytes:
        return self.event(
            f"response.output_item.{stage}", output_index=len(self.items) - 1, item=self.items[-1]
        )

    def _part_event(self, stage: str, part: Mapping[str, Any]) -> bytes:
        return self.event(
            f"response.content_part.{stage}", **self._place, content_index=0, part=part
        )

    def _text_event(self, stage: str, **fields: Any) -> bytes:
        if self.items[-1]["type"] == "reasoning":
            return self.event(
                f"response.reasoning_text.{stage}", **self._place, content_index=0, **fields
            )
        return self.event(
            f"response.output_text.{stage}", **self._place, content_index=0, logprobs=[], **fields
        )


def custom_input(arguments: str) -> str:
    """Return the text of a call of a custom tool, whose *arguments* a model wrote."""
    try:
        read = read_json(arguments)
    except ValueError:
        return arguments
    text = cast("dict[str, Any]", read).get(INPUT) if isinstance(read, dict) else None
    return text if isinstance(text, str) else arguments


def _part(kind: str, text: str) -> dict[str, Any]:
    if kind == "reasoning":
        return {"type": "reasoning_text", "text": text}
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


class ResponsesReply:
    """Writes the one run of *runs* as a response. A `ReplyFormat`."""

    keep_alive = deltas.KEEP_ALIVE
    starts_at = PROGRESS_EVENTS

    def __init__(
        self, runs: RequestRuns, request: ServiceRequest, body: ResponsesRequest, thinking: Thinking
    ) -> None:
        self._runs = runs
        self._request = body
        (self._run_request,) = runs.run_requests
        self._builder = DeltaBuilder(deltas.one_field(thinking))
        self._id = request.id
        self._created = int(time.time())
        self._events = ResponseEvents(request.id, body.flat_tools)

    async def opening(self) -> bytes:
        kinds = ("response.created", "response.in_progress")
        return b"".join(
            self._events.event(kind, response=self._response("in_progress")) for kind in kinds
        )

    def render(self, item: RunItem) -> bytes:
        return self._events.add(self._builder.add(item))

    async def closing(self) -> bytes:
        events = self._events.close(self._status)
        response = await self._ended()
        return events + self._events.event(f"response.{self._status}", response=response)

    def failed(self, error: ApiError, body: bytes) -> bytes:
        events = self._events.close("incomplete")
        response = self._response("failed") | {
            "error": deltas.response_error(error.status, error.message)
        }
        return events + self._events.event("response.failed", response=response)

    async def body(self) -> dict[str, Any]:
        self._events.close(self._status)
        items = self._events.items
        items[:] = [each for each in items if each is not self._events.lost]
        return await self._ended()

    @property
    def _solution(self) -> Solution:
        return self._runs.solutions[0]

    @property
    def _status(self) -> str:
        return "incomplete" if deltas.finish_reason(self._solution) == "length" else "completed"

    async def _ended(self) -> dict[str, Any]:
        status = self._status
        used = await self._runs.usage()
        details = {"reason": "max_output_tokens"} if status == "incomplete" else None
        ended = {"usage": _usage(used), "incomplete_details": details}
        return self._response(status) | ended | self._runs.extension([0])

    def _response(self, status: str) -> dict[str, Any]:
        sampling = self._run_request.run.sampling
        return self._request.echo | {
            "id": f"resp_{self._id}",
            "object": "response",
            "created_at": self._created,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "output": self._events.items,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "usage": None,
        }


def _usage(usage: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "input_tokens": usage["prompt_tokens"],
        "input_tokens_details": {**usage["prompt_tokens_details"], "cache_write_tokens": 0},
        "output_tokens": usage["completion_tokens"],
        "output_tokens_details": usage["completion_tokens_details"],
        "total_tokens": usage["total_tokens"],
    }
