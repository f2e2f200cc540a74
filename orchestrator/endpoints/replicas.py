"""
Several servers of one model as one endpoint: a run sticks to a server, for its prefix cache, until that one fails.

Nothing committed is lost when it moves: the chain is a value, and the verb that failed is repeated whole elsewhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import fields
from types import TracebackType
from typing import Any, Self

from ..chain import Message, Role
from ..errors import EndpointRejected, EndpointUnavailable
from ..events import Observer
from .acceptance import Acceptance, total
from .clock import or_now
from .interfaces import AnyEndpoint
from .probe import Capabilities
from .queue import Queue
from .seat import Replica, Seat
from .seated import ReplicatedModel
from .settings import Endpoint, Sampling
from .template import Template
from .vllm import VllmEndpoint
from .wire import GREEDY, Format

Messages = tuple[Message, ...]


def connect(settings: Endpoint) -> AnyEndpoint:
    """Make the endpoint that *settings* describe, to be entered."""
    return ReplicatedEndpoint(settings) if settings.replicas else VllmEndpoint(settings)


class ReplicatedEndpoint:
    """
    The servers of one model, as *settings* list them, each made by *make*.

    Entering succeeds if one of them is up; `down` tells of the others, which are tried again later. Raise
    `EndpointUnavailable`, with every URL and its cause, if none is, and `EndpointRejected` for a server that serves
    another model, vocabulary or chat template than the others.
    """

    def __init__(self, settings: Endpoint, make: Callable[[Endpoint], AnyEndpoint] = VllmEndpoint) -> None:
        self.settings = settings
        self._make = make
        self._replicas = tuple([Replica(each) for each in settings.each])
        self._exit = AsyncExitStack()

    async def __aenter__(self) -> Self:
        try:
            entered = await asyncio.gather(*map(self._enter, self._replicas), return_exceptions=True)
            for replica, exc in zip(self._replicas, entered, strict=True):
                if isinstance(exc, EndpointUnavailable):
                    replica.failed(exc)
                elif isinstance(exc, BaseException):
                    raise exc
            if not self._entered:
                raise self._none_left(self.down)
        except BaseException:
            await self._exit.aclose()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._exit.aclose()

    @property
    def role(self) -> Role:
        return self.settings.role

    @property
    def name(self) -> str:
        return self._entered[0].name

    @property
    def template(self) -> Template:
        return self._entered[0].template

    @property
    def vocabulary(self) -> str:
        return self._entered[0].vocabulary

    @property
    def room(self) -> int:
        return min(endpoint.room for endpoint in self._entered)

    @property
    def down(self) -> Mapping[str, str]:
        """The replicas that failed and have not worked since: URL and cause."""
        return {replica.url: replica.cause for replica in self._replicas if replica.cause}

    @property
    def runs(self) -> Mapping[str, int]:
        """How many runs sit at each URL."""
        return {replica.url: len(replica.runs) for replica in self._replicas}

    async def count(self, messages: Messages) -> int:
        """Count the tokens that a chain about *messages* begins with."""
        seat = Seat(self, lambda event: None)
        try:
            return await seat.call(lambda endpoint: endpoint.count(messages))
        finally:
            seat.leave()

    async def queue(self) -> Queue | None:
        """Add up the queues of the servers that show one; None if none does."""
        shown = [one for one in await asyncio.gather(*(endpoint.queue() for endpoint in self._up)) if one is not None]
        return Queue(sum(one.running for one in shown), sum(one.waiting for one in shown)) if shown else None

    async def acceptance(self) -> Acceptance | None:
        """Add up what became of the tokens drafted in the servers; None if none speculates."""
        return total(await asyncio.gather(*(endpoint.acceptance() for endpoint in self._up)))

    async def capabilities(self) -> Capabilities:
        """Find out what all of the servers can do that were ever up."""
        found = await asyncio.gather(*(endpoint.capabilities() for endpoint in self._entered))
        shared: dict[str, Any] = {}
        for name in [one.name for one in fields(Capabilities)]:
            told = [getattr(one, name) for one in found]
            shared[name] = told[0] if all(one == told[0] for one in told) else False if False in told else None
        return Capabilities(**shared)

    def model(
        self,
        sampling: Sampling = GREEDY,
        *,
        observe: Observer = lambda event: None,
        clock: Callable[[], float] | None = None,
        format: Format | None = None,
    ) -> ReplicatedModel:
        """Make the model of one run, as `VllmEndpoint.model` does; the run should `ReplicatedModel.leave` it."""
        clock = or_now(clock)
        seat = Seat(self, observe)
        return ReplicatedModel(seat, lambda at: at.model(sampling, observe=observe, clock=clock, format=format))

    def choose(self, failed: Mapping[str, str]) -> Replica:
        """
        Choose the replica with the fewest runs among those that have not *failed* this call, if possible a rested one.

        One that failed earlier is tried by one run at a time. Raise `EndpointUnavailable` if all have failed.
        """
        left = [replica for replica in self._replicas if replica.url not in failed]
        if not left:
            raise self._none_left(failed)
        chosen = min([replica for replica in left if replica.rested] or left, key=lambda replica: len(replica.runs))
        if chosen.cause:
            chosen.rest()
        return chosen

    async def reach(self, replica: Replica) -> AnyEndpoint:
        """Return the endpoint of *replica*, made sure of if it was down. Raise what entering raises."""
        async with replica.entering:
            if replica.endpoint is None or replica.cause:
                return await self._enter(replica)
            return replica.endpoint

    @property
    def up(self) -> tuple[AnyEndpoint, ...]:
        """The servers that work, as far as is known."""
        return tuple(self._up)

    @property
    def _entered(self) -> list[AnyEndpoint]:
        return [replica.endpoint for replica in self._replicas if replica.endpoint is not None]

    @property
    def _up(self) -> list[AnyEndpoint]:
        return [one.endpoint for one in self._replicas if one.endpoint is not None and not one.cause]

    async def _enter(self, replica: Replica) -> AnyEndpoint:
        """Look at *replica* with a new connection, which is kept if there was none."""
        async with AsyncExitStack() as stack:
            fresh = await stack.enter_async_context(self._make(replica.settings))
            others = [other.endpoint for other in self._replicas if other is not replica]
            known = next((other for other in (*others, replica.endpoint) if other is not None), fresh)
            _same(fresh, known)
            if replica.endpoint is None:
                replica.endpoint = fresh
                self._exit.push_async_exit(stack.pop_all())
        replica.worked()
        return replica.endpoint

    def _none_left(self, failed: Mapping[str, str]) -> EndpointUnavailable:
        causes = "; ".join(f"{url}: {cause}" for url, cause in failed.items())
        return EndpointUnavailable(f"no replica is left: {causes}", role=self.role, url=", ".join(self.settings.urls))


def _same(fresh: AnyEndpoint, known: AnyEndpoint) -> None:
    """Raise `EndpointRejected` unless both serve the same."""
    here, there = fresh.settings.url, known.settings.url
    if fresh.name != known.name:
        wrong = f"serves {fresh.name!r}, and its replica at {there} {known.name!r}"
    elif fresh.vocabulary != known.vocabulary:
        wrong = f"has another vocabulary than its replica at {there}"
    elif fresh.template != known.template:
        wrong = f"has another chat template than its replica at {there}"
    else:
        return
    raise EndpointRejected(wrong, role=fresh.role, url=here, verb="connect")
