"""
Whether a server orders requests by their ``priority``, found out by what it does: vLLM takes the field in any case.

A crowd of prompts, in one request, fills the queue. Then come a request that should go last and one that should go
first. Where the second overtakes the crowd and the first does not, the server orders them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from random import choices
from typing import Literal, TypeAlias

from ..errors import EndpointError, EndpointRejected
from ..tasks import at_once
from . import wire
from .client import Connection

Ordering: TypeAlias = Literal["kept", "not seen", "refused"]

CROWDS = (8, 32, 128, 512)  # prompts; a crowd has to keep the server busy for longer than a request travels
LONG = 1.0  # seconds that a crowd takes at which a larger one would show nothing else
LENGTH = 400  # tokens of each prompt, drawn at random, so that none is in the prefix cache
FIRST, CROWD, LAST = 1, 2, 3


async def ordering(connection: Connection, model: str, tokens: Sequence[int], room: int) -> Ordering:
    """
    Send crowds of prompts made of *tokens*, for a few seconds at most, and see in which order they are served.

    "not seen": the server goes by the order of arrival, or is too fast for a queue to form.
    """
    loop = asyncio.get_running_loop()
    length = min(LENGTH, room - 8)
    try:
        for crowd in CROWDS:
            began = loop.time()
            if await _Race(connection, model, tokens, length).overtakes(crowd):
                return "kept"
            if loop.time() - began > LONG:
                break
    except EndpointRejected as exc:
        return "refused" if "priority" in exc.cause.lower() else "not seen"
    except EndpointError:
        pass
    return "not seen"


class _Race:
    def __init__(self, connection: Connection, model: str, tokens: Sequence[int], length: int) -> None:
        self._connection, self._call = connection, connection.call("probe")
        self._model, self._tokens, self._length = model, tokens, length
        self._arrived, self._begun = 0, asyncio.Event()

    async def overtakes(self, crowd: int) -> bool:
        reading, begun = asyncio.create_task(self._crowd(crowd)), asyncio.create_task(self._begun.wait())
        try:
            await asyncio.wait([reading, begun], return_when=asyncio.FIRST_COMPLETED)
            last, first = await at_once([self._single(LAST), self._single(FIRST)])
            await reading
        finally:
            for task in (reading, begun):
                task.cancel()
            await asyncio.wait([reading, begun])
        return first < crowd <= last

    async def _crowd(self, crowd: int) -> None:
        prompts = [self._prompt() for _ in range(crowd)]
        async with self._connection.stream(self._call, self._body(prompts, 1, CROWD)) as events:
            while (event := await events.next()) is not None:
                self._arrived += wire.chunk(self._call, event, wire.GREEDY.logprobs).ended is not None
                self._begun.set()

    async def _single(self, priority: int) -> int:
        """Return how much of the crowd had arrived when this request was over."""
        async with self._connection.stream(self._call, self._body(self._prompt()[:8], 2, priority)) as events:
            while await events.next() is not None:
                pass
            return self._arrived

    def _prompt(self) -> list[int]:
        return choices(self._tokens, k=self._length)

    def _body(self, prompt: Sequence[int] | Sequence[Sequence[int]], limit: int, priority: int) -> wire.Body:
        body = wire.writing(self._model, prompt, wire.GREEDY, seed=0, limit=limit, stop=())
        return body | {"priority": priority, "min_tokens": limit}
