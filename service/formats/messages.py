"""
Anthropic's Messages API: the schema of a request, its meaning for a method, and the reply.

Unknown fields are refused. Fields about Anthropic's own caches and tiers are accepted without
effect. A reply is a message of content blocks, in one piece or as events. The thinking is the first
block, and the answer is the next block. In a stream, each verified step is an event of the
thinking, with the field ``stepspec``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Annotated, Any, Literal, TypeAlias, TypeVar

from pydantic import Field

from stepspec.orchestrator.chain import Message, ToolCall, Toolset
from stepspec.orchestrator.json_values import read_json
from stepspec.orchestrator.solution import Solution

from ..errors import bad_request
from ..json_types import JsonFields, JsonObject
from ..settings import Thinking
from . import deltas
from .deltas import Delta, named_event
from .reply_format import ApiReply, MessagePart, MessageParts, PartKind
from .schemas import (
    ApiRequest,
    Arguments,
    CallId,
    Content,
    Function,
    Items,
    Label,
    ModelName,
    Name,
    Nothing,
    Part,
    Positive,
    SchemaFormat,
    Stops,
    Text,
    Wanted,
    accepting,
    arguments_object,
    joined_text,
    merged,
    without_billing,
)

B = TypeVar("B")


class TextBlock(Part):
    """A block of text."""

    type: Literal["text"]
    """The kind of the block."""
    text: Text
    """The text."""
    citations: Nothing = None
    """Only null and the empty list are accepted."""


@accepting(
    "signature",  # of the server that wrote the thinking
    "data",  # the encrypted thinking
)
class ThinkingBlock(Part):
    """The thinking of an earlier answer. Encrypted thinking is dropped."""

    type: Literal["thinking", "redacted_thinking"]
    """The kind of the block."""
    thinking: Text = ""
    """The text of the thinking."""


class ReferenceBlock(Part):
    """
    A tool that the client found with a tool search. The block is dropped.

    The list of tools describes the tool.
    """

    type: Literal["tool_reference"]
    """The kind of the block."""
    tool_name: Name
    """The name of the tool."""


@accepting(
    "caller",  # who made the call
    "toolset_name",
)
class ToolUseBlock(Part):
    """A call of a tool in an earlier answer."""

    type: Literal["tool_use"]
    """The kind of the block."""
    id: CallId
    """The id of the call. The result of the call has the same id."""
    name: Text
    """The name of the tool. Models sometimes call tools that do not exist."""
    input: Arguments = "{}"
    """The arguments of the call."""


@accepting("toolset_name")
class ToolResultBlock(Part):
    """The result of a call."""

    type: Literal["tool_result"]
    """The kind of the block."""
    tool_use_id: CallId
    """The id of the call."""
    content: Content = Field([])
    """The result."""
    is_error: bool = False
    """Whether the tool failed. The content is then the error of the tool."""


def blocks_of(content: str | Sequence[B]) -> Sequence[B | TextBlock]:
    """Return *content* as blocks."""
    return [TextBlock(type="text", text=content)] if isinstance(content, str) else content


class UserTurn(Part):
    """A message of the user."""

    role: Literal["user"]
    """Who speaks."""
    content: (
        str
        | Annotated[
            Items[
                Annotated[TextBlock | ToolResultBlock | ReferenceBlock, Field(discriminator="type")]
            ],
            Field(min_length=1),
        ]
    )
    """The text, or blocks of text and of results of calls."""


class AssistantTurn(Part):
    """An earlier answer. The chat template decides whether the models read the thinking in it."""

    role: Literal["assistant"]
    """Who speaks."""
    content: (
        str
        | Items[Annotated[TextBlock | ThinkingBlock | ToolUseBlock, Field(discriminator="type")]]
    )
    """The text, or the blocks of the answer."""


@accepting(
    "clear_at",  # whether later requests may leave the instructions out
    "output_config",  # the effort from this message on
)
class SystemTurn(Part):
    """Instructions within the conversation."""

    role: Literal["system"]
    """Who speaks."""
    content: str | Items[TextBlock]
    """The text, or its blocks."""


MessageTurn: TypeAlias = Annotated[
    UserTurn | AssistantTurn | SystemTurn, Field(discriminator="role")
]


def messages_of(turn: MessageTurn) -> Iterator[Message]:
    """Yield a message for each block of *turn*. `merged` joins the messages."""
    if turn.role == "assistant":
        yield Message("assistant", "")  # the answer may have no blocks
    for block in blocks_of(turn.content):
        match block:
            case TextBlock(text=text):
                text = without_billing(text) if turn.role == "system" else text
                yield Message(turn.role, text)
            case ThinkingBlock(thinking=thinking):
                yield Message("assistant", "", reasoning=thinking)
            case ToolUseBlock():
                call = ToolCall(block.id, block.name, block.input)
                yield Message("assistant", "", (call,))
            case ToolResultBlock():
                result = joined_text(block.content)
                text = f"Error: {result}" if block.is_error else result
                yield Message("tool", text, call_id=block.tool_use_id)
            case ReferenceBlock():
                pass


@accepting("block_binding")  # whether Anthropic's own server checks the thinking of other models
class ThinkingConfig(Part):
    """
    How the answer thinks.

    A method always thinks. With "disabled" it thinks with the least effort, and the reply does not
    show the thinking.
    """

    type: Literal["enabled", "adaptive", "disabled"]
    """Whether the answer thinks."""
    budget_tokens: Positive | None = None
    """
    The most tokens of the thinking. The answer gets the rest of ``max_tokens``. None: only the
    other limits hold.
    """
    display: Literal["summarized", "omitted", "updates"] | None = None
    """With "omitted", the reply does not show the thinking. Other values have no effect."""


@accepting("task_budget")  # a hint about the whole task
class OutputConfig(Part):
    """The effort of the thinking, and the form of the answer."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    """The effort of the thinking. None: the whole budget."""
    format: SchemaFormat | None = None
    """The form of the answer. None: free text."""


class UserMetadata(Part):
    """The user for whom the client makes the request."""

    user_id: Label | None = None
    """The client's name for its user, for the log."""


@accepting(
    "eager_input_streaming",  # a hint for Anthropic's streams
    "allowed_callers",  # the programs that may call the tool
    "input_examples",
)
class InputSchemaTool(Function):
    """A tool that the answer may call. The client runs it."""

    type: Literal["custom"] | None = None
    """The kind of the tool."""
    parameters: Annotated[JsonObject | None, Field(alias="input_schema")] = None
    """The JSON schema of the arguments. None: the tool takes no arguments."""


class ToolChoice(Part):
    """Whether the answer calls tools."""

    type: Literal["auto", "any", "none", "tool"]
    """
    "auto": the model decides. "any": at least one call. "none": no call. "tool": a call of the
    named tool.
    """
    name: Name | None = None
    """The name of the tool that the answer has to call, if the type is "tool"."""
    disable_parallel_tool_use: bool = False
    """Whether the answer may have only one call."""

    @property
    def tool(self) -> str:
        """
        The value for `Toolset.choice`: "auto", "required", "none", or the name of the tool.

        Raise `ApiError` if the type is "tool" and the name is missing.
        """
        if self.type == "tool":
            if self.name is None:
                raise bad_request("tool_choice.name is missing", "tool_choice.name", "missing")
            return self.name
        return "required" if self.type == "any" else self.type


@accepting(
    "context_management",  # a hint about old parts of the conversation
    "anthropic_beta",  # a header, which gateways put into the body
    "anthropic_version",  # also a header
    "betas",
    "billing_policy",  # this and all fields below concern Anthropic's own server
    "diagnostics",
    "fallback_credit_token",
    "fallbacks",
    "inference_geo",
    "user_profile_id",
    "workspace_id",
)
class Conversation(Part):
    """The fields that `CountTokensRequest` and `MessagesRequest` share."""

    model: ModelName
    """The name of a method or of a served model."""
    messages: Annotated[Items[MessageTurn], Field(min_length=1)]
    """The conversation."""
    system: str | Items[TextBlock] = ""
    """Instructions before the conversation."""
    thinking: ThinkingConfig = ThinkingConfig(type="enabled")
    """How the answer thinks."""
    output_config: OutputConfig = OutputConfig()
    """The effort of the thinking, and the form of the answer."""
    tools: Items[InputSchemaTool] = Field([])
    """The tools. MCP servers have many tools, so hundreds are allowed, as in Anthropic's API."""
    tool_choice: ToolChoice = ToolChoice(type="auto")
    """Whether the answer calls tools."""
    mcp_servers: Nothing = None
    """Only the empty list is accepted: the service runs no tools."""
    speed: Literal["standard"] | None = None
    """Only the standard speed is accepted. It has no effect."""

    @property
    def wanted(self) -> Wanted:
        system = SystemTurn(role="system", content=self.system)
        messages = [message for turn in (system, *self.messages) for message in messages_of(turn)]
        spoken = [message for message in messages if message.role != "system" or message.content]
        format = self.output_config.format
        return Wanted(
            tuple(merged(spoken, "system", "user", "assistant")),
            format=format.wanted_format if format else None,
            tools=Toolset(
                tuple([tool.tool for tool in self.tools]),
                self.tool_choice.tool,
                not self.tool_choice.disable_parallel_tool_use,
                named=self.tool_choice.type == "tool",
                live=getattr(self, "stream", True),  # A request that counts tokens has no stream.
            ),
        )


class CountTokensRequest(Conversation):
    """The body of a request that asks for the number of tokens in a conversation."""


@accepting("service_tier")  # a class of service of Anthropic's own server
class MessagesRequest(Conversation, ApiRequest):
    """The body of a request for a message."""

    max_tokens: Positive
    """The most tokens of the thinking and the answer together."""
    stop_sequences: Stops = Field([])
    """The texts that end the answer."""
    metadata: UserMetadata = UserMetadata()
    """The user for whom the client makes the request."""

    @property
    def wanted(self) -> Wanted:
        thinking = self.thinking.budget_tokens
        if thinking is not None and thinking >= self.max_tokens:
            raise bad_request(
                f"thinking.budget_tokens is {thinking}: send less than max_tokens, which is"
                f" {self.max_tokens}",
                "thinking.budget_tokens",
            )
        return replace(
            super().wanted,
            tokens=self.max_tokens,
            thinking=thinking,
            effort="minimal" if self._disabled else self.output_config.effort,
            stops=self.stop_sequences,
        )

    @property
    def _disabled(self) -> bool:
        return self.thinking.type == "disabled"

    @property
    def end_user(self) -> str | None:
        return self.metadata.user_id

    def place_of_thinking(self, configured: Thinking) -> Thinking:
        omitted = self._disabled or self.thinking.display == "omitted"
        return super().place_of_thinking("none" if omitted else configured)


SIGNATURE = "stepspec"
"""
The signature of every thinking block. Clients send the signature back, and stepspec ignores it.

Anthropic's own API refuses a block with this signature, because Anthropic's models did not write
the block.
"""

PING = named_event("ping")


DELTA_FIELDS: Mapping[PartKind, tuple[str, str]] = {
    "thinking": ("thinking_delta", "thinking"),
    "text": ("text_delta", "text"),
    "call": ("input_json_delta", "partial_json"),
}
"""The type of an event's delta, and the field with its text, by the kind of the part."""


class ContentBlocks(MessageParts):
    """The content blocks of one message, and the events of a stream that build them."""

    def content(self, *, cut: bool) -> list[JsonObject]:
        """Return the content of a message. *cut*: the answer was cut off."""
        blocks = [_block(part) for part in self.kept(cut=cut)]
        return blocks or [{"type": "text", "text": ""}]

    def finish(self) -> bytes:
        """
        Complete the last block. Return the events.

        A message without any block gets an empty text, because clients read the first block without
        a check.
        """
        events = b"" if self.parts else self.add(Delta({"content": ""}))
        return events + self.close()

    def _opened(self, part: MessagePart) -> bytes:
        return named_event("content_block_start", index=part.index, content_block=_block(part))

    def _extended(self, part: MessagePart, text: str, step_fields: JsonFields) -> bytes:
        kind, name = DELTA_FIELDS[part.kind]
        return _delta_event(part, {"type": kind, name: text}, **step_fields)

    def _closed(self, part: MessagePart) -> bytes:
        events = b""
        if part.kind == "thinking":
            events = _delta_event(part, {"type": "signature_delta", "signature": SIGNATURE})
        return events + named_event("content_block_stop", index=part.index)


def _delta_event(part: MessagePart, delta: JsonFields, **fields: Any) -> bytes:
    return named_event("content_block_delta", index=part.index, delta=delta, **fields)


def _block(part: MessagePart) -> JsonObject:
    """
    Return the block of *part*.

    In a stream, the first event of each block has the block of a part that is still empty.
    """
    match part.kind:
        case "text":
            return {"type": "text", "text": part.text}
        case "thinking":
            signature = "" if part.status == "in_progress" else SIGNATURE
            return {"type": "thinking", "thinking": part.text, "signature": signature}
        case "call":
            return {
                "type": "tool_use",
                "id": part.call.id,
                "name": part.call.name,
                "input": read_json(arguments_object(part.text)),
            }


class MessagesReply(ApiReply[MessagesRequest]):
    """The `ReplyFormat` of Anthropic's Messages API. A request has one run."""

    keep_alive = PING

    @cached_property
    def _content(self) -> ContentBlocks:
        """The content so far."""
        return ContentBlocks()

    async def opening(self) -> bytes:
        usage = _usage(deltas.usage(await self._runs.prompt_tokens()))
        message = self._message([]) | {"usage": usage | TIER}
        return named_event("message_start", message=message) + PING

    def _render_delta(self, choice: int, delta: Delta) -> bytes:
        return self._content.add(delta)

    async def closing(self) -> bytes:
        events = self._content.finish()
        usage = _usage(await self._runs.usage())
        events += named_event(
            "message_delta",
            delta=self._end_fields(),
            usage=usage,
            **self._runs.extension(0),
        )
        return events + named_event("message_stop")

    async def body(self) -> JsonObject:
        self._content.finish()
        content = self._content.content(cut=self._solution.finish_reason != "stop")
        usage = _usage(await self._runs.usage()) | TIER
        message = self._message(content) | self._end_fields()
        return message | {"usage": usage} | self._runs.extension(0)

    def _end_fields(self) -> JsonObject:
        """Return the fields of the message that say why it ended."""
        reason = stop_reason(self._solution)
        stopped = self._solution.stopped if reason == "stop_sequence" else None
        return {"stop_reason": reason, "stop_sequence": stopped}

    def _message(self, content: list[JsonObject]) -> JsonObject:
        return {
            "id": f"msg_{self._request_id}",
            "type": "message",
            "role": "assistant",
            "model": self._body.model,
            "content": content,
            "stop_reason": None,
            "stop_sequence": None,
        }


def stop_reason(solution: Solution) -> str:
    """Return Anthropic's reason for the end of a message."""
    if solution.finish_reason == "context":
        return "model_context_window_exceeded"
    if solution.finish_reason != "stop":
        return "max_tokens"
    if solution.calls:
        return "tool_use"
    return "stop_sequence" if solution.stopped else "end_turn"


TIER = {"service_tier": "standard"}
"""
An additional field of the usage. A complete message and ``message_start`` have this field, and
``message_delta`` does not.
"""


def _usage(usage: JsonFields) -> JsonObject:
    """
    Convert *usage* from the form of a chat completion to the form of a message.

    Anthropic's API does not count prompt tokens from the prefix cache as input tokens.
    """
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    thinking = usage["completion_tokens_details"]["reasoning_tokens"]
    return {
        "input_tokens": usage["prompt_tokens"] - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": usage["completion_tokens"],
        "output_tokens_details": {"thinking_tokens": thinking},
    }
