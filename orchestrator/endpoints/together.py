"""
Questions that are asked at the same moment go to the server in one request, and come back to those who asked.

Only those of one run and of one priority do: a request carries one session and one place in the queue.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from ..interfaces import REQUEST
from .client import CARRIED, Reply
from .priority import RUN, priority
from .vllm_protocol import usage

Ids: TypeAlias = Sequence[int]
Key: TypeAlias = tuple[tuple[int, ...], int | None, tuple[tuple[str, str], ...]]


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
    checkpoints: list[Ids] = field(default_factory=list[Ids])
    waiting: int = 0


class Together:
    """
    Gathers the prompts of one turn of the event loop that have the same choices, and gives them to *send* at once.

    A failure is everybody's. Who is cancelled leaves the others alone; the last one to leave aborts the request.
    """

    def __init__(self, send: Callable[[Ids, Sequence[Ids]], Awaitable[Reply]]) -> None:
        self._send = send
        self._gathering: dict[Key, _Group] = {}

    async def ask(self, prompt: Ids, choices: Ids, checkpoint: Ids = ()) -> Answer:
        """
        Send *prompt* with whoever else asks now; return the answer to all of them.

        A *checkpoint* is sent behind all questions, for the state that the server saves where it ends; what is written
        after it is nobody's.
        """
        key = tuple(choices), priority(REQUEST.get(), RUN.get()), tuple(CARRIED.get().items())
        group = self._gathering.get(key) or self._gather(key)
        place = len(group.prompts)
        group.prompts.append(prompt)
        if checkpoint and checkpoint not in group.checkpoints:
            group.checkpoints.append(checkpoint)
        group.waiting += 1
        try:
            await asyncio.wait([group.task])
        finally:
            group.waiting -= 1
            if not group.waiting:
                await self._end(key, group)
        return Answer(group.task.result(), [*group.prompts, *group.checkpoints], place)

    def _gather(self, key: Key) -> _Group:
        group = self._gathering[key] = _Group(asyncio.create_task(self._go(key)))
        return group

    async def _go(self, key: Key) -> Reply:
        await asyncio.sleep(0)  # Until everybody who was about to ask has asked.
        group = self._gathering.pop(key)
        return await self._send(key[0], [*group.prompts, *group.checkpoints])

    async def _end(self, key: Key, group: _Group) -> None:
        """Abort the request if it is still open, and see to it that nobody else joins it."""
        if not group.task.done():
            if self._gathering.get(key) is group:
                del self._gathering[key]
            group.task.cancel()
            await asyncio.wait([group.task])
        if not group.task.cancelled():
            group.task.exception()  # Read, so that nobody warns of a failure that came too late for everybody.
