"""The runs that answer one request: begun when there is a place for it, counted while they go on, ended with it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from ..errors import EndpointError
from ..events import Answering, Committed, Event, Finished
from ..solution import Solution
from . import reply
from .attended import Line
from .feed import Feed, Item, Solved, running
from .orders import Order
from .parts import Parts
from .reply import Count
from .settings import ServiceSettings
from .visit import Visit

VERIFIED = (Committed, Answering, Finished)  # signs of a run that goes well
LEAST = 0.001  # seconds for a run whose time was up before it began
GRACE = 10.0  # seconds by which a run may miss its deadline, which it keeps unless a server does not even tokenize


class Runs:
    """
    One run for each of the *orders* of a request.

    `solutions` has those that are over, by the index of their order.
    """

    def __init__(self, parts: Parts, visit: Visit, orders: Sequence[Order]) -> None:
        self._parts, self._visit, self.orders = parts, visit, orders
        self._counts = [Count() for _ in orders]
        self.solutions: dict[int, Solution] = {}
        self.thinks = parts.offer.engine.large.template.thinks
        self.keep_alive = parts.settings.keep_alive

    @asynccontextmanager
    async def begun(self, *, stream: bool) -> AsyncGenerator[Feed]:
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
        if isinstance(item, Solved):
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
        return reply.usage(prompt, self._counts, thinks=self.thinks)

    def extension(self, choices: Sequence[int]) -> dict[str, Any]:
        """The fields that no other service has, about the runs of some *choices* that are over."""
        solutions = [self.solutions[index] for index in choices]
        told = [reply.about(self.solutions[index], self.orders[index]) for index in choices]
        return {
            "steps": reply.steps(solutions),
            "ledger": reply.ledger(solution.ledger for solution in solutions),
            "stepspec": told[0] if len(told) == 1 else told,
        }

    def _notice(self, index: int, event: Event) -> None:
        self._counts[index](event)
        if isinstance(event, Committed) and self._visit.first_step is None:
            self._visit.first_step = self._visit.seconds
        self._parts.witness.sees(self._visit, index, event)


async def prime(feed: Feed, within: float, signs: tuple[type[Event], ...] = VERIFIED) -> list[Item]:
    """
    Wait for the first of the *signs* that a run goes well, or *within* so many seconds for its failure.

    Headers wait for it, so that what fails before there is anything to tell has its right status.
    """
    loop = asyncio.get_running_loop()
    ends, items = loop.time() + within, list[Item]()
    while (left := ends - loop.time()) > 0:
        news = await feed.next(left)
        items += news
        if any(isinstance(item, Solved) or isinstance(item.event, signs) for item in news):
            break
    return items


def deadline(settings: ServiceSettings, visit: Visit, *, stream: bool) -> float:
    """
    Seconds until a request has to be over.

    A client that gives up after some seconds without a byte bounds an answer in one piece; a stream keeps it waiting.
    """
    if stream or visit.patience is None:
        return settings.max_seconds
    return min(settings.max_seconds, visit.patience)
