"""
Responses, the newer API: one run, told as two items, the thinking and the answer.

A verified step is a ``response.reasoning_text.delta`` that carries ``stepspec``, as the choice of a chat's delta does.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import orjson

from ..solution import Solution
from . import payloads
from .context import ServiceContext
from .middleware import ServiceRequest
from .payloads import Delta, DeltaBuilder
from .run_requests import RunRequest
from .runs import Item, RunEvent, RunQueue, Runs, prime
from .schemas import ResponsesRequest
from .streaming import EVENT_STREAM, Line


class ResponseEvents:
    """The events of one stream, numbered, and the items that they build."""

    def __init__(self, identity: str) -> None:
        self._number = 0
        self._identity = identity
        self.items: list[dict[str, Any]] = []
        self._texts: list[str] = []

    def event(self, kind: str, **fields: Any) -> bytes:
        """One event of *kind*."""
        body = {"type": kind, "sequence_number": self._number, **fields}
        self._number += 1
        return b"event: " + kind.encode() + b"\ndata: " + orjson.dumps(body) + b"\n\n"

    def tell(self, delta: Delta) -> bytes:
        """What *delta* adds, to the item that is open or to a new one."""
        events = b""
        for name, text in delta.fields.items():
            kind = "reasoning" if name == "reasoning" else "message"
            if not self.items or self.items[-1]["type"] != kind:
                events += self.close() + self._open(kind)
            self._texts.append(text)
            more = {"stepspec": delta.step} if delta.step else {}
            events += self._piece("delta", delta=text, **more)
        return events

    def close(self) -> bytes:
        """End the item that is open."""
        if not self.items or self.items[-1]["status"] != "in_progress":
            return b""
        text, item = "".join(self._texts), self.items[-1]
        self._texts.clear()
        item["content"], item["status"] = [_part(item["type"], text)], "completed"
        place = {"item_id": item["id"], "output_index": len(self.items) - 1}
        return (
            self._piece("done", text=text)
            + self.event("response.content_part.done", **place, content_index=0, part=item["content"][0])
            + self.event("response.output_item.done", output_index=len(self.items) - 1, item=item)
        )

    def _open(self, kind: str) -> bytes:
        item = _item(kind, f"{'rs' if kind == 'reasoning' else 'msg'}_{self._identity}")
        self.items.append(item)
        place = {"item_id": item["id"], "output_index": len(self.items) - 1}
        added = self.event("response.output_item.added", output_index=len(self.items) - 1, item=item)
        part = _part(kind, "")
        return added + self.event("response.content_part.added", **place, content_index=0, part=part)

    def _piece(self, stage: str, **fields: Any) -> bytes:
        item = self.items[-1]
        place = {"item_id": item["id"], "output_index": len(self.items) - 1, "content_index": 0}
        if item["type"] == "reasoning":
            return self.event(f"response.reasoning_text.{stage}", **place, **fields)
        return self.event(f"response.output_text.{stage}", **place, logprobs=[], **fields)


def _item(kind: str, identity: str) -> dict[str, Any]:
    if kind == "reasoning":
        return {"id": identity, "type": kind, "summary": [], "content": [], "status": "in_progress"}
    return {"id": identity, "type": kind, "role": "assistant", "content": [], "status": "in_progress"}


def _part(kind: str, text: str) -> dict[str, Any]:
    if kind == "reasoning":
        return {"type": "reasoning_text", "text": text}
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


class Responding:
    """Answers one request with the run that is its *order*."""

    def __init__(
        self, parts: ServiceContext, visit: ServiceRequest, asked: ResponsesRequest, order: RunRequest
    ) -> None:
        self._runs, self._asked, self._order = Runs(parts, visit, [order]), asked, order
        thinking = asked.wishes.thinking or parts.settings.thinking
        told = "reasoning" if thinking in ("both", "reasoning_content") else thinking
        self._teller = DeltaBuilder(told, thinks=self._runs.thinks)
        self._identity, self._created = visit.id, int(time.time())
        self._telling = ResponseEvents(visit.id)

    async def __call__(self, line: Line) -> None:
        """Answer on *line*. Raise `Refusal` while nothing was sent; later failures end the stream."""
        try:
            async with self._runs.begun(stream=bool(self._asked.stream)) as feed:
                await (self._stream(feed, line) if self._asked.stream else self._whole(feed, line))
        except Exception as exc:
            await self._runs.fail(exc, line)

    async def _whole(self, feed: RunQueue, line: Line) -> None:
        while self._runs.going:
            for item in await feed.next():
                self._hear(item)
        self._telling.close()
        await line.whole(orjson.dumps(await self._finished()))

    async def _stream(self, feed: RunQueue, line: Line) -> None:
        first = await prime(feed, self._runs.keep_alive)
        await line.start(EVENT_STREAM, last=payloads.FAILED_EVENT)
        for kind in ("response.created", "response.in_progress"):
            await line.send(self._telling.event(kind, response=self._response("in_progress")))
        await line.send(b"".join(map(self._hear, first)))
        while self._runs.going:
            news = await feed.next(self._runs.keep_alive)
            await line.send(b"".join(map(self._hear, news)) if news else payloads.KEEP_ALIVE)
        await line.send(self._telling.close())
        response = await self._finished()
        await line.send(self._telling.event(f"response.{response['status']}", response=response))
        await line.end()

    def _hear(self, item: Item) -> bytes:
        self._runs.take(item)
        delta = self._teller.hear(item.event) if isinstance(item, RunEvent) else self._teller.end(item.solution)
        return self._telling.tell(delta) if delta is not None else b""

    async def _finished(self) -> dict[str, Any]:
        solution = self._runs.solutions[0]
        done = payloads.finish(solution) == "stop"
        response = self._response("completed" if done else "incomplete")
        usage = await self._runs.usage()
        return response | {"usage": _usage(usage), **_cut(solution), **self._runs.extension([0])}

    def _response(self, status: str) -> dict[str, Any]:
        asked = self._asked
        return {
            "id": f"resp_{self._identity}",
            "object": "response",
            "created_at": self._created,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "instructions": asked.instructions,
            "max_output_tokens": asked.max_output_tokens,
            "metadata": asked.metadata or {},
            "model": asked.model,
            "output": self._telling.items,
            "parallel_tool_calls": False,
            "previous_response_id": None,
            "reasoning": {"effort": asked.reasoning.effort if asked.reasoning else None, "summary": None},
            "store": False,
            "temperature": self._order.sampling.temperature,
            "text": {"format": _format(asked)},
            "tool_choice": "none",
            "tools": [],
            "top_p": self._order.sampling.top_p,
            "truncation": "disabled",
            "usage": None,
            "user": asked.user,
        }


def _format(asked: ResponsesRequest) -> dict[str, Any]:
    if asked.text is None or asked.text.format is None:
        return {"type": "text"}
    return asked.text.format.model_dump(by_alias=True)


def _cut(solution: Solution) -> dict[str, Any]:
    return {} if payloads.finish(solution) == "stop" else {"incomplete_details": {"reason": "max_output_tokens"}}


def _usage(usage: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "input_tokens": usage["prompt_tokens"],
        "input_tokens_details": usage["prompt_tokens_details"],
        "output_tokens": usage["completion_tokens"],
        "output_tokens_details": usage["completion_tokens_details"],
        "total_tokens": usage["total_tokens"],
    }
