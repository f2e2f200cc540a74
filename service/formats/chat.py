"""OpenAI's chat API and the runs of the page: the schemas of requests, and the replies."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Annotated, Literal, cast

from pydantic import Field, ValidationInfo, field_validator, model_validator

from stepspec.orchestrator.chain import Message
from stepspec.orchestrator.events import Drafted
from stepspec.orchestrator.trace import Moment, dump

from ..errors import ApiError, bad_request
from ..json_types import JsonFields, JsonObject
from ..records import RunResult, ServiceRequest
from ..settings import Thinking
from . import deltas
from .deltas import Delta, DeltaBuilder, written_arguments
from .reply_format import PROGRESS_EVENTS, ReplyFormat, RequestRuns, RunItem
from .schemas import (
    FUNCTION_TOOLS_HINT,
    AnyJson,
    CallId,
    Content,
    Effort,
    Items,
    ModelName,
    NamedSchema,
    NamedTool,
    Nothing,
    Offered,
    OpenaiRequest,
    Part,
    PlainText,
    Positive,
    Request,
    Stop,
    Stops,
    ToolCallPart,
    ToolPart,
    Verbosity,
    Wanted,
    accepting,
    refusing_others,
    spoken,
)


@accepting(
    "annotations",  # of an earlier answer
    "parsed",  # the value that OpenAI's SDK parsed from the content
    "provider_specific_fields",  # LiteLLM's second copy of the reasoning
)
class Turn(Part):
    """
    A message of the conversation: a text, an earlier answer with calls, or the result of a call.

    The chat template decides whether the models read the reasoning of an earlier answer.
    """

    role: Literal["system", "developer", "user", "assistant", "tool"]
    """Who speaks."""
    content: Content
    """The text, or its parts."""
    name: str | None = None
    """The name of the speaker."""
    reasoning: str | None = None
    """The reasoning of an earlier answer."""
    reasoning_content: str | None = None
    """The older name of *reasoning*. It is read if *reasoning* is empty."""
    refusal: str | None = None
    """Why the model refused to answer. The models read this text in place of the content."""
    audio: Nothing = None
    """Only null and empty values are accepted."""
    function_call: Nothing = None
    """Only null and empty values are accepted."""
    tool_calls: Items[ToolCallPart] | None = None
    """The calls of an earlier answer."""
    tool_call_id: Annotated[CallId | None, Field(validate_default=True)] = None
    """The id of the call, if this message is its result. None: the message is no result."""

    @model_validator(mode="before")
    @classmethod
    def _with_content(cls, turn: object) -> object:
        """Return *turn* with a content. Earlier answers and results of calls may have none."""
        if not isinstance(turn, dict):
            return turn
        fields = cast("JsonObject", turn)
        if fields.get("role") in ("assistant", "tool") and fields.get("content") is None:
            fields = {**fields, "content": ""}
        return fields

    @field_validator("tool_calls")
    @classmethod
    def _check_calls(
        cls,
        calls: list[ToolCallPart] | None,
        validated: ValidationInfo,
    ) -> list[ToolCallPart] | None:
        if calls and validated.data.get("role", "assistant") != "assistant":
            raise ValueError("only a message of the assistant makes calls: leave them out")
        return calls

    @field_validator("tool_call_id")
    @classmethod
    def _check_call_id(cls, call_id: str | None, validated: ValidationInfo) -> str | None:
        is_result = validated.data.get("role", "user") == "tool"
        if is_result != (call_id is not None):
            raise ValueError(
                "a message of the role tool, and no other, has a tool_call_id: the id of the call"
            )
        return call_id

    @property
    def message(self) -> Message:
        speaker, content = spoken(self.role, self.content)
        reasoning = self.reasoning or self.reasoning_content or ""
        return Message(
            speaker,
            content or self.refusal or "",
            calls=tuple([call.call for call in self.tool_calls or ()]),
            call_id=self.tool_call_id or "",
            reasoning=reasoning if speaker == "assistant" else "",
            name=self.name or "",
        )


@accepting(
    "include_obfuscation",  # whether events have a field of random length
    "continuous_usage_stats",  # whether each event has the usage so far
)
class StreamOptions(Part):
    """Options of a stream."""

    include_usage: bool = False
    """Whether the usage is the last event before ``[DONE]``."""


class SchemaJson(Part):
    """An answer that is JSON and matches a schema."""

    type: Literal["json_schema"]
    """The kind of the format."""
    json_schema: NamedSchema
    """The schema."""

    @property
    def wanted_format(self) -> JsonObject:
        return self.json_schema.wanted_format


class AllowedNames(Part):
    """The only tools that the answer may call."""

    mode: Literal["auto", "required"]
    """Whether the answer may ("auto") or has to ("required") call one of these tools."""
    tools: Offered[NamedTool]
    """The names of the tools."""


class AllowedTools(Part):
    """A choice that allows only some of the tools."""

    type: Literal["allowed_tools"]
    """The kind of the choice."""
    allowed_tools: AllowedNames
    """The tools."""


class ChatRequest(OpenaiRequest):
    """The body of a request for a chat completion. None: the field was left out."""

    messages: Annotated[Items[Turn], Field(min_length=1)]
    """The conversation."""
    stream_options: StreamOptions = StreamOptions()
    """Options of the stream."""
    n: Positive = 1
    """The number of answers, which OpenAI calls choices."""
    stop: Stop | Stops = Field([])
    """The texts that end the answer."""
    max_tokens: Positive | None = None
    """The most tokens of the thinking and the answer together."""
    max_completion_tokens: Positive | None = None
    """OpenAI's newer name of *max_tokens*."""
    reasoning_effort: Effort | None = None
    """The effort of the thinking. None: the whole budget."""
    response_format: Annotated[PlainText | AnyJson | SchemaJson, Field(discriminator="type")] = (
        PlainText(type="text")
    )
    """The form of the answer."""
    tools: Offered[
        Annotated[
            ToolPart,
            refusing_others(
                "tool",
                "function",
                hint=FUNCTION_TOOLS_HINT,
            ),
        ]
    ] = Field([])
    """The tools that the answer may call."""
    tool_choice: Literal["none", "auto", "required"] | NamedTool | AllowedTools = "auto"
    """Whether the answer calls tools."""

    verbosity: Verbosity = None
    """How long the answer should be. It has no effect."""
    modalities: Items[Literal["text"]] | None = None
    """Only text is accepted."""

    @property
    def wanted(self) -> Wanted:
        if self.stream_options != StreamOptions() and not self.stream:
            raise bad_request("stream_options is for streams: set stream to true", "stream_options")
        old = self.max_tokens
        new = self.max_completion_tokens
        if old and new and old != new:
            raise bad_request(
                "max_tokens and max_completion_tokens differ: send one of them", "max_tokens"
            )
        choice = self.tool_choice
        allowed: tuple[str, ...] = ()
        if isinstance(choice, AllowedTools):
            allowed = tuple([tool.function.name for tool in choice.allowed_tools.tools])
            choice = choice.allowed_tools.mode
        return Wanted(
            tuple([turn.message for turn in self.messages]),
            tokens=new or old,
            tokens_name="max_completion_tokens" if new else "max_tokens",
            min_tokens=self.min_tokens,
            effort=self.reasoning_effort,
            stops=[self.stop] if isinstance(self.stop, str) else self.stop,
            format=self.response_format.wanted_format,
            tools=tuple([tool.function.tool for tool in self.tools]),
            tool_choice=choice.function.name if isinstance(choice, NamedTool) else choice,
            tool_named=isinstance(choice, NamedTool),
            allowed=allowed,
            parallel=self.parallel_tool_calls,
            choices=self.n,
        )


class LiveRequest(Request):
    """The body of a request from the page."""

    problem: Annotated[str, Field(min_length=1)]
    """The problem to solve."""
    model: ModelName = "auto"
    """The name of a method."""

    @property
    def wanted(self) -> Wanted:
        return Wanted((Message("user", self.problem),), "problem")


class ChatReply(ReplyFormat):
    """The `ReplyFormat` of OpenAI's chat API. Each run of a request is a choice of the reply."""

    def __init__(
        self,
        runs: RequestRuns,
        request: ServiceRequest,
        chat: ChatRequest,
        thinking: Thinking,
    ) -> None:
        self._runs = runs
        self._chat = chat
        self._head = {
            "id": f"chatcmpl-{request.id}",
            "created": int(time.time()),
            "model": chat.model,
        }
        self._builders = [DeltaBuilder(thinking) for _ in runs.run_requests]
        # the texts of each message by field, by choice
        fields = ("content", *deltas.FIELDS[thinking]) if runs.thinks else ("content",)
        self._texts = [dict.fromkeys(fields, "") for _ in runs.run_requests]

    async def opening(self) -> bytes:
        empty = {"role": "assistant", "content": ""}
        return b"".join([self._chunk(choice, empty) for choice in range(len(self._texts))])

    def render(self, item: RunItem) -> bytes:
        choice = item.choice
        delta = self._builders[choice].add(item)
        if not self._chat.stream:
            texts = self._texts[choice]
            for name, text in delta.fields.items():
                texts[name] = texts.get(name, "") + text
            return b""
        chunks = self._delta_chunks(choice, delta)
        if isinstance(item, RunResult):
            reason = deltas.finish_reason(item.solution)
            last = _choice(choice, reason, delta={})
            chunks += self._event([last], **self._runs.extension([choice]))
        return chunks

    async def closing(self) -> bytes:
        if not self._chat.stream_options.include_usage:
            return deltas.DONE
        return self._event([], usage=await self._runs.usage()) + deltas.DONE

    def failed(self, error: ApiError, body: bytes) -> bytes:
        return deltas.OPENAI_ERROR_EVENT % body

    async def body(self) -> JsonObject:
        choices = [self._choice(choice) for choice in range(len(self._texts))]
        usage = await self._runs.usage()
        reply = {**self._head, "object": "chat.completion", "choices": choices, "usage": usage}
        return reply | self._runs.extension(range(len(self._texts)))

    def _choice(self, choice: int) -> JsonObject:
        solution = self._runs.solutions[choice]
        message: JsonObject = {"role": "assistant", "refusal": None, **self._texts[choice]}
        if solution.calls:
            message["content"] = message["content"] or None
            message["tool_calls"] = [
                _call(call.id, name=call.name, arguments=written_arguments(call))
                for call in solution.calls
            ]
        return _choice(choice, deltas.finish_reason(solution), message=message)

    def _delta_chunks(self, choice: int, delta: Delta) -> bytes:
        chunks = b""
        if delta.step is not None:
            chunks = self._chunk(choice, delta.fields, stepspec=delta.step)
        elif delta.fields:
            chunks = self._chunk(choice, delta.fields)
        for piece in (*delta.ended, *delta.calls):
            named = {"name": piece.name} if piece.name else {}
            call = _call(piece.id, **named, arguments=piece.arguments)
            chunks += self._chunk(choice, {"tool_calls": [{"index": piece.index, **call}]})
        return chunks

    def _chunk(self, choice: int, delta: JsonFields, **fields: object) -> bytes:
        return self._event([_choice(choice, None, delta=delta) | fields])

    def _event(self, choices: Sequence[JsonFields], **fields: object) -> bytes:
        """Return an event of the stream with *choices* and further *fields*."""
        chunk = {**self._head, "object": "chat.completion.chunk", "choices": choices, **fields}
        return deltas.event(chunk)


def _choice(index: int, finish_reason: str | None, **content: object) -> JsonObject:
    return {"index": index, **content, "logprobs": None, "finish_reason": finish_reason}


def _call(call_id: str, **function: str) -> JsonObject:
    """
    Return a call of *function*, or a piece of a call.

    In a stream, only the first piece of a call has the id. All others have "".
    """
    named = {"id": call_id, "type": "function"} if call_id else {}
    return {**named, "function": function}


class LiveReply(ReplyFormat):
    """
    The `ReplyFormat` of the page, which shows a run.

    Each event of the run is written as in the file of a trace. The last event is the solution.
    """

    starts_at = (Drafted, *PROGRESS_EVENTS)

    def render(self, item: RunItem) -> bytes:
        if isinstance(item, RunResult):
            return b"event: solution\n" + deltas.event(deltas.solution(item.solution))
        return b"data: " + dump(Moment(item.at, item.event)) + b"\n"

    async def body(self) -> JsonObject:
        raise NotImplementedError("a run of the page is always a stream")
