"""
The bodies of requests of Anthropic's Messages API, field by field, and what they mean for a method.

Unknown fields are refused, as in `schemas`. Hints about Anthropic's own caches and tiers are accepted without effect.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, ClassVar, Literal, TypeAlias, cast

import orjson
from pydantic import BeforeValidator, ConfigDict, Field

from ...chain import Message, Tool, ToolCall
from ..settings import Thinking
from .schemas import MAX_TOOLS, SERVED, Effort, Items, Name, Part, Positive, Request

CallId: TypeAlias = Annotated[str, Field(min_length=1, max_length=256)]

BILLING = "x-anthropic-billing-header"
"""The beginning of a system block that Claude Code changes with every request, so that no prefix cache could hit."""

EFFORTS: dict[str, Effort] = {"low": "low", "medium": "medium", "high": "high", "xhigh": "xhigh", "max": "xhigh"}
OWN_TOOLS = "the service runs no tools; send tools with an input_schema, which the client runs"
TEXT_ONLY = f"the methods read text only; send text blocks, or {SERVED}"


class CacheControl(Part):
    """A hint for Anthropic's prompt cache; the servers' prefix caches need none."""

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = None


class Block(Part):
    """A block of content."""

    cache_control: CacheControl | None = None


class TextBlock(Block):
    """A block of text."""

    type: Literal["text"]
    text: str
    citations: None = None


class ThinkingBlock(Block):
    """The thinking of an earlier answer; its signature is not checked."""

    type: Literal["thinking"]
    thinking: str
    signature: str | None = None


class RedactedThinkingBlock(Block):
    """Thinking of an earlier answer that cannot be read; it is dropped."""

    type: Literal["redacted_thinking"]
    data: str


def _type(value: object) -> object:
    return cast("dict[str, Any]", value).get("type") if isinstance(value, dict) else None


def _supported(block: object, kinds: Sequence[str]) -> object:
    """Return *block* if it is of one of these *kinds*. Raise `ValueError` with a cure."""
    kind = _type(block)
    if not isinstance(kind, str) or kind in kinds:
        return block
    if kind in TURNS:
        raise ValueError(f"a block of type {kind!r} belongs into a message of the {TURNS[kind]}")
    raise ValueError(f"a block of type {kind!r}: {OWN_TOOLS if '_tool_' in kind else TEXT_ONLY}")


TURNS = {"tool_use": "assistant", "thinking": "assistant", "redacted_thinking": "assistant", "tool_result": "user"}
PlainBlock: TypeAlias = Annotated[TextBlock, BeforeValidator(partial(_supported, kinds=("text",)))]


class ToolUseBlock(Block):
    """A call of a tool in an earlier answer."""

    type: Literal["tool_use"]
    id: CallId
    name: Name
    input: dict[str, Any]
    caller: None = None
    toolset_name: None = None

    @property
    def call(self) -> ToolCall:
        return ToolCall(self.id, self.name, orjson.dumps(self.input).decode())


class ToolResultBlock(Block):
    """The result of a call, or, with *is_error*, the reason why there is none."""

    type: Literal["tool_result"]
    tool_use_id: CallId
    content: str | Items[PlainBlock] | None = None
    is_error: bool | None = None
    toolset_name: None = None

    @property
    def message(self) -> Message:
        text = _text(self.content or "")
        return Message("tool", f"Error: {text}" if self.is_error else text, call_id=self.tool_use_id)


UserBlock: TypeAlias = Annotated[
    Annotated[TextBlock | ToolResultBlock, Field(discriminator="type")],
    BeforeValidator(partial(_supported, kinds=("text", "tool_result"))),
]
AssistantBlock: TypeAlias = Annotated[
    Annotated[TextBlock | ThinkingBlock | RedactedThinkingBlock | ToolUseBlock, Field(discriminator="type")],
    BeforeValidator(partial(_supported, kinds=("text", "thinking", "redacted_thinking", "tool_use"))),
]


class UserTurn(Part):
    """A message of the user, which may hold the results of calls."""

    role: Literal["user"]
    content: str | Annotated[Items[UserBlock], Field(min_length=1)]

    @property
    def messages(self) -> tuple[Message, ...]:
        if isinstance(self.content, str):
            return (Message("user", self.content),)
        return tuple(
            [
                block.message if isinstance(block, ToolResultBlock) else Message("user", block.text)
                for block in self.content
            ]
        )


class SystemTurn(Part):
    """Instructions within the conversation."""

    role: Literal["system"]
    content: str | Items[PlainBlock]

    @property
    def messages(self) -> tuple[Message, ...]:
        return (Message("system", _text(self.content)),)


class AssistantTurn(Part):
    """An earlier answer, as it was received; the models' own chat templates keep or drop its thinking."""

    role: Literal["assistant"]
    content: str | Items[AssistantBlock]

    @property
    def messages(self) -> tuple[Message, ...]:
        blocks = () if isinstance(self.content, str) else self.content
        calls = tuple([block.call for block in blocks if isinstance(block, ToolUseBlock)])
        thinking = "".join([block.thinking for block in blocks if isinstance(block, ThinkingBlock)])
        return (Message("assistant", _text(self.content), calls, reasoning=thinking),)


MessageTurn: TypeAlias = Annotated[UserTurn | AssistantTurn | SystemTurn, Field(discriminator="role")]


class EnabledThinking(Part):
    """Thinking of at most *budget_tokens* tokens; what is left of `max_tokens` is for the answer."""

    type: Literal["enabled"]
    budget_tokens: Positive
    display: Literal["summarized", "omitted"] | None = None


class AdaptiveThinking(Part):
    """Thinking as the models choose, which is the default."""

    type: Literal["adaptive"]
    display: Literal["summarized", "omitted"] | None = None


class DisabledThinking(Part):
    """Thinking that the reply does not show, of the least effort: a method always thinks."""

    type: Literal["disabled"]


ThinkingConfig: TypeAlias = Annotated[
    EnabledThinking | AdaptiveThinking | DisabledThinking, Field(discriminator="type")
]


class OutputFormat(Part):
    """An answer that is JSON and matches a schema."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, protected_namespaces=(), populate_by_name=True)

    type: Literal["json_schema"]
    rules: dict[str, Any] = Field(alias="schema")


class OutputConfig(Part):
    """The effort of the thinking, and the form of the answer."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: OutputFormat | None = None


class UserMetadata(Part):
    """Whose request it is."""

    user_id: Annotated[str, Field(max_length=512)] | None = None


class ClearThinking(Part):
    """Which thinking of earlier answers is kept; the models' own chat templates decide it."""

    type: Literal["clear_thinking_20251015"]
    keep: Any = None


class ContextManagement(Part):
    """Changes of the conversation before the models read it; none has an effect."""

    edits: Items[ClearThinking] | None = None


class CustomTool(Part):
    """
    A tool that the answer may call; the client runs it.

    *strict* asks the server to keep its arguments to the schema. The fields after it are hints without effect.
    """

    type: Literal["custom"] | None = None
    name: Name
    description: str | None = None
    input_schema: dict[str, Any]
    strict: bool | None = None
    cache_control: CacheControl | None = None
    eager_input_streaming: bool | None = None
    defer_loading: Literal[False] | None = None
    allowed_callers: Items[Literal["direct"]] | None = None
    input_examples: Items[dict[str, Any]] | None = None

    @property
    def tool(self) -> Tool:
        return Tool(self.name, self.description or "", orjson.dumps(self.input_schema).decode(), self.strict)


def _client_tool(tool: object) -> object:
    """Refuse the tools that Anthropic runs, or that its models alone know how to call."""
    kind = _type(tool)
    if kind not in (None, "custom"):
        raise ValueError(f"a tool of type {kind!r}: {OWN_TOOLS}")
    return tool


OfferedTool: TypeAlias = Annotated[CustomTool, BeforeValidator(_client_tool)]


class ToolChoice(Part):
    """Whether the answer calls tools as the model likes, at least one, or none."""

    type: Literal["auto", "any", "none"]
    disable_parallel_tool_use: bool | None = None


class NamedToolChoice(Part):
    """The tool that the answer has to call."""

    type: Literal["tool"]
    name: Name
    disable_parallel_tool_use: bool | None = None


class Conversation(Part):
    """What the models read."""

    parts: ClassVar[tuple[type[Part], ...]] = (UserTurn, TextBlock, ThinkingBlock, ToolUseBlock, ToolResultBlock)

    model: Annotated[str, Field(min_length=1, max_length=512)]
    messages: Annotated[Items[MessageTurn], Field(min_length=1)]
    system: str | Items[PlainBlock] | None = None
    thinking: ThinkingConfig | None = None
    output_config: OutputConfig | None = None
    tools: (
        Annotated[Items[Annotated[CustomTool, BeforeValidator(_client_tool)]], Field(max_length=MAX_TOOLS)] | None
    ) = None
    tool_choice: Annotated[ToolChoice | NamedToolChoice, Field(discriminator="type")] | None = None

    # Features that no method has; clients may send the values that turn them off.
    mcp_servers: None = None

    # Hints that do not change the answer.
    cache_control: CacheControl | None = None
    context_management: ContextManagement | None = None
    speed: Literal["standard"] | None = None

    @property
    def problem_messages(self) -> tuple[Message, ...]:
        """The conversation; consecutive messages of one role are one, as the API promises."""
        blocks = [self.system] if isinstance(self.system, str) else [block.text for block in self.system or ()]
        system = "\n".join(text for text in blocks if not text.startswith(BILLING))
        first = (Message("system", system),) if system else ()
        return (*first, *_merged(message for turn in self.messages for message in turn.messages))

    @property
    def toolset(self) -> tuple[Tool, ...]:
        return tuple([tool.tool for tool in self.tools or ()])

    @property
    def chosen_tool(self) -> str:
        match self.tool_choice:
            case NamedToolChoice(name=name):
                return name
            case ToolChoice(type="any"):
                return "required"
            case ToolChoice(type=choice):
                return choice
            case None:
                return "auto"

    @property
    def parallel_tool_calls(self) -> bool:
        return not (self.tool_choice and self.tool_choice.disable_parallel_tool_use)


class CountTokensRequest(Conversation):
    """The body of a request to count tokens."""


class MessagesRequest(Conversation, Request):
    """The body of a message."""

    max_tokens: Positive
    stream: bool | None = None
    stop_sequences: Items[str] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=0)] | None = None
    metadata: UserMetadata | None = None

    # Hints that do not change the answer.
    service_tier: Literal["auto", "standard_only"] | None = None

    # Features that no method has; clients may send the values that turn them off.
    container: None = None
    inference_geo: None = None
    diagnostics: None = None

    @property
    def user(self) -> str | None:
        return self.metadata.user_id if self.metadata else None

    @property
    def effort(self) -> Effort | None:
        """The effort of the thinking; None for all of its budget."""
        if isinstance(self.thinking, DisabledThinking):
            return "minimal"
        effort = self.output_config.effort if self.output_config else None
        return EFFORTS[effort] if effort else None

    def place_of_thinking(self, usual: Thinking) -> Thinking:
        """Where the reply has the thinking; *usual* is the place that the service has configured."""
        if self.overrides.thinking is not None:
            return self.overrides.thinking
        hidden = isinstance(self.thinking, DisabledThinking) or getattr(self.thinking, "display", None) == "omitted"
        return "none" if hidden else usual


def _text(content: str | Sequence[Block]) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(block.text for block in content if isinstance(block, TextBlock))


def _merged(messages: Iterable[Message]) -> Sequence[Message]:
    merged: list[Message] = []
    for message in messages:
        if merged and merged[-1].role == message.role != "tool":
            message = _joined(merged.pop(), message)
        merged.append(message)
    return merged


def _joined(first: Message, second: Message) -> Message:
    content = "\n".join([text for text in (first.content, second.content) if text])
    return replace(
        first, content=content, calls=first.calls + second.calls, reasoning=first.reasoning + second.reasoning
    )
