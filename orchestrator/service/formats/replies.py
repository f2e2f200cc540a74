"""
The replies to a request: how its runs are written in each API, as a stream or in one piece.

Chat completions have one choice per run. The Responses API has one run as two items, the reasoning and the message.
In both a verified step is a delta with the field ``stepspec``. The page receives every event.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Protocol

import orjson

from ...events import Calling, Drafted, Event
from ...solution import Solution
from ...trace import Moment, dump
from ..http.errors import ApiError
from ..http.runs import PROGRESS, RunItem, Runs
from ..http.streaming import EVENT_STREAM, ClientConnection
from ..settings import Thinking
from ..watch.records import RunResult, ServiceRequest
from . import deltas as payloads
from .deltas import Delta, DeltaBuilder, TokenCounts
from .schemas import ChatRequest, ChosenFunction, ResponsesRequest

COMPLETION, CHUNK = "chat.completion", "chat.completion.chunk"


class ReplyFormat(Protocol):
    """
    How one API writes a reply. `render` is called with every item in order, streamed or not.

    *keep_alive* is sent while nothing happens. A stream starts with the first event of *starts_at*.
    """

    @property
    def keep_alive(self) -> bytes: ...

    @property
    def starts_at(self) -> tuple[type[Event], ...]: ...

    async def opening(self) -> bytes:
        """Return the first bytes of a stream."""
        ...

    def render(self, item: RunItem) -> bytes:
        """Take in *item*, and return what a stream says about it."""
        ...

    async def closing(self) -> bytes:
        """Return the last bytes of a stream."""
        ...

    def failed(self, error: ApiError, body: bytes) -> bytes:
        """Return the last event of a stream that fails with *error*, whose *body* is in the shape of its API."""
        ...

    async def body(self) -> dict[str, Any]:
        """Return the reply to a request that does not stream."""
        ...


async def reply(runs: Runs, format: ReplyFormat, connection: ClientConnection, *, stream: bool) -> None:
    """Run *runs* and answer over *connection*. Raise `ApiError` before the response starts; later errors end it."""
    try:
        async with runs.started(stream=stream):
            if stream:
                await _stream(runs, format, connection)
            else:
                async for items in runs:
                    for item in items:
                        format.render(item)
                await connection.send_json(orjson.dumps(await format.body()))
    except Exception as exc:
        await runs.fail(exc, connection)


async def _stream(runs: Runs, format: ReplyFormat, connection: ClientConnection) -> None:
    first = await runs.until(format.starts_at)
    await connection.start(EVENT_STREAM, failure=format.failed)
    await connection.send(await format.opening() + b"".join(map(format.render, first)))
    async for items in runs:
        await connection.send(b"".join(map(format.render, items)) if items else format.keep_alive)
    await connection.finish(await format.closing())


class ChatReply:
    """Writes the *runs* of a chat completion, one for each choice, as OpenAI's API does. A `ReplyFormat`."""

    keep_alive = payloads.KEEP_ALIVE
    starts_at = PROGRESS

    def __init__(self, runs: Runs, request: ServiceRequest, chat: ChatRequest, thinking: Thinking) -> None:
        self._runs, self._model, self._streamed = runs, chat.model, bool(chat.stream)
        options = chat.stream_options
        self._include_usage = options is not None and options.include_usage
        self._continuous = self._include_usage and options is not None and bool(options.continuous_usage_stats)
        self._counts, self._prompt = [TokenCounts() for _ in runs.run_requests], 0
        self._id, self._created = f"chatcmpl-{request.id}", int(time.time())
        self._builders = [DeltaBuilder(thinking, thinks=runs.thinks) for _ in runs.run_requests]
        fields = payloads.FIELDS[thinking] if runs.thinks else ()
        self._texts = [dict.fromkeys(("content", *fields), "") for _ in runs.run_requests]

    async def opening(self) -> bytes:
        if self._continuous:
            self._prompt = await self._runs.prompt_tokens()
        return b"".join(self._chunk(choice, {"role": "assistant", "content": ""}) for choice in range(len(self._texts)))

    def render(self, item: RunItem) -> bytes:
        if not isinstance(item, RunResult):
            self._counts[item.choice](item.event)  # not `Runs.counts`, which are those of events to come as well
        delta = self._builders[item.choice].add(item)
        if not self._streamed:
            for name, text in delta.fields.items() if delta is not None else ():
                self._texts[item.choice][name] += text
            return b""
        chunk = b"" if delta is None else self._delta(item.choice, delta)
        return chunk + self._last(item) if isinstance(item, RunResult) else chunk

    async def closing(self) -> bytes:
        if not self._include_usage:
            return payloads.DONE
        last: dict[str, Any] = {"choices": [], "usage": await self._runs.usage()}
        return payloads.event(self._head(CHUNK) | last) + payloads.DONE

    def failed(self, error: ApiError, body: bytes) -> bytes:
        return payloads.FAILED % body

    async def body(self) -> dict[str, Any]:
        choices = [self._choice(choice, message) for choice, message in enumerate(self._texts)]
        usage = await self._runs.usage()
        return self._head(COMPLETION) | {
            "choices": choices,
            "usage": usage,
            **self._runs.extension(range(len(self._texts))),
        }

    def _choice(self, choice: int, texts: Mapping[str, str]) -> dict[str, Any]:
        solution = self._runs.solutions[choice]
        message: dict[str, Any] = {"role": "assistant", "refusal": None, **texts}
        if solution.calls:
            message["content"] = message["content"] or None
            message["tool_calls"] = [payloads.tool_call(call) for call in solution.calls]
        return {
            "index": choice,
            "message": message,
            "logprobs": None,
            "finish_reason": payloads.finish_reason(solution),
        }

    def _delta(self, choice: int, delta: Delta) -> bytes:
        fields: dict[str, Any] = {**delta.fields}
        if delta.call is not None:
            fields["tool_calls"] = [payloads.tool_call_delta(delta.call)]
        return self._chunk(choice, fields, **({"stepspec": delta.step} if delta.step is not None else {}))

    def _chunk(self, choice: int, delta: Mapping[str, Any], **fields: object) -> bytes:
        body = {"index": choice, "delta": delta, "logprobs": None, "finish_reason": None, **fields}
        return payloads.event(self._head(CHUNK) | {"choices": [body]} | self._usage_so_far())

    def _last(self, item: RunResult) -> bytes:
        finish = payloads.finish_reason(item.solution)
        choice: dict[str, Any] = {"index": item.choice, "delta": {}, "logprobs": None, "finish_reason": finish}
        extension = self._runs.extension([item.choice])
        return payloads.event(self._head(CHUNK) | {"choices": [choice]} | self._usage_so_far() | extension)

    def _usage_so_far(self) -> dict[str, Any]:
        """The usage of what was rendered until now, of all choices; empty unless it is continuous."""
        if not self._continuous:
            return {}
        return {"usage": payloads.usage(self._prompt, self._counts, thinks=self._runs.thinks)}

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self._id, "object": kind, "created": self._created, "model": self._model}


class ResponseEvents:
    """The numbered events of one stream, and the output *items* that they build."""

    def __init__(self, request_id: str) -> None:
        self._number = 0
        self._request_id = request_id
        self.items: list[dict[str, Any]] = []
        self._texts: list[str] = []
        self._call = -1  # the index of the open call

    def event(self, kind: str, **fields: Any) -> bytes:
        """Return the next event, of this *kind*."""
        body = {"type": kind, "sequence_number": self._number, **fields}
        self._number += 1
        return b"event: " + kind.encode() + b"\ndata: " + orjson.dumps(body) + b"\n\n"

    def add(self, delta: Delta) -> bytes:
        """Add *delta* to the open item, or to a new one; return the events."""
        events = b""
        for name, text in delta.fields.items():
            kind = "reasoning" if name == "reasoning" else "message"
            if not self.items or self.items[-1]["type"] != kind:
                events += self.close() + self._open(kind)
            self._texts.append(text)
            step = {"stepspec": delta.step} if delta.step else {}
            events += self._text_event("delta", delta=text, **step)
        return events if delta.call is None else events + self._add_call(delta.call)

    def _add_call(self, piece: Calling) -> bytes:
        events = b""
        if not self.items or self.items[-1]["type"] != "function_call" or piece.index != self._call:
            events, self._call = self.close(), piece.index
            item = {"id": f"fc_{self._request_id}_{piece.index}", "type": "function_call", "status": "in_progress"}
            self.items.append({**item, "call_id": piece.id, "name": piece.name, "arguments": ""})
            events += self.event("response.output_item.added", output_index=len(self.items) - 1, item=self.items[-1])
        if not piece.arguments:
            return events
        self._texts.append(piece.arguments)
        place = {"item_id": self.items[-1]["id"], "output_index": len(self.items) - 1}
        return events + self.event("response.function_call_arguments.delta", **place, delta=piece.arguments)

    def close(self) -> bytes:
        """Complete the open item, if there is one; return the events."""
        if not self.items or self.items[-1]["status"] != "in_progress":
            return b""
        text, item = "".join(self._texts), self.items[-1]
        self._texts.clear()
        if item["type"] == "function_call":
            item["arguments"], item["status"] = text, "completed"
            place = {"item_id": item["id"], "output_index": len(self.items) - 1}
            return self.event(
                "response.function_call_arguments.done", **place, name=item["name"], arguments=text
            ) + self.event("response.output_item.done", output_index=len(self.items) - 1, item=item)
        item["content"], item["status"] = [_part(item["type"], text)], "completed"
        place = {"item_id": item["id"], "output_index": len(self.items) - 1}
        return (
            self._text_event("done", text=text)
            + self.event("response.content_part.done", **place, content_index=0, part=item["content"][0])
            + self.event("response.output_item.done", output_index=len(self.items) - 1, item=item)
        )

    def _open(self, kind: str) -> bytes:
        item = _item(kind, f"{'rs' if kind == 'reasoning' else 'msg'}_{self._request_id}")
        self.items.append(item)
        place = {"item_id": item["id"], "output_index": len(self.items) - 1}
        added = self.event("response.output_item.added", output_index=len(self.items) - 1, item=item)
        part = _part(kind, "")
        return added + self.event("response.content_part.added", **place, content_index=0, part=part)

    def _text_event(self, stage: str, **fields: Any) -> bytes:
        item = self.items[-1]
        place = {"item_id": item["id"], "output_index": len(self.items) - 1, "content_index": 0}
        if item["type"] == "reasoning":
            return self.event(f"response.reasoning_text.{stage}", **place, **fields)
        return self.event(f"response.output_text.{stage}", **place, logprobs=[], **fields)


def _item(kind: str, item_id: str) -> dict[str, Any]:
    if kind == "reasoning":
        return {"id": item_id, "type": kind, "summary": [], "content": [], "status": "in_progress"}
    return {"id": item_id, "type": kind, "role": "assistant", "content": [], "status": "in_progress"}


def _part(kind: str, text: str) -> dict[str, Any]:
    if kind == "reasoning":
        return {"type": "reasoning_text", "text": text}
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


class ResponsesReply:
    """Writes the one run of *runs* as a response. A `ReplyFormat`."""

    keep_alive = payloads.KEEP_ALIVE
    starts_at = PROGRESS

    def __init__(self, runs: Runs, request: ServiceRequest, body: ResponsesRequest, thinking: Thinking) -> None:
        self._runs, self._request = runs, body
        (self._run_request,) = runs.run_requests
        self._builder = DeltaBuilder(payloads.one_field(thinking), thinks=runs.thinks)
        self._id, self._created = request.id, int(time.time())
        self._events = ResponseEvents(request.id)

    async def opening(self) -> bytes:
        kinds = ("response.created", "response.in_progress")
        return b"".join(self._events.event(kind, response=self._response("in_progress")) for kind in kinds)

    def render(self, item: RunItem) -> bytes:
        delta = self._builder.add(item)
        return b"" if delta is None else self._events.add(delta)

    async def closing(self) -> bytes:
        events, response = self._events.close(), await self._completed()
        return events + self._events.event(f"response.{response['status']}", response=response)

    def failed(self, error: ApiError, body: bytes) -> bytes:
        response = self._response("failed") | {"error": payloads.response_error(error.status, error.message)}
        return self._events.event("response.failed", response=response)

    async def body(self) -> dict[str, Any]:
        self._events.close()
        return await self._completed()

    async def _completed(self) -> dict[str, Any]:
        solution = self._runs.solutions[0]
        complete = payloads.finish_reason(solution) != "length"
        response = self._response("completed" if complete else "incomplete")
        usage = await self._runs.usage()
        return response | {"usage": _usage(usage), **_incomplete(solution), **self._runs.extension([0])}

    def _response(self, status: str) -> dict[str, Any]:
        request = self._request
        return {
            "id": f"resp_{self._id}",
            "object": "response",
            "created_at": self._created,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "instructions": request.instructions,
            "max_output_tokens": request.max_output_tokens,
            "metadata": request.metadata or {},
            "model": request.model,
            "output": self._events.items,
            "parallel_tool_calls": request.parallel_tool_calls is not False,
            "previous_response_id": None,
            "reasoning": {"effort": request.reasoning.effort if request.reasoning else None, "summary": None},
            "store": False,
            "temperature": self._run_request.run.sampling.temperature,
            "text": {"format": _format(request)},
            "tool_choice": _tool_choice(request),
            "tools": [{"strict": None, **tool.model_dump(exclude_none=True)} for tool in request.tools or ()],
            "top_p": self._run_request.run.sampling.top_p,
            "truncation": "disabled",
            "usage": None,
            "user": request.user,
        }


def _format(request: ResponsesRequest) -> dict[str, Any]:
    if request.text is None or request.text.format is None:
        return {"type": "text"}
    return request.text.format.model_dump(by_alias=True)


def _tool_choice(request: ResponsesRequest) -> Any:
    if isinstance(request.tool_choice, ChosenFunction):
        return request.tool_choice.model_dump()
    return request.tool_choice or ("auto" if request.tools else "none")


def _incomplete(solution: Solution) -> dict[str, Any]:
    if payloads.finish_reason(solution) != "length":
        return {}
    return {"incomplete_details": {"reason": "max_output_tokens"}}


def _usage(usage: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "input_tokens": usage["prompt_tokens"],
        "input_tokens_details": usage["prompt_tokens_details"],
        "output_tokens": usage["completion_tokens"],
        "output_tokens_details": usage["completion_tokens_details"],
        "total_tokens": usage["total_tokens"],
    }


class LiveReply:
    """Writes a run for the page: every event as a line of a trace, and then the solution. A `ReplyFormat`."""

    keep_alive = payloads.KEEP_ALIVE
    starts_at = (Drafted, *PROGRESS)

    async def opening(self) -> bytes:
        return b""

    def render(self, item: RunItem) -> bytes:
        if isinstance(item, RunResult):
            return b"event: solution\n" + payloads.event(payloads.solution(item.solution))
        return b"data: " + dump(Moment(item.at, item.event)) + b"\n"

    async def closing(self) -> bytes:
        return b""

    def failed(self, error: ApiError, body: bytes) -> bytes:
        return payloads.FAILED_EVENT % body

    async def body(self) -> dict[str, Any]:
        raise NotImplementedError("a run of the page is always a stream")
