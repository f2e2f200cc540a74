"""Questions that are asked at the same moment go to the server in one request, and come back to those who asked."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from .wire import Reply, usage

Ids: TypeAlias = Sequence[int]


@dataclass(frozen=True, slots=True)
class Answer:
    """The *reply* to several *prompts*, of which the one at *place* is ours."""

    reply: Reply
    prompts: Sequence[Ids]
    place: int

    @property
    def cached(self) -> int:
        """
        How many tokens of our prompt the server had in its cache.

        vLLM tells it of the last prompt only. Of any other, what it shares with the last one was there too, but for the
        blocks that this very request was the first to read.
        """
        told, ours = usage(self.reply)[1], self.prompts[self.place]
        pairs = zip(ours[:told], self.prompts[-1][:told], strict=False)
        return next((at for at, (one, other) in enumerate(pairs) if one != other), min(told, len(ours)))


@dataclass(eq=False)
class _Group:
    task: asyncio.Task[Reply]
    prompts: list[Ids] = field(default_factory=list[Ids])
    waiting: int = 0


class Together:
    """
    Gathers the prompts of one turn of the event loop that have the same choices, and gives them to *send* at once.

    A failure is everybody's. Who is cancelled leaves the others alone; the last one to leave aborts the request.
    """

    def __init__(self, send: Callable[[Ids, Sequence[Ids]], Awaitable[Reply]]) -> None:
        self._send = send
        self._gathering: dict[tuple[int, ...], _Group] = {}

    async def ask(self, prompt: Ids, choices: Ids) -> Answer:
        """Send *prompt* with whoever else asks now; return the answer to all of them."""
        key = tuple(choices)
        group = self._gathering.get(key) or self._gather(key)
        place = len(group.prompts)
        group.prompts.append(prompt)
        group.waiting += 1
        try:
            await asyncio.wait([group.task])
        finally:
            group.waiting -= 1
            if not group.waiting:
                await self._end(key, group)
        return Answer(group.task.result(), group.prompts, place)

    def _gather(self, key: tuple[int, ...]) -> _Group:
        group = self._gathering[key] = _Group(asyncio.create_task(self._go(key)))
        return group

    async def _go(self, key: tuple[int, ...]) -> Reply:
        await asyncio.sleep(0)  # Until everybody who was about to ask has asked.
        return await self._send(key, self._gathering.pop(key).prompts)

    async def _end(self, key: tuple[int, ...], group: _Group) -> None:
        """Abort the request if it is still open, and see to it that nobody else joins it."""
        if not group.task.done():
            if self._gathering.get(key) is group:
                del self._gathering[key]
            group.task.cancel()
            await asyncio.wait([group.task])
        if not group.task.cancelled():
            group.task.exception()  # Read, so that nobody warns of a failure that came too late for everybody.
