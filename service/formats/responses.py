"""
OpenAI's Responses API: the schema of a request, and the reply as items and numbered events.

The reasoning is the first item of the reply, and the message is the next item. In a stream, each
verified step is an event of the reasoning, with the field ``stepspec``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Any, Literal, TypeAlias, cast

from pydantic import BeforeValidator, Field

from stepspec.orchestrator.chain import Message, Tool, ToolCall, Toolset
from stepspec.orchestrator.json_values import json_text, read_json

from ..errors import ApiError
from ..json_types import JsonFields, JsonObject
from . import deltas
from .reply_format import ApiReply, MessagePart, MessageParts, PartKind
from .schemas import (
    Arguments,
    CallId,
    Content,
    Effort,
    Function,
    Items,
    Name,
    Nothing,
    Offered,
    OpenaiRequest,
    Part,
    PlainFormat,
    Positive,
    SchemaFormat,
    Text,
    Verbosity,
    Wanted,
    accepting,
    joined_text,
    merged,
    spoken,
    system_text,
)

INPUT = "input"
"""
The name of the only argument of a custom tool, as the models see it. A custom tool takes one text,
and the models see it as a function.
"""
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
"""The JSON schema of the arguments of a custom tool, as the models see it."""


def flat_name(namespace: str | None, name: str) -> str:
    """Return the name of a tool with its *namespace*, as vLLM shows the name to the models."""
    return name if namespace is None else f"{namespace}__{name}"


@accepting("id", "status")  # of an item of an earlier answer
class Item(Part):
    """An item of the conversation."""


@accepting("phase")  # of an earlier answer
class MessageItem(Item):
    """A message of the conversation."""

    type: Literal["message"] = "message"
    """The kind of the item."""
    role: Literal["system", "developer", "user", "assistant"]
    """Who speaks."""
    content: Content
    """The text, or its parts."""


class ReasoningPart(Part):
    """A part of the reasoning of an earlier answer."""

    type: Literal["reasoning_text"]
    """The kind of the part."""
    text: Text
    """The text of the part."""


@accepting("summary", "encrypted_content")  # further forms of the reasoning
class ReasoningItem(Item):
    """The reasoning of an earlier answer. The chat template decides whether models read this."""

    type: Literal["reasoning"]
    """The kind of the item."""
    content: Items[ReasoningPart] = Field([])
    """The reasoning. It is empty if the client sent only forms that the models do not read."""


@accepting(
    "async",  # whether the model goes on before it has the result of the call
    "caller",  # who made the call
    "parsed_arguments",  # OpenAI's SDK adds the value that it parsed from the arguments
)
class CallItem(Item):
    """A call of a function or of a custom tool in an earlier answer."""

    type: Literal["function_call", "custom_tool_call"]
    """The kind of the item."""
    call_id: CallId
    """The id of the call. The result of the call has the same id."""
    name: Text
    """The name of the tool. Models sometimes call tools that do not exist."""
    namespace: Text | None = None
    """The namespace of the tool. None: the tool is in no namespace."""
    arguments: Arguments = "{}"
    """The arguments of a function, as the text of a JSON object."""
    input: Text = ""
    """The text that a custom tool takes."""

    @property
    def call(self) -> ToolCall:
        arguments = self.arguments
        if self.type == "custom_tool_call":
            arguments = json_text({INPUT: self.input})
        return ToolCall(self.call_id, flat_name(self.namespace, self.name), arguments)


@accepting("name", "namespace", "caller")  # of the call
class CallOutputItem(Item):
    """The result of a call."""

    type: Literal["function_call_output", "custom_tool_call_output"]
    """The kind of the item."""
    call_id: CallId
    """The id of the call."""
    output: Content
    """The result."""


def _with_type(item: object) -> object:
    """Return *item* with its type. An item with a role is a message."""
    if not isinstance(item, dict):
        return item
    fields = cast("JsonObject", item)
    if fields.get("type") is None and "role" in fields:
        return {**fields, "type": "message"}
    if fields.keys() == {"id"}:
        return {**fields, "type": "item_reference"}
    return fields


InputItem: TypeAlias = Annotated[
    MessageItem | ReasoningItem | CallItem | CallOutputItem,
    Field(discriminator="type"),
    BeforeValidator(_with_type),
]


def message_of(item: InputItem) -> Message:
    """Turn *item* into a message. Several items can belong to one message."""
    match item:
        case MessageItem():
            return spoken(item.role, item.content)
        case ReasoningItem(content=content):
            return Message("assistant", "", reasoning="".join([part.text for part in content]))
        case CallItem(call=call):
            return Message("assistant", "", (call,))
        case CallOutputItem():
            return Message("tool", joined_text(item.output), call_id=item.call_id)


@accepting(
    "context",  # how much earlier reasoning the models read: the chat template decides
    "generate_summary",  # the older name of the field summary
    "mode",
    "summary",  # the length of a summary: the output has the full reasoning instead
)
class Reasoning(Part):
    """How the answer thinks."""

    effort: Effort | None = None
    """The effort of the reasoning. None: the whole budget."""


class TextOptions(Part):
    """The form of the answer."""

    format: Annotated[PlainFormat | SchemaFormat, Field(discriminator="type")] = PlainFormat(
        type="text"
    )
    """The form."""
    verbosity: Verbosity = None
    """A hint about the length, without effect."""


@accepting(
    "format",  # the form of the text of a custom tool, such as a grammar
    "allowed_callers",  # this and the fields below concern OpenAI's own server
    "async",
    "output_schema",
)
class ClientTool(Function):
    """
    A tool that the answer may call. The client runs it.

    A custom tool takes one text. The models see a function with one argument, as in vLLM.
    """

    type: Literal["function", "custom"]
    """The kind of the tool."""

    def within(self, namespace: str | None) -> FlatTool:
        """Return the tool with the name that it has in a *namespace*. None: in no namespace."""
        tool = replace(self.tool, name=flat_name(namespace, self.name))
        call_fields = {"type": "function_call", "name": self.name}
        if namespace is not None:
            call_fields["namespace"] = namespace
        if self.type == "custom":
            tool = replace(tool, description=tool.description or "", parameters=INPUT_SCHEMA)
            call_fields["type"] = "custom_tool_call"
        return FlatTool(tool, call_fields)


class NamespaceTool(Part):
    """Tools whose names belong to a namespace."""

    type: Literal["namespace"]
    """The kind of the tool."""
    name: Name
    """The name of the namespace."""
    description: str | None = None
    """What the tools are for. The models do not read this."""
    tools: Offered[ClientTool]
    """The tools."""


Included: TypeAlias = Literal[
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    "reasoning.encrypted_content",
    "web_search_call.action.sources",
    "web_search_call.results",
]


class ChosenTool(Part):
    """The tool that the answer has to call."""

    type: Literal["function", "custom"]
    """The kind of the tool."""
    name: Name
    """The name of the tool."""


def _only_thinks(message: Message) -> bool:
    """Return whether *message* is an answer with neither a text nor a call."""
    return message.role == "assistant" and not (message.content or message.calls)


REPEATED = {
    "instructions",
    "max_output_tokens",
    "metadata",
    "model",
    "parallel_tool_calls",
    "reasoning",
    "text",
    "tool_choice",
    "tools",
    "user",
}
"""The fields of a request that the response repeats."""


@dataclass(frozen=True, slots=True)
class FlatTool:
    """A tool with the name of its namespace. The models see one flat list of tools."""

    tool: Tool
    """The tool as the models see it."""
    call_fields: JsonObject
    """The fields of a call that tell the client which tool is called."""


@accepting(
    "client_metadata",  # what Codex says about itself
    "max_tool_calls",  # of tools that a server runs
    "store",  # as in vLLM, nothing is stored
    "stream_options",  # whether events have a field of random length
)
class ResponsesRequest(OpenaiRequest):
    """The body of a request for a response. None: the field was left out."""

    input: Text | Annotated[Items[InputItem], Field(min_length=1)]
    """The text of the user, or the items of the conversation."""
    instructions: Text | None = None
    """Instructions before the conversation."""
    max_output_tokens: Positive | None = None
    """The most tokens of the thinking and the answer together."""
    reasoning: Reasoning = Reasoning()
    """How the answer thinks."""
    text: TextOptions = TextOptions()
    """The form of the answer."""
    stop: Nothing = None
    """Always None, because this API has no stop strings. Load generators send null."""
    tools: Offered[Annotated[ClientTool | NamespaceTool, Field(discriminator="type")]] = Field([])
    """The tools that the answer may call."""
    tool_choice: Literal["none", "auto", "required"] | ChosenTool = "auto"
    """Whether the answer calls tools."""
    include: Items[Included] | None = None
    """
    Further fields that the client wants in the output. This has no effect: the output always has
    the reasoning, and never has anything about tools that a server runs. Agents send this field in
    every request.
    """

    @property
    def wanted(self) -> Wanted:
        messages: list[Message] = []
        if self.instructions:
            messages.append(Message("system", system_text([self.instructions])))
        if isinstance(self.input, str):
            messages.append(Message("user", self.input))
        else:
            messages.extend(merged(map(message_of, self.input), "assistant"))
        choice = self.tool_choice
        return Wanted(
            tuple([message for message in messages if not _only_thinks(message)]),
            "input",
            tokens=self.max_output_tokens,
            effort=self.reasoning.effort,
            format=self.text.format.wanted_format,
            tools=Toolset(
                tuple([flat.tool for flat in self.flat_tools]),
                self._chosen(choice.name) if isinstance(choice, ChosenTool) else choice,
                self.parallel_tool_calls,
                named=isinstance(choice, ChosenTool),
                live=self.stream,
            ),
        )

    @property
    def flat_tools(self) -> list[FlatTool]:
        """All tools, also those in namespaces, as one list."""
        flat: list[FlatTool] = []
        for offered in self.tools:
            if isinstance(offered, NamespaceTool):
                flat += [tool.within(offered.name) for tool in offered.tools]
            else:
                flat.append(offered.within(None))
        return flat

    def _chosen(self, name: str) -> str:
        """
        Return the full name of the tool called *name*: the name with the namespace.

        The client may leave out the namespace if no other tool has the same name in another
        namespace.
        """
        full_names = [flat.tool.name for flat in self.flat_tools]
        matches = [flat.tool.name for flat in self.flat_tools if flat.call_fields["name"] == name]
        if name in full_names or len(matches) != 1:
            return name
        return matches[0]

    @property
    def echo(self) -> JsonObject:
        """The fields of a response that repeat the request."""
        return self.model_dump(include=REPEATED, by_alias=True) | {
            "previous_response_id": None,
            "store": False,
            "truncation": "disabled",
        }


TEXT_EVENTS: Mapping[PartKind, tuple[str, JsonObject]] = {
    "thinking": ("reasoning_text", {"content_index": 0}),
    "text": ("output_text", {"content_index": 0, "logprobs": []}),
    "call": ("function_call_arguments", {}),
}
"""For each kind of a part: the prefix of its text events, and the fields that all of them have."""


ITEM_PREFIXES = {
    "reasoning": "rs",
    "message": "msg",
    "function_call": "fc",
    "custom_tool_call": "ctc",
}
"""The beginning of an item's id, by the type of the item."""


class ResponseEvents(MessageParts):
    """The output items of one response, and the numbered events of a stream that build them."""

    def __init__(self, request_id: str, tools: Sequence[FlatTool] = ()) -> None:
        super().__init__()
        self._request_id = request_id
        self._call_fields = {flat.tool.name: flat.call_fields for flat in tools}
        self._events = 0

    def event(self, kind: str, **fields: Any) -> bytes:
        """Return the next event of the stream."""
        number = self._events
        self._events += 1
        return deltas.named_event(f"response.{kind}", sequence_number=number, **fields)

    def output(self, *, cut: bool = False) -> list[JsonObject]:
        """Return the output of a response. *cut*: the answer was cut off."""
        return [self._item(part) for part in self.kept(cut=cut)]

    def _opened(self, part: MessagePart) -> bytes:
        events = self._item_event("added", part)
        if part.kind == "call":
            return events
        return events + self._event_in_item(
            part, "content_part.added", content_index=0, part=_content(part)
        )

    def _extended(self, part: MessagePart, text: str, step_fields: JsonFields) -> bytes:
        # the text for a custom tool is known only when the JSON of the call is complete
        if self._is_custom(part):
            return b""
        name, fields = TEXT_EVENTS[part.kind]
        return self._event_in_item(part, f"{name}.delta", delta=text, **fields, **step_fields)

    def _closed(self, part: MessagePart) -> bytes:
        name, fields = TEXT_EVENTS[part.kind]
        if self._is_custom(part):
            text = custom_input(part.text)
            events = self._event_in_item(part, "custom_tool_call_input.delta", delta=text)
            events += self._event_in_item(part, "custom_tool_call_input.done", input=text)
        elif part.kind == "call":
            tool = self._item(part)["name"]
            events = self._event_in_item(part, f"{name}.done", name=tool, arguments=part.text)
        else:
            events = self._event_in_item(part, f"{name}.done", text=part.text, **fields)
            events += self._event_in_item(
                part, "content_part.done", content_index=0, part=_content(part)
            )
        return events + self._item_event("done", part)

    def _item_event(self, stage: str, part: MessagePart) -> bytes:
        """Return the event which reports that an item was added or is done (*stage*)."""
        item = self._item(part)
        return self.event(f"output_item.{stage}", output_index=part.index, item=item)

    def _event_in_item(self, part: MessagePart, kind: str, /, **fields: Any) -> bytes:
        """Return an event about the content of an item."""
        item_id = self._item(part)["id"]
        return self.event(kind, item_id=item_id, output_index=part.index, **fields)

    def _is_custom(self, part: MessagePart) -> bool:
        """Return whether *part* is a call of a custom tool."""
        kind: str = self._item_fields(part)["type"]
        return kind == "custom_tool_call"

    def _item(self, part: MessagePart) -> JsonObject:
        """Return the item of *part*."""
        fields = self._item_fields(part)
        prefix = ITEM_PREFIXES[fields["type"]]
        item_id = f"{prefix}_{self._request_id}_{part.index}"
        return {"id": item_id, **fields, "status": part.status}

    def _item_fields(self, part: MessagePart) -> JsonObject:
        """
        Return the fields of the item that depend on the kind of *part*.

        An item that is not complete has no content.
        """
        is_open = part.status == "in_progress"
        content = [] if is_open else [_content(part)]
        if part.kind == "thinking":
            return {"type": "reasoning", "summary": [], "content": content}
        if part.kind == "text":
            return {"type": "message", "role": "assistant", "content": content}
        arguments = "" if is_open else part.text
        unknown = {"type": "function_call", "name": part.call.name}
        named = self._call_fields.get(part.call.name, unknown)
        if named["type"] == "custom_tool_call":
            return {**named, "call_id": part.call.id, INPUT: custom_input(arguments)}
        return {**named, "call_id": part.call.id, "arguments": arguments}


def custom_input(arguments: str) -> str:
    """
    Return the text in the *arguments* that a model wrote for a custom tool.

    Return *arguments* unchanged if they are not the expected JSON.
    """
    try:
        text: object = read_json(arguments)[INPUT]
    except (ValueError, TypeError, KeyError):
        return arguments
    return text if isinstance(text, str) else arguments


def _content(part: MessagePart) -> JsonObject:
    """Return the content of an item that is no call. The content has only one part."""
    if part.kind == "thinking":
        return {"type": "reasoning_text", "text": part.text}
    return {"type": "output_text", "text": part.text, "annotations": [], "logprobs": []}


class ResponsesReply(ApiReply[ResponsesRequest]):
    """The `ReplyFormat` of the Responses API. A request has one run."""

    @cached_property
    def _events(self) -> ResponseEvents:
        """The output so far."""
        return ResponseEvents(self._request_id, self._body.flat_tools)

    async def opening(self) -> bytes:
        response = self._response("in_progress")
        created = self._events.event("created", response=response)
        return created + self._events.event("in_progress", response=response)

    def _render_delta(self, choice: int, delta: deltas.Delta) -> bytes:
        return self._events.add(delta)

    async def closing(self) -> bytes:
        events = self._events.close(self._status)
        response = await self._final_response()
        return events + self._events.event(self._status, response=response)

    def failed(self, error: ApiError, body: bytes) -> bytes:
        events = self._events.close("incomplete")
        reason = deltas.response_error(error.status, error.message)
        response = self._response("failed") | {"error": reason}
        return events + self._events.event("failed", response=response)

    async def body(self) -> JsonObject:
        self._events.close(self._status)
        output = self._events.output(cut=self._status == "incomplete")
        return await self._final_response() | {"output": output}

    @property
    def _status(self) -> str:
        return "incomplete" if deltas.finish_reason(self._solution) == "length" else "completed"

    async def _final_response(self) -> JsonObject:
        response = self._response(self._status)
        response["usage"] = _usage(await self._runs.usage())
        if self._status == "incomplete":
            response["incomplete_details"] = {"reason": "max_output_tokens"}
        return response | self._runs.extension(0)

    def _response(self, status: str) -> JsonObject:
        (run_request,) = self._runs.run_requests
        sampling = run_request.run.sampling
        return self._body.echo | {
            "id": f"resp_{self._request_id}",
            "object": "response",
            "created_at": self._created,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "output": self._events.output(),
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "usage": None,
        }


def _usage(usage: JsonFields) -> JsonObject:
    """Convert *usage* from the form of a chat completion to the form of a response."""
    return {
        "input_tokens": usage["prompt_tokens"],
        "input_tokens_details": {**usage["prompt_tokens_details"], "cache_write_tokens": 0},
        "output_tokens": usage["completion_tokens"],
        "output_tokens_details": usage["completion_tokens_details"],
        "total_tokens": usage["total_tokens"],
    }
