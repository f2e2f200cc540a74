"""
The bodies of requests of Anthropic's Messages API, field by field, and what they mean for a method.

Unknown fields are refused, as in `schemas`. Hints about Anthropic's own caches and tiers are accepted without effect.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Annotated, Any, ClassVar, Literal, TypeAlias, cast

from pydantic import BeforeValidator, ConfigDict, Field

from ..chain import Message
from .schemas import SERVED, TOOLS, Effort, Empty, Part, Positive, Request
from .settings import Thinking

BILLING = "x-anthropic-billing-header"
"""The beginning of a system block that Claude Code changes with every request, so that no prefix cache could hit."""

EFFORTS: dict[str, Effort] = {"low": "low", "medium": "medium", "high": "high", "xhigh": "xhigh", "max": "xhigh"}
TOOL_BLOCKS = ("tool_use", "tool_result")
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
    citations: Empty = None


class ThinkingBlock(Block):
    """The thinking of an earlier answer; its signature is not checked."""

    type: Literal["thinking"]
    thinking: str
    signature: str | None = None


class RedactedThinkingBlock(Block):
    """Thinking of an earlier answer that cannot be read; it is dropped."""

    type: Literal["redacted_thinking"]
    data: str


def _supported(block: object, kinds: Sequence[str]) -> object:
    """Return *block* if it is of one of these *kinds*. Raise `ValueError` with a cure."""
    if not isinstance(block, dict):
        return block
    kind = cast("dict[str, Any]", block).get("type")
    if kind in kinds or not isinstance(kind, str):
        return cast("dict[str, Any]", block)
    if kind in TOOL_BLOCKS:
        raise ValueError(f"a block of type {kind!r}: {TOOLS}")
    raise ValueError(f"a block of type {kind!r}: {TEXT_ONLY}")


def _plain(block: object) -> object:
    return _supported(block, ("text",))


def _of_assistant(block: object) -> object:
    return _supported(block, ("text", "thinking", "redacted_thinking"))


PlainBlock: TypeAlias = Annotated[TextBlock, BeforeValidator(_plain)]
AssistantBlock: TypeAlias = Annotated[
    Annotated[TextBlock | ThinkingBlock | RedactedThinkingBlock, Field(discriminator="type")],
    BeforeValidator(_of_assistant),
]


class UserTurn(Part):
    """A message of the user."""

    role: Literal["user"]
    content: str | list[PlainBlock]

    @property
    def messages(self) -> tuple[Message, ...]:
        return (Message("user", _text(self.content)),)


class SystemTurn(Part):
    """Instructions within the conversation."""

    role: Literal["system"]
    content: str | list[PlainBlock]

    @property
    def messages(self) -> tuple[Message, ...]:
        return (Message("system", _text(self.content)),)


class AssistantTurn(Part):
    """An earlier answer, as it was received: its thinking is dropped, as the models' own chat templates do."""

    role: Literal["assistant"]
    content: str | list[AssistantBlock]

    @property
    def messages(self) -> tuple[Message, ...]:
        return (Message("assistant", _text(self.content)),)


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

    edits: list[ClearThinking] | None = None


class Conversation(Part):
    """What the models read."""

    parts: ClassVar[tuple[type[Part], ...]] = (UserTurn, TextBlock, ThinkingBlock)

    model: Annotated[str, Field(min_length=1, max_length=512)]
    messages: Annotated[list[MessageTurn], Field(min_length=1)]
    system: str | list[PlainBlock] | None = None
    thinking: ThinkingConfig | None = None
    output_config: OutputConfig | None = None

    # Features that no method has; clients may send the values that turn them off.
    tools: Empty = None
    tool_choice: None = None
    mcp_servers: Empty = None

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


class CountTokensRequest(Conversation):
    """The body of a request to count tokens."""


class MessagesRequest(Conversation, Request):
    """The body of a message."""

    max_tokens: Positive
    stream: bool | None = None
    stop_sequences: list[str] | None = None
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


def _merged(messages: Iterable[Message]) -> Iterable[Message]:
    for _, group in groupby(messages, key=lambda message: message.role):
        first, *others = group
        yield replace(first, content="\n".join([message.content for message in (first, *others)])) if others else first
