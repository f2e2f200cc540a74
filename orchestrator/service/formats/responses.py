"""
The Responses API: what a request may contain, and how its run is answered, as items and as numbered
events.

The reasoning is an item, in which each verified step is a delta with the field ``stepspec``; the
message is the next.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, TypeAlias, cast

from pydantic import BeforeValidator, Field

from ...answer import is_json
from ...chain import Message, ToolCall
from ...events import Calling
from ...solution import Solution
from ..http.errors import ApiError
from ..http.runs import PROGRESS, RunItem, Runs
from ..settings import Thinking
from ..watch.records import ServiceRequest
from . import deltas
from .deltas import Delta, DeltaBuilder
from .schemas import (
    FUNCTIONS,
    SPEAKERS,
    AnyJson,
    Arguments,
    CallId,
    ChosenFunction,
    Effort,
    FunctionTool,
    ItemContent,
    Items,
    NamedSchema,
    Offered,
    OpenaiRequest,
    Part,
    PlainText,
    Positive,
    Wanted,
    any_json,
    joined_text,
)


class Item(Part):
    """An item of the conversation; its id and status, of an earlier answer, are dropped."""

    id: str | None = None
    status: str | None = None


class MessageItem(Item):
    """A message of the conversation."""

    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: ItemContent
    phase: str | None = None


class ReasoningPart(Part):
    """A part of the reasoning of an earlier answer."""

    type: Literal["reasoning_text"]
    text: str


class ReasoningItem(Item):
    """The reasoning of an earlier answer, which the models' own chat templates keep or drop."""

    type: Literal["reasoning"]
    summary: Items[Any] | None = None
    content: Items[ReasoningPart] | None = None
    encrypted_content: str | None = None


class FunctionCallItem(Item):
    """A call of a tool in an earlier answer."""

    type: Literal["function_call"]
    call_id: CallId
    name: str
    arguments: Arguments = "{}"
    parsed_arguments: Any = None  # by OpenAI's SDK


class FunctionCallOutputItem(Item):
    """The result of a call."""

    type: Literal["function_call_output"]
    call_id: CallId
    output: ItemContent


TypedItem: TypeAlias = MessageItem | ReasoningItem | FunctionCallItem | FunctionCallOutputItem

OWN_CALLS = ("function_call", "function_call_output")


def _with_type(item: object) -> object:
    """
    Add the type of a message to an item with a role, and drop what is null: the SDK dumps all
    fields that it knows.

    Raise `ValueError` for what only another server can answer.
    """
    if not isinstance(item, dict):
        return item
    fields = {
        name: value for name, value in cast("dict[str, Any]", item).items() if value is not None
    }
    kind = str(fields.get("type"))
    if kind.endswith(("_call", "_call_output")) and kind not in OWN_CALLS:
        raise ValueError(f"an item of the type {kind!r}: {FUNCTIONS}")
    if kind == "item_reference" or fields.keys() == {"id"}:
        raise ValueError(
            "an item_reference: nothing is stored; send the item itself, as clients do after store:"
            " false"
        )
    return {"type": "message", **fields} if "role" in fields else fields


InputItem: TypeAlias = Annotated[
    Annotated[TypedItem, Field(discriminator="type")], BeforeValidator(_with_type)
]


def conversation(items: Sequence[TypedItem]) -> Iterator[Message]:
    """
    Yield the messages of *items*: the reasoning, the text and the calls of one answer are one
    message.
    """
    thoughts, texts, calls = list[str](), list[str](), list[ToolCall]()
    for item in (*items, None):
        match item:
            case ReasoningItem():
                thoughts += [part.text for part in item.content or ()]
            case FunctionCallItem():
                calls.append(ToolCall(item.call_id, item.name, item.arguments))
            case MessageItem(role="assistant"):
                if (text := joined_text(item.content)) or texts:
                    texts.append(text)
            case MessageItem() | FunctionCallOutputItem() | None:
                if texts or calls:
                    yield Message(
                        "assistant", "\n".join(texts), tuple(calls), reasoning="".join(thoughts)
                    )
                thoughts, texts, calls = [], [], []
                if isinstance(item, MessageItem):
                    yield Message(SPEAKERS[item.role], joined_text(item.content))
                elif item is not None:
                    yield Message("tool", joined_text(item.output), call_id=item.call_id)


class Reasoning(Part):
    """The effort of the reasoning. Its text is in the output, whatever *summary* asks for."""

    effort: Effort | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    generate_summary: None = None


class SchemaFormat(NamedSchema):
    """An answer that is JSON and matches a schema, in the form of the Responses API."""

    type: Literal["json_schema"]


TextFormat: TypeAlias = Annotated[PlainText | AnyJson | SchemaFormat, Field(discriminator="type")]


class TextOptions(Part):
    """The form of the answer."""

    format: TextFormat | None = None
    verbosity: Literal["medium"] | None = None


class ResponsesStreamOptions(Part):
    """Options of a stream of the Responses API."""

    include_obfuscation: Literal[False] | None = None


class ResponsesRequest(OpenaiRequest):
    """The body of a response."""

    input: str | Annotated[Items[InputItem], Field(min_length=1)]
    instructions: str | None = None
    max_output_tokens: Positive | None = None
    reasoning: Reasoning | None = None
    text: TextOptions | None = None
    stream_options: ResponsesStreamOptions | None = None
    stop: None = None  # load generators send it; this API has no stop strings
    tools: Offered[FunctionTool] | None = None
    tool_choice: Literal["none", "auto", "required"] | ChosenFunction | None = None

    # Features that no method has; clients may send the values that turn them off.
    background: Literal[False] | None = None
    # agents ask always; the text is in the output
    include: Items[Literal["reasoning.encrypted_content"]] | None = None
    truncation: Literal["disabled"] | None = None
    max_tool_calls: None = None

    @property
    def wanted(self) -> Wanted:
        first = (Message("system", self.instructions),) if self.instructions else ()
        text, choice = self.input, self.tool_choice
        format = self.text.format if self.text else None
        return Wanted(
            (*first, *([Message("user", text)] if isinstance(text, str) else conversation(text))),
            "input",
            tokens=self.max_output_tokens,
            tokens_name="max_output_tokens",
            least=self.min_tokens,
            effort=self.reasoning.effort if self.reasoning else None,
            format=format.rules if isinstance(format, SchemaFormat) else any_json(format),
            tools=tuple([tool.tool for tool in self.tools or ()]),
            tool_choice=choice.name if isinstance(choice, ChosenFunction) else choice or "auto",
            tool_named=isinstance(choice, ChosenFunction),
            parallel=self.parallel_tool_calls is not False,
        )

    @property
    def echo(self) -> dict[str, Any]:
        """The fields of a response that repeat the request."""
        format, choice = self.text.format if self.text else None, self.tool_choice
        return {
            "instructions": self.instructions,
            "max_output_tokens": self.max_output_tokens,
            "metadata": self.metadata or {},
            "model": self.model,
            "parallel_tool_calls": self.parallel_tool_calls is not False,
            "previous_response_id": None,
            "reasoning": {
                "effort": self.reasoning.effort if self.reasoning else None,
                "summary": None,
            },
            "store": False,
            "text": {
                "format": (
                    format.model_dump(by_alias=True, exclude={"cache_control"})
                    if format
                    else {"type": "text"}
                )
            },
            "tool_choice": (
                choice.model_dump(exclude={"cache_control"})
                if isinstance(choice, ChosenFunction)
                else choice or ("auto" if self.tools else "none")
            ),
            "tools": [
                {"strict": None} | tool.model_dump(exclude_none=True, exclude={"cache_control"})
                for tool in self.tools or ()
            ],
            "truncation": "disabled",
            "user": self.user,
        }


class ResponseEvents:
    """The numbered events of one stream, and the output *items* that they build."""

    def __init__(self, request_id: str) -> None:
        self._number, self._request_id = 0, request_id
        self.items: list[dict[str, Any]] = []
        self._texts: list[str] = []
        self._call = -1  # the index of the open call

    def event(self, kind: str, **fields: Any) -> bytes:
        self._number += 1
        return deltas.named_event(kind, sequence_number=self._number - 1, **fields)

    def add(self, delta: Delta) -> bytes:
        """Add *delta* to the open item, or to new ones; return the events."""
        events = b"".join(map(self._add_call, delta.ended))
        for name, text in delta.fields.items():
            kind = "reasoning" if name == "reasoning" else "message"
            if not self.items or self.items[-1]["type"] != kind:
                events += self.close() + self._open(kind)
            self._texts.append(text)
            step = {"stepspec": delta.step} if delta.step else {}
            events += self._text_event("delta", delta=text, **step)
        return events + b"".join(map(self._add_call, delta.calls))

    def _add_call(self, piece: Calling) -> bytes:
        events = b""
        if not self.items or self.items[-1]["type"] != "function_call" or piece.index != self._call:
            events, self._call = self.close(), piece.index
            item = {
                "id": f"fc_{self._request_id}_{piece.index}",
                "type": "function_call",
                "status": "in_progress",
            }
            self.items.append({**item, "call_id": piece.id, "name": piece.name, "arguments": ""})
            events += self._item_event("added")
        if not piece.arguments:
            return events
        self._texts.append(piece.arguments)
        return events + self.event(
            "response.function_call_arguments.delta", **self._place, delta=piece.arguments
        )

    def close(self, status: str = "completed") -> bytes:
        """End the open item, if there is one, with this *status*; return the events."""
        if not self.items or self.items[-1]["status"] != "in_progress":
            return b""
        text, item = "".join(self._texts), self.items[-1]
        self._texts.clear()
        item["status"] = status
        if item["type"] == "function_call":
            item["arguments"] = text
            ended = self.event(
                "response.function_call_arguments.done",
                **self._place,
                name=item["name"],
                arguments=text,
            )
        else:
            item["content"] = [_part(item["type"], text)]
            ended = self._text_event("done", text=text) + self._part_event(
                "done", item["content"][0]
            )
        return ended + self._item_event("done")

    def _open(self, kind: str) -> bytes:
        place = f"{self._request_id}_{len(self.items)}"  # text may go on after a call
        item: dict[str, Any] = {
            "id": f"{'rs' if kind == 'reasoning' else 'msg'}_{place}",
            "type": kind,
        }
        more: dict[str, Any] = {"summary": []} if kind == "reasoning" else {"role": "assistant"}
        self.items.append(item | more | {"content": [], "status": "in_progress"})
        return self._item_event("added") + self._part_event("added", _part(kind, ""))

    @property
    def _place(self) -> dict[str, Any]:
        return {"item_id": self.items[-1]["id"], "output_index": len(self.items) - 1}

    def _item_event(self, stage: str) -> bytes:
        return self.event(
            f"response.output_item.{stage}", output_index=len(self.items) - 1, item=self.items[-1]
        )

    def _part_event(self, stage: str, part: Mapping[str, Any]) -> bytes:
        return self.event(
            f"response.content_part.{stage}", **self._place, content_index=0, part=part
        )

    def _text_event(self, stage: str, **fields: Any) -> bytes:
        if self.items[-1]["type"] == "reasoning":
            return self.event(
                f"response.reasoning_text.{stage}", **self._place, content_index=0, **fields
            )
        return self.event(
            f"response.output_text.{stage}", **self._place, content_index=0, logprobs=[], **fields
        )


def _part(kind: str, text: str) -> dict[str, Any]:
    if kind == "reasoning":
        return {"type": "reasoning_text", "text": text}
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


class ResponsesReply:
    """Writes the one run of *runs* as a response. A `ReplyFormat`."""

    keep_alive = deltas.KEEP_ALIVE
    starts_at = PROGRESS

    def __init__(
        self, runs: Runs, request: ServiceRequest, body: ResponsesRequest, thinking: Thinking
    ) -> None:
        self._runs, self._request = runs, body
        (self._run_request,) = runs.run_requests
        self._builder = DeltaBuilder(deltas.one_field(thinking))
        self._id, self._created = request.id, int(time.time())
        self._events = ResponseEvents(request.id)

    async def opening(self) -> bytes:
        kinds = ("response.created", "response.in_progress")
        return b"".join(
            self._events.event(kind, response=self._response("in_progress")) for kind in kinds
        )

    def render(self, item: RunItem) -> bytes:
        return self._events.add(self._builder.add(item))

    async def closing(self) -> bytes:
        events, response = self._events.close(self._status), await self._ended()
        return events + self._events.event(f"response.{self._status}", response=response)

    def failed(self, error: ApiError, body: bytes) -> bytes:
        events = self._events.close("incomplete")
        response = self._response("failed") | {
            "error": deltas.response_error(error.status, error.message)
        }
        return events + self._events.event("response.failed", response=response)

    async def body(self) -> dict[str, Any]:
        self._events.close(self._status)
        items = self._events.items
        items[:] = [
            each
            for each in items
            if each["status"] == "completed" or is_json(each.get("arguments", "{}"))
        ]
        return await self._ended()

    @property
    def _solution(self) -> Solution:
        return self._runs.solutions[0]

    @property
    def _status(self) -> str:
        return "incomplete" if deltas.finish_reason(self._solution) == "length" else "completed"

    async def _ended(self) -> dict[str, Any]:
        status, used = self._status, await self._runs.usage()
        details = {"reason": "max_output_tokens"} if status == "incomplete" else None
        ended = {"usage": _usage(used), "incomplete_details": details}
        return self._response(status) | ended | self._runs.extension([0])

    def _response(self, status: str) -> dict[str, Any]:
        sampling = self._run_request.run.sampling
        return self._request.echo | {
            "id": f"resp_{self._id}",
            "object": "response",
            "created_at": self._created,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "output": self._events.items,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "usage": None,
        }


def _usage(usage: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "input_tokens": usage["prompt_tokens"],
        "input_tokens_details": {**usage["prompt_tokens_details"], "cache_write_tokens": 0},
        "output_tokens": usage["completion_tokens"],
        "output_tokens_details": usage["completion_tokens_details"],
        "total_tokens": usage["total_tokens"],
    }
