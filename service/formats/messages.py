"""
Anthropic's Messages API: the schema of a request, its meaning for a method, and the reply.

Unknown fields are refused. Fields about Anthropic's own caches and tiers are accepted without
effect. A reply is a message of content blocks, in one piece or as events. The thinking is the first
block, and the answer is the next block. In a stream, each verified step is an event of the
thinking, with the field ``stepspec``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import Annotated, Any, ClassVar, Literal, TypeAlias, TypeVar

from pydantic import Field

from stepspec.orchestrator.answer import first_stop
from stepspec.orchestrator.chain import Message, Tool, ToolCall
from stepspec.orchestrator.errors import near
from stepspec.orchestrator.events import Calling
from stepspec.orchestrator.json_values import is_json, read_json
from stepspec.orchestrator.solution import Solution

from ..errors import bad_request
from ..json_types import JsonFields, JsonObject
from ..records import ServiceRequest
from ..settings import Thinking
from . import deltas
from .deltas import named_event
from .reply_format import MessageParts, RequestRuns, RunItem, SingleReply
from .schemas import (
    SERVED_MODEL_HINT,
    ApiRequest,
    CallId,
    Function,
    Items,
    JsonSchema,
    ModelName,
    Name,
    Nothing,
    Part,
    Positive,
    Schema,
    Stops,
    ToolReferencePart,
    Wanted,
    accepting,
    arguments_object,
    joined_text,
    refusing_others,
    system_text,
)

B = TypeVar("B")

SERVER_TOOLS_HINT = (
    "the service runs no tools; send tools with an input_schema, which the client runs"
)
TEXT_ONLY_HINT = f"the methods read text only; send text blocks, or {SERVED_MODEL_HINT}"


class TextBlock(Part):
    """A block of text."""

    type: Literal["text"]
    """The kind of the block."""
    text: str
    """The text."""
    citations: Nothing = None
    """Only null and the empty list are accepted."""

    @property
    def message(self) -> Message:
        return Message("user", self.text)


@accepting("signature")  # of the server that wrote the thinking
class ThinkingBlock(Part):
    """The thinking of an earlier answer."""

    type: Literal["thinking"]
    """The kind of the block."""
    thinking: str
    """The text of the thinking."""

    @property
    def message(self) -> Message:
        return Message("assistant", "", reasoning=self.thinking)


@accepting("data")  # the encrypted thinking
class RedactedThinkingBlock(Part):
    """Encrypted thinking of an earlier answer. The encrypted thinking is dropped."""

    type: Literal["redacted_thinking"]
    """The kind of the block."""
    message: ClassVar[Message] = Message("assistant", "")
    """An empty message. `_merged` joins it with the rest of the answer."""


ROLE_OF_BLOCK = {
    "tool_use": "assistant",
    "thinking": "assistant",
    "redacted_thinking": "assistant",
    "tool_result": "user",
    "tool_addition": "system",
    "tool_removal": "system",
}
"""For each type of block: the role of the messages that may contain it."""


def _hint(kind: str) -> str:
    """Return a hint for a block in a message that does not allow this type of block."""
    if kind in ROLE_OF_BLOCK:
        return f"it belongs into a message of the {ROLE_OF_BLOCK[kind]}"
    # for example web_search_tool_result, the result of a tool that Anthropic's server runs
    return SERVER_TOOLS_HINT if "_tool_" in kind else TEXT_ONLY_HINT


_accepting_blocks = partial(refusing_others, "block", hint=_hint)
"""Return a validator that accepts only blocks of the given types."""

ResultBlock: TypeAlias = Annotated[
    TextBlock | ToolReferencePart,
    Field(discriminator="type"),
    _accepting_blocks("text", "tool_reference"),
]


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
    name: str
    """The name of the tool. Models sometimes call tools that do not exist."""
    input: Any = None
    """The arguments of the call."""

    @property
    def message(self) -> Message:
        call = ToolCall(self.id, self.name, arguments_object(self.input))
        return Message("assistant", "", (call,))


@accepting("toolset_name")
class ToolResultBlock(Part):
    """The result of a call."""

    type: Literal["tool_result"]
    """The kind of the block."""
    tool_use_id: CallId
    """The id of the call."""
    content: str | Items[ResultBlock] | None = None
    """The result. None: an empty text."""
    is_error: bool | None = None
    """Whether the tool failed. The content is then the error of the tool."""

    @property
    def message(self) -> Message:
        text = joined_text(self.content or "")
        if self.is_error:
            text = f"Error: {text}"
        return Message("tool", text, call_id=self.tool_use_id)


UserBlock: TypeAlias = Annotated[
    TextBlock | ToolResultBlock | ToolReferencePart,
    Field(discriminator="type"),
    _accepting_blocks("text", "tool_result", "tool_reference"),
]
AssistantBlock: TypeAlias = Annotated[
    TextBlock | ThinkingBlock | RedactedThinkingBlock | ToolUseBlock,
    Field(discriminator="type"),
    _accepting_blocks("text", "thinking", "redacted_thinking", "tool_use"),
]


def blocks_of(content: str | Sequence[B]) -> Sequence[B | TextBlock]:
    """Return *content* as blocks."""
    return [TextBlock(type="text", text=content)] if isinstance(content, str) else content


class UserTurn(Part):
    """A message of the user."""

    role: Literal["user"]
    """Who speaks."""
    content: str | Annotated[Items[UserBlock], Field(min_length=1)]
    """The text, or blocks of text and of results of calls."""

    @property
    def messages(self) -> Sequence[Message]:
        blocks = blocks_of(self.content)
        # drop references to tools: the list of tools describes the tools already
        return [block.message for block in blocks if not isinstance(block, ToolReferencePart)]


class AssistantTurn(Part):
    """An earlier answer. The chat template decides whether the models read the thinking in it."""

    role: Literal["assistant"]
    """Who speaks."""
    content: str | Items[AssistantBlock]
    """The text, or the blocks of the answer."""

    @property
    def messages(self) -> Sequence[Message]:
        messages = [block.message for block in blocks_of(self.content)]
        # `TextBlock.message` has the role of the user
        as_assistant = [replace(message, role="assistant") for message in messages]
        # With the empty message, an answer without blocks gives a message, too. `_merged` joins
        # the messages of an answer.
        return [Message("assistant", ""), *as_assistant]


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


class OutputFormat(Schema):
    """An answer that is JSON and matches a schema."""

    type: Literal["json_schema"]
    """The kind of the format."""
    wanted_format: JsonSchema
    """The JSON schema, which is the value for `Wanted.format`."""


@accepting("task_budget")  # a hint about the whole task
class OutputConfig(Part):
    """The effort of the thinking, and the form of the answer."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    """The effort of the thinking. None: the whole budget."""
    format: OutputFormat | None = None
    """The form of the answer. None: free text."""


class UserMetadata(Part):
    """The user for whom the client makes the request."""

    user_id: Annotated[str, Field(max_length=512)] | None = None
    """The client's name for its user, for the log."""


@accepting(
    "eager_input_streaming",  # a hint for Anthropic's streams
    "defer_loading",  # whether the model has to search for the tool: here the model reads all tools
    "allowed_callers",  # the programs that may call the tool
    "input_examples",
)
class InputSchemaTool(Function):
    """A tool that the answer may call. The client runs it."""

    type: Literal["custom"] | None = None
    """The kind of the tool."""
    input_schema: JsonObject
    """The JSON schema of the arguments."""

    @property
    def tool(self) -> Tool:
        return self.with_schema(self.input_schema)


OfferedTool: TypeAlias = Annotated[
    InputSchemaTool, refusing_others("tool", "custom", hint=SERVER_TOOLS_HINT)
]


class ReferencedTool(Part):
    """The name of a tool that the list of tools describes."""

    type: Literal["tool_reference"]
    """The kind of the description."""
    name: Name
    """The name of the tool."""


class DefinedTool(Part):
    """The description of a tool that is not in the list of tools."""

    type: Literal["tool_definition"]
    """The kind of the description."""
    definition: OfferedTool
    """The tool."""


class ToolChangeBlock(Part):
    """From this message on, the answer may call one more tool, or may not call one of the tools."""

    type: Literal["tool_addition", "tool_removal"]
    """The kind of the block."""
    tool: Annotated[ReferencedTool | DefinedTool, Field(discriminator="type")]
    """The tool."""


SystemBlock: TypeAlias = Annotated[
    TextBlock | ToolChangeBlock,
    Field(discriminator="type"),
    _accepting_blocks("text", "tool_addition", "tool_removal"),
]


@accepting(
    "clear_at",  # whether later requests may leave the instructions out
    "output_config",  # the effort from this message on
)
class SystemTurn(Part):
    """Instructions within the conversation, and changes of the tools."""

    role: Literal["system"]
    """Who speaks."""
    content: str | Items[SystemBlock]
    """The text, or blocks of text and of changes of the tools."""

    @property
    def messages(self) -> Sequence[Message]:
        blocks = blocks_of(self.content)
        return _instructions([block.text for block in blocks if isinstance(block, TextBlock)])

    @property
    def changes(self) -> list[ToolChangeBlock]:
        return [block for block in blocks_of(self.content) if isinstance(block, ToolChangeBlock)]


MessageTurn: TypeAlias = Annotated[
    UserTurn | AssistantTurn | SystemTurn, Field(discriminator="role")
]


def _instructions(texts: Iterable[str]) -> Sequence[Message]:
    """Return one system message with *texts*. Return no message if all texts are empty."""
    text = system_text(texts)
    return (Message("system", text),) if text else ()


class ToolChoice(Part):
    """Whether the answer calls tools."""

    type: Literal["auto", "any", "none", "tool"]
    """
    "auto": the model decides. "any": at least one call. "none": no call. "tool": a call of the
    named tool.
    """
    name: Name | None = None
    """The name of the tool that the answer has to call, if the type is "tool"."""
    disable_parallel_tool_use: bool | None = None
    """Whether the answer may have only one call."""

    @property
    def wanted(self) -> str:
        """
        The value for `Wanted.tool_choice`: "auto", "required", "none", or the name of the tool.

        Raise `ApiError` if the type is "tool" and the name is missing.
        """
        if self.type == "tool":
            if self.name is None:
                raise bad_request(
                    "tool_choice.name is missing",
                    "tool_choice.name",
                    "missing",
                )
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
    system: str | Items[Annotated[TextBlock, _accepting_blocks("text")]] = ""
    """Instructions before the conversation."""
    thinking: ThinkingConfig = ThinkingConfig(type="enabled")
    """How the answer thinks."""
    output_config: OutputConfig = OutputConfig()
    """The effort of the thinking, and the form of the answer."""
    tools: Items[OfferedTool] = Field([])
    """The tools. MCP servers have many tools, so hundreds are allowed, as in Anthropic's API."""
    tool_choice: ToolChoice = ToolChoice(type="auto")
    """Whether the answer calls tools."""
    mcp_servers: Nothing = None
    """Only the empty list is accepted: the service runs no tools."""
    speed: Literal["standard"] | None = None
    """Only the standard speed is accepted. It has no effect."""

    @property
    def wanted(self) -> Wanted:
        instructions = [block.text for block in blocks_of(self.system)]
        turns = [message for turn in self.messages for message in turn.messages]
        format = self.output_config.format
        return Wanted(
            tuple(_merged([*_instructions(instructions), *turns])),
            format=format.wanted_format if format else None,
            tools=tuple([tool.tool for tool in self._offered()]),
            tool_choice=self.tool_choice.wanted,
            tool_named=self.tool_choice.type == "tool",
            parallel=not self.tool_choice.disable_parallel_tool_use,
        )

    def _offered(self) -> list[InputSchemaTool]:
        """
        Return the tools after all changes within the conversation.

        Chat templates have only one list of tools for the whole conversation. Raise `ApiError` if a
        message adds or removes an unknown tool.
        """
        changes = [
            change
            for turn in self.messages
            if isinstance(turn, SystemTurn)
            for change in turn.changes
        ]
        if not changes:
            # return the list itself: the dict below would hide a name that occurs twice, which
            # `Resolver` has to refuse
            return self.tools
        tools = {tool.name: tool for tool in self.tools}
        removed: set[str] = set()
        for change in changes:
            if isinstance(change.tool, DefinedTool):
                name = change.tool.definition.name
                tools[name] = change.tool.definition
            else:
                name = change.tool.name
            if name not in tools:
                hint = near(name, tools)
                raise bad_request(
                    f"{change.type} names {name!r}, which is no tool of the request{hint}",
                    "messages",
                )
            if change.type == "tool_removal":
                removed.add(name)
            else:
                removed.discard(name)
        return [tool for name, tool in tools.items() if name not in removed]


def _merged(messages: Iterable[Message]) -> Iterator[Message]:
    """Join consecutive *messages* of the same role, as Anthropic's API does."""
    for role, group in groupby(messages, lambda message: message.role):
        if role == "tool":  # each result of a call stays a separate message
            yield from group
            continue
        members = [*group]
        yield Message(
            members[0].role,
            "\n".join(filter(None, [message.content for message in members])),
            tuple([call for message in members for call in message.calls]),
            reasoning="".join([message.reasoning for message in members]),
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
            rest_for_answer=True,
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


class ContentBlocks(MessageParts):
    """The content blocks of one message, and the events of a stream that build them."""

    thinking_kind = "thinking"
    text_kind = "text"

    def __init__(self) -> None:
        super().__init__()
        self._complete = True  # whether the last block is complete, or there is no block

    def close(self) -> bytes:
        if self._complete:
            return b""
        self._complete = True
        events = b""
        if self._kind == "thinking":
            self._last["signature"] = SIGNATURE
            events = self._delta({"type": "signature_delta", "signature": SIGNATURE})
        return events + named_event("content_block_stop", index=self._index)

    def finish(self, *, cut: bool) -> bytes:
        """
        Complete the last block. Change `parts` into the content of a complete message.

        Return the events that complete a stream. A message without any block gets an empty text,
        because clients read the first block without a check. If the answer was *cut* off, calls
        whose arguments are no JSON are removed from `parts`. A stream cannot remove these calls,
        because it announced them earlier.
        """
        events = self.close()
        if not self.parts:
            return self._open("text") + self.close()
        kept: list[JsonObject] = []
        for block in self.parts:
            if block["type"] == "tool_use":
                arguments = block["input"]
                if cut and not is_json(arguments):
                    continue
                block["input"] = read_json(arguments_object(arguments))
            kept.append(block)
        self.parts = kept or [{"type": "text", "text": ""}]
        return events

    def _open(self, kind: str) -> bytes:
        fields = {"signature": ""} if kind == "thinking" else {}
        # in Anthropic's API, the field with the text has the name of the type
        return self._start({"type": kind, kind: ""}, fields)

    def _add_text(self, text: str, step_fields: JsonFields) -> bytes:
        kind = self._last["type"]
        self._last[kind] += text
        return self._delta({"type": f"{kind}_delta", kind: text}, **step_fields)

    def _open_call(self, piece: Calling) -> bytes:
        # `finish` parses the text of the arguments. Events always have an object instead.
        block = {"type": "tool_use", "id": piece.id, "name": piece.name, "input": ""}
        return self._start(block, {"input": {}})

    def _add_arguments(self, arguments: str) -> bytes:
        self._last["input"] += arguments
        return self._delta({"type": "input_json_delta", "partial_json": arguments})

    def _start(self, block: JsonObject, event_fields: JsonFields) -> bytes:
        """
        Add *block*. Return the start event.

        The event has the fields of *block*. *event_fields* replace some of these fields.
        """
        self.parts.append(block)
        self._complete = False
        return named_event(
            "content_block_start",
            index=self._index,
            content_block={**block, **event_fields},
        )

    def _delta(self, delta: JsonFields, **fields: Any) -> bytes:
        return named_event(
            "content_block_delta",
            index=self._index,
            delta=delta,
            **fields,
        )


class MessagesReply(SingleReply):
    """The `ReplyFormat` of Anthropic's Messages API. A request has one run."""

    keep_alive = PING

    def __init__(
        self,
        runs: RequestRuns,
        request: ServiceRequest,
        body: MessagesRequest,
        thinking: Thinking,
    ) -> None:
        super().__init__(runs, request, thinking)
        self._model = body.model
        self._content = ContentBlocks()

    async def opening(self) -> bytes:
        usage = _usage(deltas.usage(await self._runs.prompt_tokens(), []))
        message = self._message() | {"usage": usage | TIER}
        return named_event("message_start", message=message) + PING

    def render(self, item: RunItem) -> bytes:
        return self._content.add(self._builder.add(item))

    async def closing(self) -> bytes:
        events = self._finish()
        usage = _usage(await self._runs.usage())
        events += named_event(
            "message_delta",
            delta=self._end_fields(),
            usage=usage,
            **self._runs.extension(),
        )
        return events + named_event("message_stop")

    async def body(self) -> JsonObject:
        self._finish()
        usage = _usage(await self._runs.usage()) | TIER
        return self._message() | self._end_fields() | {"usage": usage} | self._runs.extension()

    def _finish(self) -> bytes:
        return self._content.finish(cut=self._solution.finish_reason != "stop")

    def _end_fields(self) -> JsonObject:
        """Return the fields of the message that say why it ended."""
        (observer,) = self._runs.counts
        found = first_stop(observer.text, self._run_request.stop)
        stop_sequence = None
        if found is not None:
            _, stop_sequence = found
        reason = stop_reason(self._solution, stop_sequence)
        return {
            "stop_reason": reason,
            "stop_sequence": stop_sequence if reason == "stop_sequence" else None,
        }

    def _message(self) -> JsonObject:
        return {
            "id": f"msg_{self._id}",
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": self._content.parts,
            "stop_reason": None,
            "stop_sequence": None,
        }


def stop_reason(solution: Solution, stop_sequence: str | None) -> str:
    """
    Return Anthropic's reason for the end of a message.

    *stop_sequence* is the text that ended the answer. None: no stop sequence ended it.
    """
    if solution.finish_reason == "context":
        return "model_context_window_exceeded"
    if solution.finish_reason != "stop":
        return "max_tokens"
    if solution.calls:
        return "tool_use"
    return "end_turn" if stop_sequence is None else "stop_sequence"


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
