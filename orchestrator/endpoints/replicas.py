"""Where a run sits among the replicas of a model, and how it moves when that one fails."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, fields
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar, Unpack
from weakref import WeakSet

from ..chain import Chain, Message, Role, Step, Token
from ..errors import EndpointError, EndpointRejected, EndpointUnavailable, StepspecError
from ..events import Moved, Observer
from ..interfaces import DEFAULT_LIMIT, Model, WriteOptions
from .chat_template import Template
from .interfaces import ModelEndpoint
from .metrics import Acceptance, QueueGauges, total
from .probe import Capabilities
from .settings import Endpoint, Sampling
from .token_stream import or_now
from .vllm import VllmEndpoint
from .vllm_protocol import GREEDY, Format

T = TypeVar("T")


@dataclass(eq=False)
class Replica:
    """
    One server. *endpoint* is None until it was up for the first time.

    *cause* tells why it failed, "" if it works; until the second *rests* of the loop's clock new runs leave it alone.
    """

    settings: Endpoint
    endpoint: ModelEndpoint | None = None
    cause: str = ""
    rests: float = 0.0
    runs: WeakSet[Seat] = field(default_factory=lambda: WeakSet[Seat]())
    entering: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def url(self) -> str:
        return self.settings.url

    @property
    def rested(self) -> bool:
        return not self.cause or asyncio.get_running_loop().time() >= self.rests

    def failed(self, exc: StepspecError) -> str:
        """Begin to rest; return why."""
        self.cause = (exc.cause if isinstance(exc, EndpointError) else str(exc)) or "failed"
        self.rest()
        return self.cause

    def rest(self) -> None:
        self.rests = asyncio.get_running_loop().time() + self.settings.deadlines.rest

    def worked(self) -> None:
        self.cause = ""


class Replicas(Protocol):
    """All servers of one model, as those see them who look for a place."""

    @property
    def role(self) -> Role: ...

    def choose(self, failed: Mapping[str, str]) -> Replica:
        """Choose a replica that has not *failed*. Raise `EndpointUnavailable` if all have."""
        ...

    async def reach(self, replica: Replica) -> ModelEndpoint:
        """Return the endpoint of *replica*. Raise a `StepspecError` if it is down."""
        ...


class Seat:
    """Where one run sits. Its verbs may be called at the same time; a replica's failure moves all of them, once."""

    def __init__(self, replicas: Replicas, observe: Observer) -> None:
        self._replicas, self._observe = replicas, observe
        self._at: Replica | None = None
        self._moving = asyncio.Lock()

    @property
    def role(self) -> Role:
        return self._replicas.role

    async def call(self, verb: Callable[[ModelEndpoint], Awaitable[T]]) -> T:
        """Do *verb* where the run sits, or at the next replica. Raise `EndpointUnavailable` if it fails at all."""
        failed: dict[str, str] = {}
        while True:
            replica, endpoint = await self._sit(failed)
            try:
                result = await verb(endpoint)
            except EndpointUnavailable as exc:
                failed[replica.url] = replica.failed(exc)
            else:
                replica.worked()
                return result

    def leave(self) -> None:
        if self._at is not None:
            self._at.runs.discard(self)
        self._at = None

    async def _sit(self, failed: dict[str, str]) -> tuple[Replica, ModelEndpoint]:
        """Stay where the run sits unless that has *failed*; otherwise move, and note there what fails on the way."""
        async with self._moving:
            while self._at is None or self._at.url in failed or self._at.endpoint is None:
                chosen = self._replicas.choose(failed)
                try:
                    await self._replicas.reach(chosen)
                except StepspecError as exc:
                    failed[chosen.url] = chosen.failed(exc)
                else:
                    self._move(chosen, failed)
            return self._at, self._at.endpoint

    def _move(self, to: Replica, failed: Mapping[str, str]) -> None:
        left = self._at
        self.leave()
        self._at = to
        to.runs.add(self)
        if left is not None:
            self._observe(Moved(self.role, left.url, to.url, failed[left.url]))


class ReplicatedModel:
    """A `Model` of one run, on whichever replica the run sits at."""

    def __init__(self, seat: Seat, make: Callable[[ModelEndpoint], Model]) -> None:
        self._seat, self._make = seat, make
        self._made: dict[str, Model] = {}

    @property
    def role(self) -> Role:
        return self._seat.role

    def leave(self) -> None:
        """Give the place up: the run is over."""
        self._seat.leave()

    async def write(self, chain: Chain, **options: Unpack[WriteOptions]) -> Step:
        return await self._seat.call(lambda at: self._model(at).write(chain, **options))

    async def branch(
        self, chain: Chain, begun: Sequence[Step], *, stop: Sequence[str] | None = None, limit: int = DEFAULT_LIMIT
    ) -> tuple[Step, ...]:
        return await self._seat.call(lambda at: self._model(at).branch(chain, begun, stop=stop, limit=limit))

    async def score(self, chain: Chain, *spans: str, top: int = 0) -> list[tuple[Token, ...]]:
        return await self._seat.call(lambda at: self._model(at).score(chain, *spans, top=top))

    async def ask(
        self, chain: Chain, question: str, choices: Sequence[str], *, opening: str = ""
    ) -> Mapping[str, float]:
        return await self._seat.call(lambda at: self._model(at).ask(chain, question, choices, opening=opening))

    def _model(self, at: ModelEndpoint) -> Model:
        url = at.settings.url
        if url not in self._made:
            self._made[url] = self._make(at)
        return self._made[url]


Messages = tuple[Message, ...]


def connect(settings: Endpoint) -> ModelEndpoint:
    """Make the endpoint that *settings* describe, to be entered."""
    return ReplicatedEndpoint(settings) if settings.replicas else VllmEndpoint(settings)


class ReplicatedEndpoint:
    """
    The servers of one model, as *settings* list them, each made by *make*.

    Entering succeeds if one of them is up; `down` tells of the others, which are tried again later. Raise
    `EndpointUnavailable`, with every URL and its cause, if none is, and `EndpointRejected` for a server that serves
    another model, vocabulary or chat template than the others.
    """

    def __init__(self, settings: Endpoint, make: Callable[[Endpoint], ModelEndpoint] = VllmEndpoint) -> None:
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

    async def queue(self) -> QueueGauges | None:
        """Add up the queues of the servers that show one; None if none does."""
        shown = [one for one in await asyncio.gather(*(endpoint.queue() for endpoint in self._up)) if one is not None]
        return QueueGauges(sum(one.running for one in shown), sum(one.waiting for one in shown)) if shown else None

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

    async def reach(self, replica: Replica) -> ModelEndpoint:
        """Return the endpoint of *replica*, made sure of if it was down. Raise what entering raises."""
        async with replica.entering:
            if replica.endpoint is None or replica.cause:
                return await self._enter(replica)
            return replica.endpoint

    @property
    def up(self) -> tuple[ModelEndpoint, ...]:
        """The servers that work, as far as is known."""
        return tuple(self._up)

    @property
    def _entered(self) -> list[ModelEndpoint]:
        return [replica.endpoint for replica in self._replicas if replica.endpoint is not None]

    @property
    def _up(self) -> list[ModelEndpoint]:
        return [one.endpoint for one in self._replicas if one.endpoint is not None and not one.cause]

    async def _enter(self, replica: Replica) -> ModelEndpoint:
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


def _same(fresh: ModelEndpoint, known: ModelEndpoint) -> None:
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
