"""OpenAI's chat API and the runs of the page: the schemas of requests, and the replies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Literal, TypeAlias

from pydantic import Field

from stepspec.orchestrator.chain import Message, Toolset
from stepspec.orchestrator.events import Drafted
from stepspec.orchestrator.trace import Moment, dump

from ..errors import ApiError, bad_request
from ..json_types import JsonFields, JsonObject
from ..records import RunResult
from . import deltas
from .deltas import Delta, written_arguments
from .reply_format import PROGRESS_EVENTS, ApiReply, ReplyFormat, RunItem
from .schemas import (
    CallId,
    Content,
    Effort,
    Items,
    ModelName,
    Nothing,
    Offered,
    OpenaiRequest,
    Part,
    PlainFormat,
    Positive,
    Request,
    Schema,
    Stop,
    Stops,
    Text,
    ToolCallPart,
    ToolPart,
    Verbosity,
    Wanted,
    accepting,
    joined_text,
    spoken,
)


@accepting(
    "annotations",  # of an earlier answer
    "parsed",  # the value that OpenAI's SDK parsed from the content
    "provider_specific_fields",  # LiteLLM's second copy of the reasoning
)
class BaseTurn(Part):
    """A message of the conversation."""

    name: Text = ""
    """The name of the speaker."""


class SpokenTurn(BaseTurn):
    """A message that is no earlier answer and no result of a call."""

    role: Literal["system", "developer", "user"]
    """Who speaks."""
    content: Content
    """The text."""

    @property
    def message(self) -> Message:
        return replace(spoken(self.role, self.content), name=self.name)


class AnswerTurn(BaseTurn):
    """
    An earlier answer.

    The chat template decides whether the models read the reasoning.
    """

    role: Literal["assistant"]
    """Who speaks."""
    content: Content = Field([])
    """The text."""
    reasoning: Text = ""
    """The reasoning."""
    reasoning_content: Text = ""
    """The older name of *reasoning*. It is read if *reasoning* is empty."""
    refusal: Text = ""
    """Why the model refused to answer. The models read this text if the content is empty."""
    audio: Nothing = None
    """Only null and empty values are accepted."""
    function_call: Nothing = None
    """Only null and empty values are accepted."""
    tool_calls: Items[ToolCallPart] = Field([])
    """The calls."""

    @property
    def message(self) -> Message:
        return Message(
            "assistant",
            joined_text(self.content) or self.refusal,
            calls=tuple([call.call for call in self.tool_calls]),
            reasoning=self.reasoning or self.reasoning_content,
            name=self.name,
        )


class ResultTurn(BaseTurn):
    """The result of a call."""

    role: Literal["tool"]
    """Who speaks."""
    content: Content = Field([])
    """The result."""
    tool_call_id: CallId
    """The id of the call."""

    @property
    def message(self) -> Message:
        content = joined_text(self.content)
        return Message("tool", content, call_id=self.tool_call_id, name=self.name)


Turn: TypeAlias = Annotated[SpokenTurn | AnswerTurn | ResultTurn, Field(discriminator="role")]


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
    json_schema: Schema
    """The schema."""

    @property
    def wanted_format(self) -> JsonObject:
        return self.json_schema.wanted_format


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
    response_format: Annotated[PlainFormat | SchemaJson, Field(discriminator="type")] = PlainFormat(
        type="text"
    )
    """The form of the answer."""
    tools: Offered[ToolPart] = Field([])
    """The tools that the answer may call."""
    tool_choice: Literal["none", "auto", "required"] | ToolPart = "auto"
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
        return Wanted(
            tuple([turn.message for turn in self.messages]),
            tokens=new or old,
            effort=self.reasoning_effort,
            stops=[self.stop] if isinstance(self.stop, str) else self.stop,
            format=self.response_format.wanted_format,
            tools=Toolset(
                tuple([tool.function.tool for tool in self.tools]),
                choice.function.name if isinstance(choice, ToolPart) else choice,
                self.parallel_tool_calls,
                named=isinstance(choice, ToolPart),
                live=self.stream,
            ),
            choices=self.n,
        )


class LiveRequest(Request):
    """The body of a request from the page."""

    problem: Annotated[Text, Field(min_length=1)]
    """The problem to solve."""
    model: ModelName = "auto"
    """The name of a method."""

    @property
    def wanted(self) -> Wanted:
        return Wanted((Message("user", self.problem),), "problem")


class ChatReply(ApiReply[ChatRequest]):
    """The `ReplyFormat` of OpenAI's chat API. Each run of a request is a choice of the reply."""

    async def opening(self) -> bytes:
        empty = {"role": "assistant", "content": ""}
        return b"".join([self._chunk(choice, empty) for choice in range(len(self._builders))])

    def render(self, item: RunItem) -> bytes:
        chunks = super().render(item)
        if isinstance(item, RunResult):
            reason = deltas.finish_reason(item.solution)
            last = _choice(item.choice, reason, delta={})
            chunks += self._event([last], **self._runs.extension(item.choice))
        return chunks

    async def closing(self) -> bytes:
        if not self._body.stream_options.include_usage:
            return deltas.DONE
        return self._event([], usage=await self._runs.usage()) + deltas.DONE

    def failed(self, error: ApiError, body: bytes) -> bytes:
        return deltas.OPENAI_ERROR_EVENT % body

    async def body(self) -> JsonObject:
        choices = range(len(self._builders))
        reply = {
            "object": "chat.completion",
            "choices": [self._choice(choice) for choice in choices],
            "usage": await self._runs.usage(),
        }
        return self._head | reply | self._runs.extension(*choices)

    @property
    def _head(self) -> JsonObject:
        """The fields that a completion and the events of a stream share."""
        return {
            "id": f"chatcmpl-{self._request_id}",
            "created": self._created,
            "model": self._body.model,
        }

    def _choice(self, choice: int) -> JsonObject:
        solution = self._runs.solutions[choice]
        message: JsonObject = {"role": "assistant", "refusal": None, **self._builders[choice].texts}
        if solution.calls:
            message["content"] = message["content"] or None
            message["tool_calls"] = [
                _call(call.id, name=call.name, arguments=written_arguments(call))
                for call in solution.calls
            ]
        return _choice(choice, deltas.finish_reason(solution), message=message)

    def _render_delta(self, choice: int, delta: Delta) -> bytes:
        piece = delta.call
        if piece is not None:
            named = {"name": piece.name} if piece.name else {}
            call = _call(piece.id, **named, arguments=piece.arguments)
            return self._chunk(choice, {"tool_calls": [{"index": piece.index, **call}]})
        about = {"stepspec": delta.step} if delta.step else {}
        return self._chunk(choice, delta.fields, **about)

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
