"""
Anthropic's Messages API: what a request may contain and means for a method, and how its run is
answered.

Unknown fields are refused. Hints about Anthropic's own caches and tiers are accepted without
effect. A reply is a message of content blocks, in one piece or as events: the thinking is a block,
in which each verified step is one delta with the field ``stepspec``; the answer is the next.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BeforeValidator, Field

from stepspec.orchestrator.answer import first_stop
from stepspec.orchestrator.chain import Message, Tool, ToolCall
from stepspec.orchestrator.errors import near
from stepspec.orchestrator.events import Answered, Calling, Committed, Event, Started
from stepspec.orchestrator.json_values import is_json, json_text, read_json
from stepspec.orchestrator.solution import Solution

from ..errors import ApiError, bad_request
from ..records import RunResult, ServiceRequest
from ..settings import Thinking
from . import deltas
from .deltas import Delta, DeltaBuilder, named_event
from .reply_format import PROGRESS, RequestRuns, RunItem
from .schemas import (
    BILLING,
    SERVED,
    CallId,
    Empty,
    Items,
    ModelName,
    Name,
    Nothing,
    Part,
    Positive,
    Request,
    Rules,
    Schema,
    Stops,
    Temperature,
    TopK,
    TopP,
    Wanted,
    arguments_object,
    joined_text,
    kind_of,
    without_billing,
)

OWN_TOOLS = "the service runs no tools; send tools with an input_schema, which the client runs"
TEXT_ONLY = f"the methods read text only; send text blocks, or {SERVED}"


class TextBlock(Part):
    """A block of text."""

    type: Literal["text"]
    text: str
    citations: Nothing = None


class ThinkingBlock(Part):
    """The thinking of an earlier answer; its signature is not checked."""

    type: Literal["thinking"]
    thinking: str
    signature: str | None = None


class RedactedThinkingBlock(Part):
    """Thinking of an earlier answer that cannot be read; it is dropped."""

    type: Literal["redacted_thinking"]
    data: str


TURNS = {
    "tool_use": "assistant",
    "thinking": "assistant",
    "redacted_thinking": "assistant",
    "tool_result": "user",
    "tool_addition": "system",
    "tool_removal": "system",
}


def _supported(block: object, kinds: Sequence[str]) -> object:
    """Return *block* if it is of one of these *kinds*. Raise `ValueError` with a cure."""
    kind = kind_of(block)
    if not isinstance(kind, str) or kind in kinds:
        return block
    if kind in TURNS:
        raise ValueError(f"a block of type {kind!r} belongs into a message of the {TURNS[kind]}")
    raise ValueError(f"a block of type {kind!r}: {OWN_TOOLS if '_tool_' in kind else TEXT_ONLY}")


class ToolReferenceBlock(Part):
    """
    A tool that a search of the client has found. The models read its name; they know the tool from
    the request.
    """

    type: Literal["tool_reference"]
    tool_name: Name | None = None
    name: Name | None = None
    """As vLLM's clients may call it."""

    @property
    def text(self) -> str | None:
        return self.tool_name or self.name


ResultBlock: TypeAlias = Annotated[
    Annotated[TextBlock | ToolReferenceBlock, Field(discriminator="type")],
    BeforeValidator(partial(_supported, kinds=("text", "tool_reference"))),
]
PlainBlock: TypeAlias = Annotated[TextBlock, BeforeValidator(partial(_supported, kinds=("text",)))]


class ToolUseBlock(Part):
    """A call of a tool in an earlier answer."""

    type: Literal["tool_use"]
    id: CallId
    name: str
    input: Any = None
    caller: dict[str, Any] | None = None
    toolset_name: None = None

    @property
    def call(self) -> ToolCall:
        return ToolCall(self.id, self.name, arguments_object(self.input))


class ToolResultBlock(Part):
    """The result of a call, or, with *is_error*, the reason why there is none."""

    type: Literal["tool_result"]
    tool_use_id: CallId
    content: str | Items[ResultBlock] | None = None
    is_error: bool | None = None
    toolset_name: None = None

    @property
    def message(self) -> Message:
        text = joined_text(self.content or "")
        return Message(
            "tool", f"Error: {text}" if self.is_error else text, call_id=self.tool_use_id
        )


UserBlock: TypeAlias = Annotated[
    Annotated[TextBlock | ToolResultBlock | ToolReferenceBlock, Field(discriminator="type")],
    BeforeValidator(partial(_supported, kinds=("text", "tool_result", "tool_reference"))),
]
AssistantBlock: TypeAlias = Annotated[
    Annotated[
        TextBlock | ThinkingBlock | RedactedThinkingBlock | ToolUseBlock,
        Field(discriminator="type"),
    ],
    BeforeValidator(
        partial(_supported, kinds=("text", "thinking", "redacted_thinking", "tool_use"))
    ),
]


class UserTurn(Part):
    """A message of the user, which may hold the results of calls."""

    role: Literal["user"]
    content: str | Annotated[Items[UserBlock], Field(min_length=1)]

    @property
    def messages(self) -> tuple[Message, ...]:
        if isinstance(self.content, str):
            return (Message("user", self.content),)
        turns: list[Message] = []
        for block in self.content:
            if isinstance(block, ToolResultBlock):
                turns.append(block.message)
            elif isinstance(block, TextBlock):
                turns.append(Message("user", block.text))
        return tuple(turns)


class AssistantTurn(Part):
    """
    An earlier answer, as it was received; the models' own chat templates keep or drop its thinking.
    """

    role: Literal["assistant"]
    content: str | Items[AssistantBlock]

    @property
    def messages(self) -> tuple[Message, ...]:
        if isinstance(self.content, str):
            return (Message("assistant", self.content),)
        calls = tuple([block.call for block in self.content if isinstance(block, ToolUseBlock)])
        thinking = "".join(
            [block.thinking for block in self.content if isinstance(block, ThinkingBlock)]
        )
        text = joined_text([block for block in self.content if isinstance(block, TextBlock)])
        return (Message("assistant", text, calls, reasoning=thinking),)


class ThinkingConfig(Part):
    """
    Thinking of at most *budget_tokens* tokens, if they are set; what is left of `max_tokens` is for
    the answer.

    A method always thinks: ``disabled`` thinking has the least effort, and the reply does not show
    it.
    """

    type: Literal["enabled", "adaptive", "disabled"]
    budget_tokens: Positive | None = None
    display: Literal["summarized", "omitted", "updates"] | None = None
    """With "omitted" the reply does not show the thinking."""


class OutputFormat(Schema):
    """An answer that is JSON and matches a schema."""

    type: Literal["json_schema"]
    rules: Rules


class OutputConfig(Part):
    """The effort of the thinking, and the form of the answer."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: OutputFormat | None = None


class UserMetadata(Part):
    """Whose request it is."""

    user_id: Annotated[str, Field(max_length=512)] | None = None


class CustomTool(Part):
    """
    A tool that the answer may call; the client runs it.

    *strict* asks the server to keep its arguments to the schema. The fields after it are hints
    without effect.
    """

    type: Literal["custom"] | None = None
    name: Name
    description: str | None = None
    input_schema: dict[str, Any]
    strict: bool | None = None
    eager_input_streaming: bool | None = None
    defer_loading: bool | None = None
    """Whether a search has to find the tool first; the models read about every tool."""
    allowed_callers: Items[str] | None = None
    input_examples: Items[dict[str, Any]] | None = None

    @property
    def tool(self) -> Tool:
        return Tool(self.name, self.description, json_text(self.input_schema), self.strict)


def _client_tool(tool: object) -> object:
    """Refuse the tools that Anthropic runs, or that its models alone know how to call."""
    if (kind := kind_of(tool)) not in (None, "custom"):
        raise ValueError(f"a tool of type {kind!r}: {OWN_TOOLS}")
    return tool


OfferedTool: TypeAlias = Annotated[CustomTool, BeforeValidator(_client_tool)]


class ChangedTool(Part):
    """A tool that is in the list of tools, by its *name*."""

    type: Literal["tool_reference"]
    name: Name


class DefinedTool(Part):
    """A tool that is not in the list of tools."""

    type: Literal["tool_definition"]
    definition: OfferedTool


class ToolAdditionBlock(Part):
    """A tool that the answer may call from here on."""

    type: Literal["tool_addition"]
    tool: Annotated[ChangedTool | DefinedTool, Field(discriminator="type")]


class ToolRemovalBlock(Part):
    """A tool that the answer may call no longer."""

    type: Literal["tool_removal"]
    tool: ChangedTool


ToolChange: TypeAlias = ToolAdditionBlock | ToolRemovalBlock
SystemBlock: TypeAlias = Annotated[
    Annotated[TextBlock | ToolChange, Field(discriminator="type")],
    BeforeValidator(partial(_supported, kinds=("text", "tool_addition", "tool_removal"))),
]


class SystemTurn(Part):
    """Instructions within the conversation, and changes of the tools."""

    role: Literal["system"]
    content: str | Items[SystemBlock]

    @property
    def messages(self) -> tuple[Message, ...]:
        if isinstance(self.content, str):
            return _instructions([self.content])
        return _instructions([block.text for block in self.content if isinstance(block, TextBlock)])

    @property
    def changes(self) -> list[ToolChange]:
        if isinstance(self.content, str):
            return []
        return [block for block in self.content if not isinstance(block, TextBlock)]


MessageTurn: TypeAlias = Annotated[
    UserTurn | AssistantTurn | SystemTurn, Field(discriminator="role")
]


def _instructions(texts: Iterable[str]) -> tuple[Message, ...]:
    """
    Return one system message of *texts*; none if they are empty.

    A text that begins with Claude Code's billing header is left out, as in vLLM's API.
    """
    text = "\n".join([text for text in texts if text and not text.startswith(BILLING)])
    return (Message("system", text),) if text else ()


class ToolChoice(Part):
    """
    Whether the answer calls tools as the model likes, at least one, none, or the one called *name*.
    """

    type: Literal["auto", "any", "none", "tool"]
    name: Name | None = None
    disable_parallel_tool_use: bool | None = None


class Conversation(Part):
    """What the models read."""

    model: ModelName
    messages: Annotated[Items[MessageTurn], Field(min_length=1)]
    system: str | Items[PlainBlock] | None = None
    thinking: ThinkingConfig | None = None
    output_config: OutputConfig | None = None
    # MCP servers bring hundreds, which Anthropic's API takes
    tools: Items[OfferedTool] | None = None
    tool_choice: ToolChoice | None = None

    # Features that no method has; clients may send the values that turn them off.
    mcp_servers: Empty = None

    # Hints that do not change the answer.
    context_management: dict[str, Any] | None = None
    speed: Literal["standard"] | None = None

    @property
    def wanted(self) -> Wanted:
        blocks = (
            [without_billing(self.system)]
            if isinstance(self.system, str)
            else [block.text for block in self.system or ()]
        )
        turns = [message for turn in self.messages for message in turn.messages]
        choice = self.tool_choice
        return Wanted(
            tuple(_merged((*_instructions(blocks), *turns))),
            format=(
                self.output_config.format.rules
                if self.output_config and self.output_config.format
                else None
            ),
            tools=tuple([tool.tool for tool in self._offered()]),
            tool_choice=_choice(choice),
            tool_named=choice is not None and choice.type == "tool",
            parallel=not (choice and choice.disable_parallel_tool_use),
        )

    def _offered(self) -> list[CustomTool]:
        """
        Return the tools after all changes in the conversation: chat templates show one list. Raise
        `ApiError` for a change of a tool that there is not.
        """
        changes = [
            change
            for turn in self.messages
            if isinstance(turn, SystemTurn)
            for change in turn.changes
        ]
        if not changes:  # then two tools with one name are an error
            return self.tools or []
        tools = {tool.name: tool for tool in self.tools or ()}
        removed: set[str] = set()
        for change in changes:
            if isinstance(change.tool, DefinedTool):
                tools[change.tool.definition.name] = change.tool.definition
                removed.discard(change.tool.definition.name)
                continue
            name = change.tool.name
            if name not in tools:
                hint = near(name, tools)
                message = f"{change.type} names {name!r}, which is no tool of the request{hint}"
                raise bad_request(message, "messages")
            if isinstance(change, ToolRemovalBlock):
                removed.add(name)
            else:
                removed.discard(name)
        return [tool for name, tool in tools.items() if name not in removed]


def _choice(choice: ToolChoice | None) -> str:
    if choice is not None and choice.type == "tool":
        if choice.name is None:
            raise bad_request("tool_choice.name is missing", "tool_choice.name", "missing")
        return choice.name
    return "auto" if choice is None else "required" if choice.type == "any" else choice.type


def _merged(messages: Iterable[Message]) -> Sequence[Message]:
    """Join consecutive messages of one role, as the API promises."""
    merged: list[Message] = []
    for message in messages:
        if merged and merged[-1].role == message.role != "tool":
            first = merged.pop()
            message = replace(
                first,
                content="\n".join([text for text in (first.content, message.content) if text]),
                calls=first.calls + message.calls,
                reasoning=first.reasoning + message.reasoning,
            )
        merged.append(message)
    return merged


class CountTokensRequest(Conversation):
    """The body of a request to count tokens."""


class MessagesRequest(Conversation, Request):
    """The body of a message."""

    max_tokens: Positive
    stream: bool | None = None
    stop_sequences: Stops | None = None
    temperature: Temperature = None
    top_p: TopP = None
    top_k: TopK = None
    metadata: UserMetadata | None = None

    # Hints that do not change the answer.
    service_tier: Literal["auto", "standard_only"] | None = None

    @property
    def wanted(self) -> Wanted:
        effort = self.output_config.effort if self.output_config else None
        most = self.thinking.budget_tokens if self.thinking else None
        if most is not None and most >= self.max_tokens:
            message = (
                f"thinking.budget_tokens is {most}: send less than max_tokens, which is"
                f" {self.max_tokens}"
            )
            raise bad_request(message, "thinking.budget_tokens")
        return replace(
            super().wanted,
            tokens=self.max_tokens,
            thinking=most,
            effort="minimal" if self._disabled else effort,
            stops=self.stop_sequences or (),
            rest_for_answer=True,
        )

    @property
    def _disabled(self) -> bool:
        return self.thinking is not None and self.thinking.type == "disabled"

    @property
    def end_user(self) -> str | None:
        return self.metadata.user_id if self.metadata else None

    def place_of_thinking(self, usual: Thinking) -> Thinking:
        hidden = self._disabled or (
            self.thinking is not None and self.thinking.display == "omitted"
        )
        return super().place_of_thinking("none" if hidden else usual)


SIGNATURE = "stepspec"
"""
The signature of every block of thinking. Clients send it back unread, and nothing here depends on
it.

Anthropic's own API refuses it: it accepts the thinking of its own models only.
"""


PING = named_event("ping")


class ContentBlocks:
    """
    The content *blocks* of one message, and the events of a stream that build them.

    The calls of tools are told apart by their index, as a server may repeat an id.
    """

    def __init__(self) -> None:
        self.blocks: list[dict[str, Any]] = []
        self._open = False
        self._call = -1  # the index of the open call
        self._inputs: dict[int, str] = {}  # JSON texts, by the index of the block

    def add(self, delta: Delta) -> bytes:
        """Add *delta* to the open block, or to new ones; return the events."""
        events = b"".join(map(self._add_call, delta.ended))
        for name, text in delta.fields.items():
            kind = "thinking" if name == "reasoning" else "text"
            if not self._open or self.blocks[-1]["type"] != kind:
                events += self.close() + self._start({"type": kind, kind: ""})
            self.blocks[-1][kind] += text
            about = {"stepspec": delta.step} if delta.step else {}
            events += self._delta({"type": f"{kind}_delta", kind: text}, **about)
        return events + b"".join(map(self._add_call, delta.calls))

    def _add_call(self, piece: Calling) -> bytes:
        events = b""
        if not self._open or self.blocks[-1]["type"] != "tool_use" or piece.index != self._call:
            events = self.close() + self._start(
                {"type": "tool_use", "id": piece.id, "name": piece.name}
            )
            self._call = piece.index
        block = len(self.blocks) - 1
        self._inputs[block] = self._inputs.get(block, "") + piece.arguments
        return events + (
            self._delta({"type": "input_json_delta", "partial_json": piece.arguments})
            if piece.arguments
            else b""
        )

    def close(self) -> bytes:
        """Complete the open block, if there is one; return the events."""
        if not self._open:
            return b""
        self._open = False
        signed = b""
        if self.blocks[-1]["type"] == "thinking":
            self.blocks[-1]["signature"] = SIGNATURE
            signed = self._delta({"type": "signature_delta", "signature": SIGNATURE})
        return signed + named_event("content_block_stop", index=len(self.blocks) - 1)

    def finish(self, *, cut: bool) -> bytes:
        """
        Complete the last block; return the events. A message has one at least: clients read the
        first unasked.

        Of an answer that was *cut* off, calls whose arguments are no JSON are left out. A stream
        has begun them.
        """
        events = self.close()
        for block, text in self._inputs.items():
            self.blocks[block]["input"] = read_json(arguments_object(text))
        lost = {block for block, text in self._inputs.items() if cut and not is_json(text)}
        self.blocks = [block for index, block in enumerate(self.blocks) if index not in lost]
        if not self.blocks:
            empty = self._start({"type": "text", "text": ""}) + self.close()
            events += b"" if self._inputs else empty
        return events

    def _start(self, block: dict[str, Any]) -> bytes:
        self.blocks.append(block)
        self._open = True
        more: Mapping[str, dict[str, Any]] = {
            "thinking": {"signature": ""},
            "tool_use": {"input": {}},
        }
        begun = block | more.get(block["type"], {})
        return named_event("content_block_start", index=len(self.blocks) - 1, content_block=begun)

    def _delta(self, delta: Mapping[str, Any], **fields: Any) -> bytes:
        return named_event("content_block_delta", index=len(self.blocks) - 1, delta=delta, **fields)


class RawAnswer:
    """
    An observer of one run that keeps the answer as the model wrote it, with the stop sequence that
    ended it.
    """

    def __init__(self) -> None:
        self._text = ""
        self._thought = False

    def __call__(self, event: Event) -> None:
        match event:
            case Started(thinks=thinks):
                self._thought = not thinks
            case Committed(step=step) if self._thought:
                self._text += step.text
            case Committed(step=step):
                self._thought = step.closes
            case Answered(step=step):
                self._text = step.text
            case _:
                pass

    def stopped_by(self, stops: Sequence[str]) -> str | None:
        """Return which of *stops* ended the answer; None if none did."""
        first = first_stop(self._text, stops)
        return first[1] if first else None


class MessagesReply:
    """Writes the one run of *runs* as a message. A `ReplyFormat`."""

    keep_alive = PING
    starts_at = PROGRESS

    def __init__(
        self, runs: RequestRuns, request: ServiceRequest, body: MessagesRequest, thinking: Thinking
    ) -> None:
        self._runs = runs
        self._model = body.model
        (self._run_request,) = runs.run_requests
        self._builder = DeltaBuilder(deltas.one_field(thinking))
        self._id = request.id
        self._content = ContentBlocks()
        self._raw = RawAnswer()

    async def opening(self) -> bytes:
        used = _usage(await self._runs.prompt_tokens(), {})
        return named_event("message_start", message=self._message() | {"usage": used | TIER}) + PING

    def render(self, item: RunItem) -> bytes:
        if not isinstance(item, RunResult):
            self._raw(item.event)
        return self._content.add(self._builder.add(item))

    async def closing(self) -> bytes:
        events = self._finish()
        used = await self._used()
        ended = named_event(
            "message_delta", delta=self._ended(), usage=used, **self._runs.extension([0])
        )
        return events + ended + named_event("message_stop")

    def failed(self, error: ApiError, body: bytes) -> bytes:
        return deltas.FAILED_EVENT % body

    async def body(self) -> dict[str, Any]:
        self._finish()
        return (
            self._message()
            | self._ended()
            | {"usage": await self._used() | TIER}
            | self._runs.extension([0])
        )

    def _finish(self) -> bytes:
        return self._content.finish(cut=self._runs.solutions[0].finish_reason != "stop")

    async def _used(self) -> dict[str, Any]:
        counted = await self._runs.usage()
        return _usage(counted["prompt_tokens"], counted)

    def _ended(self) -> dict[str, Any]:
        solution = self._runs.solutions[0]
        stopped = self._raw.stopped_by(self._run_request.stop)
        reason = stop_reason(solution, stopped)
        return {
            "stop_reason": reason,
            "stop_sequence": stopped if reason == "stop_sequence" else None,
        }

    def _message(self) -> dict[str, Any]:
        return {
            "id": f"msg_{self._id}",
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": self._content.blocks,
            "stop_reason": None,
            "stop_sequence": None,
        }


def stop_reason(solution: Solution, stopped: str | None) -> str:
    """
    Return Anthropic's reason for the end of a message, whose answer was *stopped* by a stop
    sequence or not.
    """
    match solution.finish_reason:
        case "stop" if stopped is not None and not solution.calls:
            return "stop_sequence"
        case "stop":
            return "tool_use" if solution.calls else "end_turn"
        case "context":
            return "model_context_window_exceeded"
        case _:
            return "max_tokens"


TIER = {"service_tier": "standard"}
"""What the usage of a message has, and that of its last event has not."""


def _usage(prompt: int, counted: Mapping[str, Any]) -> dict[str, Any]:
    """
    Return the usage of a message: of the *prompt*, the tokens in the prefix cache are counted
    separately.
    """
    cached = counted["prompt_tokens_details"]["cached_tokens"] if counted else 0
    thinking = counted["completion_tokens_details"]["reasoning_tokens"] if counted else 0
    return {
        "input_tokens": prompt - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": counted["completion_tokens"] if counted else 0,
        "output_tokens_details": {"thinking_tokens": thinking},
    }
