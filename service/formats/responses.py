"""
OpenAI's Responses API: the schema of a request, and the reply as items and numbered events.

The reasoning is the first item of the reply, and the message is the next item. In a stream, each
verified step is an event of the reasoning, with the field ``stepspec``.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import dropwhile, groupby
from typing import Annotated, Any, Literal, TypeAlias, cast

from pydantic import BeforeValidator, Field

from stepspec.orchestrator.chain import Message, Tool, ToolCall
from stepspec.orchestrator.events import Calling
from stepspec.orchestrator.json_values import is_json, json_text, read_json

from ..errors import ApiError
from ..json_types import JsonFields, JsonObject
from ..records import ServiceRequest
from ..settings import Thinking
from . import deltas
from .reply_format import MessageParts, RequestRuns, RunItem, SingleReply
from .schemas import (
    FUNCTION_TOOLS_HINT,
    OPENAI_SERVER_FIELDS,
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
    Offered,
    OpenaiRequest,
    Part,
    PlainText,
    Positive,
    Verbosity,
    Wanted,
    accepting,
    joined_text,
    refusing_others,
    spoken,
    system_text,
)

INPUT = "input"
"""
The name of an argument. A custom tool takes one text. The models see a custom tool as a function
whose only argument has this name.
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
    text: str
    """The text of the part."""


@accepting("summary", "encrypted_content")  # further forms of the reasoning
class ReasoningItem(Item):
    """The reasoning of an earlier answer. The chat template decides whether models read this."""

    type: Literal["reasoning"]
    """The kind of the item."""
    content: Items[ReasoningPart] | None = None
    """The reasoning. None: the client sent only forms that the models do not read."""

    @property
    def text(self) -> str:
        return joined_text(self.content or "", separator="")


@accepting(
    "async",  # whether the answer went on before the result
    "caller",  # who made the call
)
class CallItem(Item):
    """A call of a tool in an earlier answer."""

    call_id: CallId
    """The id of the call. The result of the call has the same id."""
    name: str
    """The name of the tool. Models sometimes call tools that do not exist."""
    namespace: str | None = None
    """The namespace of the tool. None: the tool is in no namespace."""

    @property
    def flat_name(self) -> str:
        return flat_name(self.namespace, self.name)


@accepting("parsed_arguments")  # OpenAI's SDK adds the value that it parsed from the arguments
class FunctionCallItem(CallItem):
    """A call of a function."""

    type: Literal["function_call"]
    """The kind of the item."""
    arguments: Arguments = "{}"
    """The arguments, as the text of a JSON object."""

    @property
    def call(self) -> ToolCall:
        return ToolCall(self.call_id, self.flat_name, self.arguments)


class CustomCallItem(CallItem):
    """A call of a custom tool."""

    type: Literal["custom_tool_call"]
    """The kind of the item."""
    input: str = ""
    """The text that the tool takes."""

    @property
    def call(self) -> ToolCall:
        return ToolCall(self.call_id, self.flat_name, json_text({INPUT: self.input}))


@accepting("name", "namespace", "caller")  # of the call
class CallOutputItem(Item):
    """The result of a call."""

    type: Literal["function_call_output", "custom_tool_call_output"]
    """The kind of the item."""
    call_id: CallId
    """The id of the call."""
    output: Content
    """The result."""


TypedItem: TypeAlias = (
    MessageItem | ReasoningItem | FunctionCallItem | CustomCallItem | CallOutputItem
)
CALL_ITEMS = (
    "function_call",
    "function_call_output",
    "custom_tool_call",
    "custom_tool_call_output",
)
"""The types of items about tools that the client runs."""


def _with_type(item: object) -> object:
    """
    Return *item* with its type. An item with a role is a message.

    Fields that are null are dropped, because OpenAI's SDK sends every field that it knows. Raise
    `ValueError` for items about tools that a server runs, and for references to stored items.
    """
    if not isinstance(item, dict):
        return item
    all_fields = cast("JsonObject", item)
    fields = {name: value for name, value in all_fields.items() if value is not None}
    kind = str(fields.get("type"))
    if kind.endswith(("_call", "_call_output")) and kind not in CALL_ITEMS:
        raise ValueError(f"an item of the type {kind!r}: {FUNCTION_TOOLS_HINT}")
    if kind == "item_reference" or fields.keys() == {"id"}:
        raise ValueError(
            "an item_reference: the service stores no items; send the whole item in place of its"
            " id, as clients do if store is false"
        )
    if "role" in fields:
        fields.setdefault("type", "message")
    return fields


InputItem: TypeAlias = Annotated[
    TypedItem,
    Field(discriminator="type"),
    BeforeValidator(_with_type),
]


def _in_answer(item: TypedItem) -> bool:
    """Return whether *item* is a part of an earlier answer."""
    if isinstance(item, CallOutputItem):
        return False
    return not isinstance(item, MessageItem) or item.role == "assistant"


def _answer(items: Sequence[TypedItem]) -> Message:
    """Return one message with all *items*, which are the parts of one answer."""
    texts = [joined_text(item.content) for item in items if isinstance(item, MessageItem)]
    thoughts = [item.text for item in items if isinstance(item, ReasoningItem)]
    calls = [item.call for item in items if isinstance(item, FunctionCallItem | CustomCallItem)]
    # clients send an empty text before calls: drop the empty texts at the beginning
    content = "\n".join(dropwhile(lambda text: not text, texts))
    return Message("assistant", content, tuple(calls), reasoning="".join(thoughts))


def conversation(items: Sequence[TypedItem]) -> Iterator[Message]:
    """
    Yield *items* as messages.

    Consecutive items of an answer (reasoning, texts, calls) make one message. A message with
    neither a text nor a call is dropped.
    """
    for in_answer, group in groupby(items, _in_answer):
        if in_answer:
            answer = _answer([*group])
            if answer.content or answer.calls:
                yield answer
            continue
        for item in group:
            if isinstance(item, CallOutputItem):
                yield Message("tool", joined_text(item.output), call_id=item.call_id)
            elif isinstance(item, MessageItem):
                yield Message(*spoken(item.role, item.content))


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


class SchemaFormat(NamedSchema):
    """An answer that is JSON and matches a schema, as the Responses API describes it."""

    type: Literal["json_schema"]
    """The kind of the format."""


class TextOptions(Part):
    """The form of the answer."""

    format: Annotated[PlainText | AnyJson | SchemaFormat, Field(discriminator="type")] = PlainText(
        type="text"
    )
    """The form."""
    verbosity: Verbosity = None
    """A hint about the length, without effect."""


@accepting(
    "format",  # the form of the text, such as a grammar
    "defer_loading",  # whether the model has to search for the tool: here the model reads all tools
    *OPENAI_SERVER_FIELDS,
)
class CustomTool(Part):
    """A tool that takes one text. The models see a function with one argument, as in vLLM."""

    type: Literal["custom"]
    """The kind of the tool."""
    name: Name
    """The name of the tool."""
    description: str | None = None
    """What the tool does."""

    @property
    def tool(self) -> Tool:
        return Tool(self.name, self.description or "", INPUT_SCHEMA)


@accepting("description")
class NamespaceTool(Part):
    """Tools whose names belong to a namespace."""

    type: Literal["namespace"]
    """The kind of the tool."""
    name: Name
    """The name of the namespace."""
    tools: Offered[Annotated[FunctionTool | CustomTool, Field(discriminator="type")]]
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


ClientTool: TypeAlias = Annotated[
    FunctionTool | CustomTool | NamespaceTool,
    Field(discriminator="type"),
    refusing_others("tool", "function", "custom", "namespace", hint=FUNCTION_TOOLS_HINT),
]


class ChosenTool(Part):
    """The tool that the answer has to call."""

    type: Literal["function", "custom"]
    """The kind of the tool."""
    name: Name
    """The name of the tool."""


class ChosenTools(Part):
    """A choice that allows only some of the tools."""

    type: Literal["allowed_tools"]
    """The kind of the choice."""
    mode: Literal["auto", "required"]
    """Whether the answer may ("auto") or has to ("required") call one of these tools."""
    tools: Offered[ChosenTool]
    """The only tools that the answer may call."""


REPEATED = {
    "instructions",
    "max_output_tokens",
    "metadata",
    "model",
    "parallel_tool_calls",
    "user",
}
"""The fields of a request that the response repeats unchanged."""


@dataclass(frozen=True, slots=True)
class FlatTool:
    """A tool with the name of its namespace. The models see one flat list of tools."""

    offered: FunctionTool | CustomTool
    """The tool as the client describes it."""
    namespace: str | None = None
    """The name of the namespace. None: the tool is in no namespace."""

    @property
    def tool(self) -> Tool:
        """The tool as the models see it."""
        return replace(self.offered.tool, name=flat_name(self.namespace, self.offered.name))

    @property
    def naming_fields(self) -> JsonObject:
        """The fields of a call that name the tool."""
        kind = "custom_tool_call" if isinstance(self.offered, CustomTool) else "function_call"
        named = {"type": kind, "name": self.offered.name}
        if self.namespace is not None:
            named["namespace"] = self.namespace
        return named


@accepting(
    "client_metadata",  # what Codex says about itself
    "max_tool_calls",  # of tools that a server runs
    "store",  # as in vLLM, nothing is stored
    "stream_options",  # whether events have a field of random length
)
class ResponsesRequest(OpenaiRequest):
    """The body of a request for a response. None: the field was left out."""

    input: str | Annotated[Items[InputItem], Field(min_length=1)]
    """The text of the user, or the items of the conversation."""
    instructions: str | None = None
    """Instructions before the conversation."""
    max_output_tokens: Positive | None = None
    """The most tokens of the thinking and the answer together."""
    reasoning: Reasoning = Reasoning()
    """How the answer thinks."""
    text: TextOptions = TextOptions()
    """The form of the answer."""
    stop: Nothing = None
    """Always None, because this API has no stop strings. Load generators send null."""
    tools: Offered[ClientTool] = Field([])
    """The tools that the answer may call."""
    tool_choice: Literal["none", "auto", "required"] | ChosenTool | ChosenTools | None = None
    """Whether the answer calls tools. None: the model decides."""
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
            messages.extend(conversation(self.input))
        choice = self.tool_choice
        tool_choice = "auto"
        allowed: tuple[str, ...] = ()
        if isinstance(choice, ChosenTools):
            tool_choice = choice.mode
            allowed = tuple([self._chosen(tool.name) for tool in choice.tools])
        elif isinstance(choice, ChosenTool):
            tool_choice = self._chosen(choice.name)
        elif choice is not None:
            tool_choice = choice
        return Wanted(
            tuple(messages),
            "input",
            tokens=self.max_output_tokens,
            tokens_name="max_output_tokens",
            min_tokens=self.min_tokens,
            effort=self.reasoning.effort,
            format=self.text.format.wanted_format,
            tools=tuple([flat.tool for flat in self.flat_tools]),
            tool_choice=tool_choice,
            tool_named=isinstance(choice, ChosenTool),
            allowed=allowed,
            parallel=self.parallel_tool_calls,
        )

    @property
    def flat_tools(self) -> list[FlatTool]:
        """All tools, also those in namespaces, as one list."""
        flat: list[FlatTool] = []
        for offered in self.tools:
            if isinstance(offered, NamespaceTool):
                flat += [FlatTool(tool, offered.name) for tool in offered.tools]
            else:
                flat.append(FlatTool(offered))
        return flat

    def _chosen(self, name: str) -> str:
        """
        Return the full name of the tool called *name*: the name with the namespace.

        The client may leave out the namespace if no other tool has the same name in another
        namespace.
        """
        full_names = [flat.tool.name for flat in self.flat_tools]
        matches = [flat.tool.name for flat in self.flat_tools if flat.offered.name == name]
        if name in full_names or len(matches) != 1:
            return name
        return matches[0]

    @property
    def echo(self) -> JsonObject:
        """The fields of a response that repeat the request."""
        choice: object = self.tool_choice or ("auto" if self.tools else "none")
        if isinstance(choice, Part):
            choice = choice.model_dump(exclude_none=True)
        format = self.text.format
        return self.model_dump(include=REPEATED) | {
            "previous_response_id": None,
            "reasoning": {"effort": self.reasoning.effort, "summary": None},
            "store": False,
            "text": {"format": format.model_dump(by_alias=True, exclude={"cache_control"})},
            "tool_choice": choice,
            "tools": [
                {"strict": None} | tool.model_dump(exclude_none=True, exclude={"cache_control"})
                for tool in self.tools
            ],
            "truncation": "disabled",
        }


class ResponseEvents(MessageParts):
    """The output items of one response, and the numbered events of a stream that build them."""

    thinking_kind = "reasoning"
    text_kind = "message"

    def __init__(self, request_id: str, tools: Sequence[FlatTool] = ()) -> None:
        super().__init__()
        self.cut_off_call: JsonObject | None = None
        """The item of the call whose arguments were cut off. None: no call was cut off."""
        self._request_id = request_id
        self._tools = {flat.tool.name: flat for flat in tools}
        self._events = 0
        self._texts: list[str] = []  # the pieces of the text or arguments of the open item

    def event(self, kind: str, **fields: Any) -> bytes:
        """Return the next event of the stream."""
        number = self._events
        self._events += 1
        return deltas.named_event(kind, sequence_number=number, **fields)

    def _add_text(self, text: str, step_fields: JsonFields) -> bytes:
        self._texts.append(text)
        return self._text_event("delta", delta=text, **step_fields)

    def _add_arguments(self, arguments: str) -> bytes:
        self._texts.append(arguments)
        # the text for a custom tool is known only when the JSON of the call is complete
        if self._kind == "custom_tool_call":
            return b""
        return self._event_in_item("function_call_arguments.delta", delta=arguments)

    def _open_call(self, piece: Calling) -> bytes:
        known = self._tools.get(piece.name)
        named = known.naming_fields if known else {"type": "function_call", "name": piece.name}
        prefix = "fc"
        text_field = "arguments"
        if named["type"] == "custom_tool_call":
            prefix = "ctc"
            text_field = INPUT
        item = {
            "id": f"{prefix}_{self._request_id}_{piece.index}",
            "status": "in_progress",
            "call_id": piece.id,
            **named,
            text_field: "",
        }
        self.parts.append(item)
        return self._item_stage_event("added")

    def close(self, status: str = "completed") -> bytes:
        """Give the open item, if there is one, its final *status*. Return the events."""
        item = self._last
        if item.get("status") != "in_progress":
            return b""
        item["status"] = status
        text = "".join(self._texts)
        self._texts.clear()
        if "call_id" in item and status != "completed" and not is_json(text):
            self.cut_off_call = item
        match item["type"]:
            case "function_call":
                item["arguments"] = text
                events = self._event_in_item(
                    "function_call_arguments.done",
                    name=item["name"],
                    arguments=text,
                )
            case "custom_tool_call":
                text = custom_input(text)
                item[INPUT] = text
                events = self._event_in_item("custom_tool_call_input.delta", delta=text)
                events += self._event_in_item("custom_tool_call_input.done", input=text)
            case kind:
                part = _part(kind, text)
                item["content"] = [part]
                events = self._text_event("done", text=text)
                events += self._content_event("content_part.done", part=part)
        return events + self._item_stage_event("done")

    def _open(self, kind: str) -> bytes:
        prefix = "msg"
        fields: JsonObject = {"role": "assistant"}
        if kind == "reasoning":
            prefix = "rs"
            fields = {"summary": []}
        item: JsonObject = {
            # a reply can have several items of this kind: the number makes the id unique
            "id": f"{prefix}_{self._request_id}_{len(self.parts)}",
            "type": kind,
            **fields,
            "content": [],
            "status": "in_progress",
        }
        self.parts.append(item)
        events = self._item_stage_event("added")
        return events + self._content_event("content_part.added", part=_part(kind, ""))

    def _item_stage_event(self, stage: str) -> bytes:
        """Return the event which reports that the last item was added or is done (*stage*)."""
        return self.event(
            f"response.output_item.{stage}",
            output_index=self._index,
            item=self._last,
        )

    def _event_in_item(self, kind: str, **fields: Any) -> bytes:
        """Return an event about the content of the last item."""
        return self.event(
            f"response.{kind}",
            item_id=self._last["id"],
            output_index=self._index,
            **fields,
        )

    def _content_event(self, kind: str, **fields: Any) -> bytes:
        """Return an event about the content of the last item. The content has only one part."""
        return self._event_in_item(kind, content_index=0, **fields)

    def _text_event(self, stage: str, **fields: Any) -> bytes:
        if self._last["type"] == "reasoning":
            return self._content_event(f"reasoning_text.{stage}", **fields)
        return self._content_event(f"output_text.{stage}", logprobs=[], **fields)


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


def _part(kind: str, text: str) -> JsonObject:
    if kind == "reasoning":
        return {"type": "reasoning_text", "text": text}
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


class ResponsesReply(SingleReply):
    """The `ReplyFormat` of the Responses API. A request has one run."""

    def __init__(
        self,
        runs: RequestRuns,
        request: ServiceRequest,
        body: ResponsesRequest,
        thinking: Thinking,
    ) -> None:
        super().__init__(runs, request, thinking)
        self._body = body
        self._created = int(time.time())
        self._events = ResponseEvents(request.id, body.flat_tools)

    async def opening(self) -> bytes:
        response = self._response("in_progress")
        created = self._events.event("response.created", response=response)
        return created + self._events.event("response.in_progress", response=response)

    def render(self, item: RunItem) -> bytes:
        return self._events.add(self._builder.add(item))

    async def closing(self) -> bytes:
        events = self._events.close(self._status)
        response = await self._final_response()
        return events + self._events.event(f"response.{self._status}", response=response)

    def failed(self, error: ApiError, body: bytes) -> bytes:
        events = self._events.close("incomplete")
        reason = deltas.response_error(error.status, error.message)
        response = self._response("failed") | {"error": reason}
        return events + self._events.event("response.failed", response=response)

    async def body(self) -> JsonObject:
        self._events.close(self._status)
        if self._events.cut_off_call is not None:
            self._events.parts.remove(self._events.cut_off_call)
        return await self._final_response()

    @property
    def _status(self) -> str:
        return "incomplete" if deltas.finish_reason(self._solution) == "length" else "completed"

    async def _final_response(self) -> JsonObject:
        response = self._response(self._status)
        response["usage"] = _usage(await self._runs.usage())
        if self._status == "incomplete":
            response["incomplete_details"] = {"reason": "max_output_tokens"}
        return response | self._runs.extension()

    def _response(self, status: str) -> JsonObject:
        sampling = self._run_request.run.sampling
        return self._body.echo | {
            "id": f"resp_{self._id}",
            "object": "response",
            "created_at": self._created,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "output": self._events.parts,
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
