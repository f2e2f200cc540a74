"""
Chat completions and the page's own runs: what a request may contain, and how its runs are answered.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias, cast

from pydantic import Field, ValidationInfo, field_validator, model_validator

from stepspec.orchestrator.chain import Message
from stepspec.orchestrator.events import Drafted
from stepspec.orchestrator.trace import Moment, dump

from ..errors import ApiError, bad_request
from ..records import RunResult, ServiceRequest
from ..settings import Thinking
from . import deltas
from .deltas import Delta, DeltaBuilder, written_arguments
from .reply_format import PROGRESS_EVENTS, RequestRuns, RunItem
from .schemas import (
    SPEAKERS,
    AnyJson,
    CallId,
    Content,
    Effort,
    Empty,
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
    Wanted,
    any_json,
    joined_text,
    without_billing,
)

COMPLETION = "chat.completion"
CHUNK = "chat.completion.chunk"


class Turn(Part):
    """
    A message of the conversation: of the client, of an earlier answer with its calls, or with the
    result of a call.

    The reasoning of an earlier answer may be sent back in either field; the models' own chat
    templates keep or drop it. Dropped are ``provider_specific_fields``, in which LiteLLM keeps it a
    second time, and annotations.
    """

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Content
    name: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    refusal: str | None = None
    """Why an earlier answer has no content; the models read it in its place."""
    annotations: Items[Any] | None = None
    audio: Nothing = None
    function_call: Nothing = None
    tool_calls: Items[ToolCallPart] | None = None
    tool_call_id: Annotated[CallId | None, Field(validate_default=True)] = None
    provider_specific_fields: dict[str, Any] | None = None
    parsed: Any = None  # by OpenAI's SDK, from the content

    @model_validator(mode="before")
    @classmethod
    def _as_clients_keep_it(cls, turn: object) -> object:
        """An earlier answer, and the result of a call, may have no content."""
        if not isinstance(turn, dict):
            return turn
        fields = cast("dict[str, Any]", turn)
        role = cast("dict[str, Any]", turn).get("role")
        if role in ("assistant", "tool") and fields.get("content") is None:
            fields = {**fields, "content": ""}
        return fields

    @field_validator("tool_calls")
    @classmethod
    def _by_the_assistant(
        cls, calls: list[ToolCallPart] | None, known: ValidationInfo
    ) -> list[ToolCallPart] | None:
        if calls and known.data.get("role", "assistant") != "assistant":
            raise ValueError("only a message of the assistant makes calls: leave them out")
        return calls

    @field_validator("tool_call_id")
    @classmethod
    def _of_a_result(cls, call_id: str | None, known: ValidationInfo) -> str | None:
        if (known.data.get("role", "user") == "tool") != (call_id is not None):
            raise ValueError(
                "a message of the role tool, and no other, has a tool_call_id: the id of the call"
            )
        return call_id

    @property
    def message(self) -> Message:
        reasoning = (
            (self.reasoning or self.reasoning_content or "") if self.role == "assistant" else ""
        )
        calls = tuple([call.call for call in self.tool_calls or ()])
        content = joined_text(self.content) or self.refusal or ""
        speaker = SPEAKERS[self.role]
        return Message(
            speaker,
            without_billing(content) if speaker == "system" else content,
            calls,
            self.tool_call_id or "",
            reasoning,
            self.name or "",
        )


class StreamOptions(Part):
    """Options of a stream; only *include_usage* has an effect."""

    include_usage: bool = False
    include_obfuscation: bool | None = None
    continuous_usage_stats: bool | None = None


class SchemaJson(Part):
    """An answer that is JSON and matches a schema."""

    type: Literal["json_schema"]
    json_schema: NamedSchema


ResponseFormat: TypeAlias = Annotated[PlainText | AnyJson | SchemaJson, Field(discriminator="type")]


class ChatRequest(OpenaiRequest):
    """The body of a chat completion."""

    messages: Annotated[Items[Turn], Field(min_length=1)]
    stream_options: StreamOptions | None = None
    n: Positive | None = None
    stop: Stop | Stops | None = None
    max_tokens: Positive | None = None
    max_completion_tokens: Positive | None = None
    reasoning_effort: Effort | None = None
    response_format: ResponseFormat | None = None
    tools: Offered[ToolPart] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None

    # Features that no method has; clients may send the values that turn them off.
    store: Literal[False] | None = None
    functions: Empty = None
    function_call: Literal["none"] | None = None
    logprobs: Literal[False] | None = None
    verbosity: Literal["medium"] | None = None
    modalities: Items[Literal["text"]] | None = None
    web_search_options: None = None

    @property
    def wanted(self) -> Wanted:
        if self.stream_options is not None and not self.stream:
            raise bad_request("stream_options is for streams: set stream to true", "stream_options")
        old = self.max_tokens
        new = self.max_completion_tokens
        if old is not None and new is not None and old != new:
            raise bad_request(
                "max_tokens and max_completion_tokens differ: send one of them", "max_tokens"
            )
        format = self.response_format
        choice = self.tool_choice
        return Wanted(
            tuple([turn.message for turn in self.messages]),
            tokens=new or old,
            tokens_name="max_completion_tokens" if new else "max_tokens",
            least=self.min_tokens,
            effort=self.reasoning_effort,
            stops=(self.stop,) if isinstance(self.stop, str) else self.stop or (),
            format=format.json_schema.rules if isinstance(format, SchemaJson) else any_json(format),
            tools=tuple([tool.function.tool for tool in self.tools or ()]),
            tool_choice=choice.function.name if isinstance(choice, NamedTool) else choice or "auto",
            tool_named=isinstance(choice, NamedTool),
            parallel=self.parallel_tool_calls is not False,
            choices=self.n or 1,
        )


class LiveRequest(Request):
    """The body of a run of the page."""

    problem: Annotated[str, Field(min_length=1)]
    model: ModelName = "auto"

    @property
    def wanted(self) -> Wanted:
        return Wanted((Message("user", self.problem),), "problem")


class ChatReply:
    """
    Writes the *runs* of a chat completion, one for each choice, as OpenAI's API does. A
    `ReplyFormat`.
    """

    keep_alive = deltas.KEEP_ALIVE
    starts_at = PROGRESS_EVENTS

    def __init__(
        self, runs: RequestRuns, request: ServiceRequest, chat: ChatRequest, thinking: Thinking
    ) -> None:
        self._runs = runs
        self._model = chat.model
        self._streamed = bool(chat.stream)
        self._include_usage = chat.stream_options is not None and chat.stream_options.include_usage
        self._id = f"chatcmpl-{request.id}"
        self._created = int(time.time())
        self._builders = [DeltaBuilder(thinking) for _ in runs.run_requests]
        fields = deltas.FIELDS[thinking] if runs.thinks else ()
        self._texts = [dict.fromkeys(("content", *fields), "") for _ in runs.run_requests]

    async def opening(self) -> bytes:
        return b"".join(
            self._chunk(choice, {"role": "assistant", "content": ""})
            for choice in range(len(self._texts))
        )

    def render(self, item: RunItem) -> bytes:
        delta = self._builders[item.choice].add(item)
        if not self._streamed:
            for name, text in delta.fields.items():
                texts = self._texts[item.choice]
                texts[name] = texts.get(name, "") + text
            return b""
        chunks = self._deltas(item.choice, delta)
        return chunks + self._last(item) if isinstance(item, RunResult) else chunks

    async def closing(self) -> bytes:
        if not self._include_usage:
            return deltas.DONE
        return (
            deltas.event(self._head(CHUNK) | {"choices": [], "usage": await self._runs.usage()})
            + deltas.DONE
        )

    def failed(self, error: ApiError, body: bytes) -> bytes:
        return deltas.FAILED % body

    async def body(self) -> dict[str, Any]:
        choices = [self._choice(choice, texts) for choice, texts in enumerate(self._texts)]
        usage = await self._runs.usage()
        extension = self._runs.extension(range(len(self._texts)))
        return self._head(COMPLETION) | {"choices": choices, "usage": usage, **extension}

    def _choice(self, choice: int, texts: Mapping[str, str]) -> dict[str, Any]:
        solution = self._runs.solutions[choice]
        message: dict[str, Any] = {"role": "assistant", "refusal": None, **texts}
        if solution.calls:
            message["content"] = message["content"] or None
            message["tool_calls"] = [
                _call(call.id, {"name": call.name, "arguments": written_arguments(call)})
                for call in solution.calls
            ]
        return _choice(choice, "message", message, deltas.finish_reason(solution))

    def _deltas(self, choice: int, delta: Delta) -> bytes:
        about = {"stepspec": delta.step} if delta.step is not None else {}
        chunks = self._chunk(choice, delta.fields, **about) if delta.fields or about else b""
        for piece in (*delta.ended, *delta.calls):
            named = {"name": piece.name} if piece.name else {}
            function = {**named, "arguments": piece.arguments}
            call = _call(piece.id, function) if piece.id else {"function": function}
            chunks += self._chunk(choice, {"tool_calls": [{"index": piece.index, **call}]})
        return chunks

    def _chunk(self, choice: int, delta: Mapping[str, Any], **fields: object) -> bytes:
        body = _choice(choice, "delta", delta, None) | fields
        return deltas.event(self._head(CHUNK) | {"choices": [body]})

    def _last(self, item: RunResult) -> bytes:
        choice = _choice(item.choice, "delta", {}, deltas.finish_reason(item.solution))
        extension = self._runs.extension([item.choice])
        return deltas.event(self._head(CHUNK) | {"choices": [choice]} | extension)

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self._id, "object": kind, "created": self._created, "model": self._model}


def _choice(
    index: int, kind: str, content: Mapping[str, Any], finish_reason: str | None
) -> dict[str, Any]:
    return {"index": index, kind: content, "logprobs": None, "finish_reason": finish_reason}


def _call(call_id: str, function: Mapping[str, str]) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": function}


class LiveReply:
    """
    Writes a run for the page: every event as a line of a trace, and then the solution. A
    `ReplyFormat`.
    """

    keep_alive = deltas.KEEP_ALIVE
    starts_at = (Drafted, *PROGRESS_EVENTS)

    async def opening(self) -> bytes:
        return b""

    def render(self, item: RunItem) -> bytes:
        if isinstance(item, RunResult):
            return b"event: solution\n" + deltas.event(deltas.solution(item.solution))
        return b"data: " + dump(Moment(item.at, item.event)) + b"\n"

    async def closing(self) -> bytes:
        return b""

    def failed(self, error: ApiError, body: bytes) -> bytes:
        return deltas.FAILED_EVENT % body

    async def body(self) -> dict[str, Any]:
        raise NotImplementedError("a run of the page is always a stream")
