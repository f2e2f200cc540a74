"""The events of one run as something to iterate over."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from stepspec.orchestrator.events import Event
from stepspec.orchestrator.solution import Solution


class Stream:
    """The events of one run, as they happen; afterwards its solution."""

    def __init__(self) -> None:
        self._events: asyncio.Queue[Event | None] = asyncio.Queue()
        self._solving: asyncio.Task[Solution] | None = None
        self.put = self._events.put_nowait

    def end(self, solving: asyncio.Task[Solution]) -> None:
        self._solving = solving
        if not solving.cancelled():
            solving.exception()  # Raised where it is asked for: by the iteration, or by `solution`.
        self._events.put_nowait(None)

    @property
    def solution(self) -> Solution:
        """The solution. Raise what the run raised, and `RuntimeError` while the run goes on."""
        if self._solving is None:
            raise RuntimeError("the run is not over: iterate over its events first")
        return self._solving.result()

    async def __aiter__(self) -> AsyncIterator[Event]:
        while (event := await self._events.get()) is not None:
            yield event
        self.solution  # noqa: B018  # a failed run raises here
