"""The runs of one request while they go on: what happens in any of them, in order, and what became of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TypeAlias

from ..endpoints.client import CARRIED
from ..events import Event, Started
from ..solution import Solution
from .interfaces import Engine
from .orders import Order

Notice: TypeAlias = Callable[[int, Event], None]


@dataclass(frozen=True, slots=True)
class Happened:
    """Something happened in the run of choice *index*, so many seconds after it began."""

    index: int
    at: float
    event: Event


@dataclass(frozen=True, slots=True)
class Solved:
    """The run of choice *index* is over."""

    index: int
    solution: Solution


Item: TypeAlias = Happened | Solved


class Feed:
    """What happens in the runs; the failure of one is raised where the next items are asked for."""

    def __init__(self, notice: Notice, carried: Mapping[str, str]) -> None:
        self._items: list[Item] = []
        self._failure: Exception | None = None
        self._news = asyncio.Event()
        self._notice, self._carried = notice, carried

    async def next(self, within: float | None = None) -> list[Item]:
        """Wait for the next items, all that there are by then; none if nothing comes *within* so many seconds."""
        if self._failure is None and not self._items:
            self._news.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(within):
                    await self._news.wait()
        if self._failure is not None and not self._items:
            raise self._failure
        items, self._items = self._items, []
        return items

    async def follow(self, index: int, engine: Engine, order: Order) -> None:
        """Run *order* to its end."""
        CARRIED.set(self._carried)
        loop = asyncio.get_running_loop()
        began = loop.time()

        def observe(event: Event) -> None:
            nonlocal began
            if isinstance(event, Started):
                began = loop.time()
            self._notice(index, event)
            self._put(Happened(index, loop.time() - began, event))

        try:
            solution = await engine.solve(
                order.problem,
                sampling=order.sampling,
                budget=order.budget,
                stop=order.stop,
                format=order.format,
                observe=observe,
                **order.choices,
            )
        except Exception as exc:
            self._failure = exc
            self._news.set()
        else:
            self._put(Solved(index, solution))

    def _put(self, item: Item) -> None:
        self._items.append(item)
        self._news.set()


@asynccontextmanager
async def running(
    engine: Engine, orders: Sequence[Order], notice: Notice, carried: Mapping[str, str]
) -> AsyncGenerator[Feed]:
    """
    Run all *orders* at the same time; their requests have the headers that are *carried*.

    Leaving the block cancels what is not over, and waits until it is gone.
    """
    feed = Feed(notice, carried)
    tasks = [asyncio.create_task(feed.follow(index, engine, order)) for index, order in enumerate(orders)]
    try:
        yield feed
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
