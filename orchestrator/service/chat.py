"""Chat completions: the runs of a request, told as they go on or once they are over."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from . import payloads
from .context import ServiceContext
from .middleware import ServiceRequest
from .payloads import Delta, DeltaBuilder
from .run_requests import RunRequest
from .runs import Item, RunEvent, RunQueue, RunResult, Runs, prime
from .settings import Thinking
from .streaming import EVENT_STREAM, Line

WHOLE, CHUNK = "chat.completion", "chat.completion.chunk"


@dataclass(frozen=True, slots=True)
class Wanted:
    """How a request wants to be answered: under which *model* name, with which fields, in a *stream* or not."""

    model: str
    thinking: Thinking
    stream: bool
    tell_usage: bool = False


class Chat:
    """Answers one chat completion with the runs that are its *orders*, one for each choice."""

    def __init__(
        self, parts: ServiceContext, visit: ServiceRequest, wanted: Wanted, orders: Sequence[RunRequest]
    ) -> None:
        self._runs, self._wanted = Runs(parts, visit, orders), wanted
        self._tellers = [DeltaBuilder(wanted.thinking, thinks=self._runs.thinks) for _ in orders]
        self._identity, self._created = f"chatcmpl-{visit.id}", int(time.time())

    async def __call__(self, line: Line) -> None:
        """Answer on *line*. Raise `Refusal` while nothing was sent; later failures end the stream."""
        try:
            async with self._runs.begun(stream=self._wanted.stream) as feed:
                await (self._stream(feed, line) if self._wanted.stream else self._whole(feed, line))
        except Exception as exc:
            await self._runs.fail(exc, line)

    async def _whole(self, feed: RunQueue, line: Line) -> None:
        fields = payloads.FIELDS[self._wanted.thinking] if self._runs.thinks else ()
        texts = [dict.fromkeys(("content", *fields), "") for _ in self._runs.orders]
        while self._runs.going:
            for item in await feed.next():
                delta = self._hear(item)
                for name, text in delta.fields.items() if delta is not None else ():
                    texts[item.index][name] += text
        body = self._head(WHOLE) | {
            "choices": [self._choice(index, message) for index, message in enumerate(texts)],
            "usage": await self._runs.usage(),
        }
        await line.whole(orjson.dumps(body | self._runs.extension(range(len(texts)))))

    async def _stream(self, feed: RunQueue, line: Line) -> None:
        first = await prime(feed, self._runs.keep_alive)
        await line.start(EVENT_STREAM, last=payloads.FAILED)
        roles = [self._chunk(index, {"role": "assistant", "content": ""}) for index in range(len(self._tellers))]
        await line.send(b"".join([*roles, *map(self._told, first)]))
        while self._runs.going:
            news = await feed.next(self._runs.keep_alive)
            await line.send(b"".join(map(self._told, news)) if news else payloads.KEEP_ALIVE)
        if self._wanted.tell_usage:
            last: dict[str, Any] = {"choices": [], "usage": await self._runs.usage()}
            await line.send(payloads.event(self._head(CHUNK) | last))
        await line.send(payloads.DONE)
        await line.end()

    def _told(self, item: Item) -> bytes:
        """The chunks that *item* is worth."""
        delta, chunks = self._hear(item), b""
        if delta is not None:
            more = {"stepspec": delta.step} if delta.step is not None else {}
            chunks = self._chunk(item.index, delta.fields, **more)
        return chunks + self._last(item) if isinstance(item, RunResult) else chunks

    def _hear(self, item: Item) -> Delta | None:
        self._runs.take(item)
        teller = self._tellers[item.index]
        return teller.hear(item.event) if isinstance(item, RunEvent) else teller.end(item.solution)

    def _choice(self, index: int, texts: Mapping[str, str]) -> dict[str, Any]:
        return {
            "index": index,
            "message": {"role": "assistant", "refusal": None, **texts},
            "logprobs": None,
            "finish_reason": payloads.finish(self._runs.solutions[index]),
        }

    def _chunk(self, index: int, delta: Mapping[str, str], **more: object) -> bytes:
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None, **more}
        return payloads.event(self._head(CHUNK) | {"choices": [choice]})

    def _last(self, item: RunResult) -> bytes:
        finish = payloads.finish(item.solution)
        choice: dict[str, Any] = {"index": item.index, "delta": {}, "logprobs": None, "finish_reason": finish}
        return payloads.event(self._head(CHUNK) | {"choices": [choice]} | self._runs.extension([item.index]))

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self._identity, "object": kind, "created": self._created, "model": self._wanted.model}
