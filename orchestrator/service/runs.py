"""The runs of one request while they go on: what happens in any of them, in order, and what became of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeAlias

from ..endpoints.client import CARRIED
from ..errors import EndpointError
from ..events import Answering, Committed, Event, Finished, Started
from ..solution import Solution
from . import payloads
from .context import ServiceContext
from .interfaces import Engine
from .middleware import ServiceRequest
from .payloads import Count
from .run_requests import RunRequest
from .settings import ServiceSettings
from .streaming import Line

EventObserver: TypeAlias = Callable[[int, Event], None]


@dataclass(frozen=True, slots=True)
class RunEvent:
    """Something happened in the run of choice *index*, so many seconds after it began."""

    index: int
    at: float
    event: Event


@dataclass(frozen=True, slots=True)
class RunResult:
    """The run of choice *index* is over."""

    index: int
    solution: Solution


Item: TypeAlias = RunEvent | RunResult


class RunQueue:
    """What happens in the runs; the failure of one is raised where the next items are asked for."""

    def __init__(self, notice: EventObserver, carried: Mapping[str, str]) -> None:
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

    async def follow(self, index: int, engine: Engine, order: RunRequest) -> None:
        """Run *order* to its end."""
        CARRIED.set(self._carried)
        loop = asyncio.get_running_loop()
        began = loop.time()

        def observe(event: Event) -> None:
            nonlocal began
            if isinstance(event, Started):
                began = loop.time()
            self._notice(index, event)
            self._put(RunEvent(index, loop.time() - began, event))

        try:
            solution = await engine.solve(
                order.problem,
                sampling=order.sampling,
                budget=order.budget,
                stop=order.stop,
                format=order.format,
                observe=observe,
                **order.overrides,
            )
        except Exception as exc:
            self._failure = exc
            self._news.set()
        else:
            self._put(RunResult(index, solution))

    def _put(self, item: Item) -> None:
        self._items.append(item)
        self._news.set()


@asynccontextmanager
async def running(
    engine: Engine, orders: Sequence[RunRequest], notice: EventObserver, carried: Mapping[str, str]
) -> AsyncGenerator[RunQueue]:
    """
    Run all *orders* at the same time; their requests have the headers that are *carried*.

    Leaving the block cancels what is not over, and waits until it is gone.
    """
    feed = RunQueue(notice, carried)
    tasks = [asyncio.create_task(feed.follow(index, engine, order)) for index, order in enumerate(orders)]
    try:
        yield feed
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


VERIFIED = (Committed, Answering, Finished)  # signs of a run that goes well
LEAST = 0.001  # seconds for a run whose time was up before it began
GRACE = 10.0  # seconds by which a run may miss its deadline, which it keeps unless a server does not even tokenize


class Runs:
    """
    One run for each of the *orders* of a request.

    `solutions` has those that are over, by the index of their order.
    """

    def __init__(self, parts: ServiceContext, visit: ServiceRequest, orders: Sequence[RunRequest]) -> None:
        self._parts, self._visit, self.orders = parts, visit, orders
        self._counts = [Count() for _ in orders]
        self.solutions: dict[int, Solution] = {}
        self.thinks = parts.offer.engine.large.template.thinks
        self.keep_alive = parts.settings.keep_alive

    @asynccontextmanager
    async def begun(self, *, stream: bool) -> AsyncGenerator[RunQueue]:
        """Wait for a place and run everything while the block lasts. Raise `Refusal` if there is no place."""
        parts, visit = self._parts, self._visit
        async with parts.gate.enter() as waited:
            seconds = max(deadline(parts.settings, visit, stream=stream) - waited, LEAST)
            visit.queued, visit.begun = waited, visit.seconds
            orders = [order.within(seconds) for order in self.orders]
            async with (
                asyncio.timeout(seconds + GRACE),
                running(parts.offer.engine, orders, self._notice, visit.carried) as feed,
            ):
                yield feed

    @property
    def going(self) -> bool:
        return len(self.solutions) < len(self.orders)

    def take(self, item: Item) -> None:
        """Note what *item* says; the end of the last run is when the served models have done their part."""
        if isinstance(item, RunResult):
            self.solutions[item.index] = item.solution
            self._parts.witness.solved(self._visit, item.index, item.solution)
            if not self.going:
                self._visit.upstream = max(count.upstream for count in self._counts)

    async def fail(self, exc: Exception, line: Line) -> None:
        """Tell the client of a failure, as `Parts.fail` does."""
        worked = any(count.worked for count in self._counts)
        await self._parts.fail(self._visit, exc, line, worked=worked)

    async def usage(self) -> dict[str, Any]:
        """What all of it would have cost; see `reply.usage`."""
        try:
            prompt = await self._parts.offer.engine.large.count(self.orders[0].problem)
        except EndpointError:  # No reason to lose the answer.
            prompt = self._counts[0].prompt
        return payloads.usage(prompt, self._counts, thinks=self.thinks)

    def extension(self, choices: Sequence[int]) -> dict[str, Any]:
        """The fields that no other service has, about the runs of some *choices* that are over."""
        solutions = [self.solutions[index] for index in choices]
        told = [payloads.about(self.solutions[index], self.orders[index]) for index in choices]
        return {
            "steps": payloads.steps(solutions),
            "ledger": payloads.ledger(solution.ledger for solution in solutions),
            "stepspec": told[0] if len(told) == 1 else told,
        }

    def _notice(self, index: int, event: Event) -> None:
        self._counts[index](event)
        if isinstance(event, Committed) and self._visit.first_step is None:
            self._visit.first_step = self._visit.seconds
        self._parts.witness.sees(self._visit, index, event)


async def prime(feed: RunQueue, within: float, signs: tuple[type[Event], ...] = VERIFIED) -> list[Item]:
    """
    Wait for the first of the *signs* that a run goes well, or *within* so many seconds for its failure.

    Headers wait for it, so that what fails before there is anything to tell has its right status.
    """
    loop = asyncio.get_running_loop()
    ends, items = loop.time() + within, list[Item]()
    while (left := ends - loop.time()) > 0:
        news = await feed.next(left)
        items += news
        if any(isinstance(item, RunResult) or isinstance(item.event, signs) for item in news):
            break
    return items


def deadline(settings: ServiceSettings, visit: ServiceRequest, *, stream: bool) -> float:
    """
    Seconds until a request has to be over.

    A client that gives up after some seconds without a byte bounds an answer in one piece; a stream keeps it waiting.
    """
    if stream or visit.patience is None:
        return settings.max_seconds
    return min(settings.max_seconds, visit.patience)
