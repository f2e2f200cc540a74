"""
Several servers of one model as one endpoint: a run stays on one replica, and moves to another when that one fails.

`ReplicatedEndpoint` holds the replicas, `Placement` the replica of one run, and `ReplicatedModel` is the run's `Model`.
The runs of one session begin on the same replica, whose prefix cache has the earlier turns: see `in_order`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, fields
from hashlib import blake2b
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar, Unpack
from weakref import WeakSet

from ..chain import Chain, Message, Role, Step, Token, Tool, Toolset
from ..errors import EndpointError, EndpointRejected, EndpointUnavailable, EndpointUnreachable, StepspecError
from ..events import Calling, Moved, Observer
from ..interfaces import DEFAULT_LIMIT, Model, WriteOptions
from ..stats import Acceptance
from .chat_template import Template
from .client import SESSION
from .interfaces import ModelEndpoint
from .metrics import QueueGauges, total
from .probe import Capabilities
from .settings import Endpoint, Sampling
from .token_stream import or_now
from .tool_protocol import ParserState
from .vllm import VllmEndpoint
from .vllm_protocol import GREEDY, Format

T = TypeVar("T")


def in_order(urls: Iterable[str], session: str) -> list[str]:
    """
    Return *urls* in the order in which *session* prefers them.

    This is rendezvous hashing (Thaler and Ravishankar, 1998): no table of sessions has to be kept, bounded or shared
    among processes. A server that is lost moves its own sessions only, and they return when it does; one that is added
    takes an equal share from each of the others.
    """
    return sorted(urls, key=lambda url: blake2b(f"{session}\n{url}".encode(), digest_size=8).digest(), reverse=True)


@dataclass(eq=False)
class Replica:
    """
    One server. *endpoint* is None until the server was up for the first time.

    *cause* is why it failed, "" if it works. New runs avoid it until second *rests_until* of the event loop's clock.
    """

    settings: Endpoint
    endpoint: ModelEndpoint | None = None
    cause: str = ""
    rests_until: float = 0.0
    runs: WeakSet[Placement] = field(default_factory=lambda: WeakSet[Placement]())
    entering: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def url(self) -> str:
        return self.settings.url

    @property
    def rested(self) -> bool:
        return not self.cause or asyncio.get_running_loop().time() >= self.rests_until

    def failed(self, exc: StepspecError) -> str:
        """Note the failure and begin to rest; return the cause."""
        self.cause = (exc.cause if isinstance(exc, EndpointError) else str(exc)) or "failed"
        self.rest()
        return self.cause

    def rest(self) -> None:
        self.rests_until = asyncio.get_running_loop().time() + self.settings.deadlines.rest

    def worked(self) -> None:
        self.cause = ""


class Replicas(Protocol):
    """The servers of one model, from which a `Placement` chooses."""

    @property
    def role(self) -> Role: ...

    def choose(self, failed: Mapping[str, str]) -> Replica:
        """Choose a replica that has not *failed*. Raise `EndpointUnavailable` if all have."""
        ...

    async def reach(self, replica: Replica) -> ModelEndpoint:
        """Return the endpoint of *replica*. Raise a `StepspecError` if it is down."""
        ...


class Placement:
    """The replica of one run. Calls may overlap; when the replica fails, the run moves once for all of them."""

    def __init__(self, replicas: Replicas, observe: Observer) -> None:
        self._replicas, self._observe = replicas, observe
        self._replica: Replica | None = None
        self._moving = asyncio.Lock()

    @property
    def role(self) -> Role:
        return self._replicas.role

    async def call(self, verb: Callable[[ModelEndpoint], Awaitable[T]]) -> T:
        """Call *verb* on the run's replica, or on the next. Raise `EndpointUnavailable` if it fails on all of them."""
        failed: dict[str, str] = {}
        while True:
            replica, endpoint = await self._place(failed)
            try:
                result = await verb(endpoint)
            except EndpointUnavailable as exc:
                failed[replica.url] = replica.failed(exc)
            else:
                replica.worked()
                return result

    def leave(self) -> None:
        if self._replica is not None:
            self._replica.runs.discard(self)
        self._replica = None

    async def _place(self, failed: dict[str, str]) -> tuple[Replica, ModelEndpoint]:
        """Return the run's replica, or choose another if it has *failed*; add replicas that are down to *failed*."""
        async with self._moving:
            while self._replica is None or self._replica.url in failed or self._replica.endpoint is None:
                chosen = self._replicas.choose(failed)
                try:
                    await self._replicas.reach(chosen)
                except StepspecError as exc:
                    failed[chosen.url] = chosen.failed(exc)
                else:
                    self._move(chosen, failed)
            return self._replica, self._replica.endpoint

    def _move(self, to: Replica, failed: Mapping[str, str]) -> None:
        left = self._replica
        self.leave()
        self._replica = to
        to.runs.add(self)
        if left is not None:
            self._observe(Moved(self.role, left.url, to.url, failed[left.url]))


class ReplicatedModel:
    """The `Model` of one run, on the replica of its *placement*."""

    def __init__(self, placement: Placement, make: Callable[[ModelEndpoint], Model]) -> None:
        self._placement, self._make = placement, make
        self._models: dict[str, Model] = {}

    @property
    def role(self) -> Role:
        return self._placement.role

    def leave(self) -> None:
        """Release the replica, as the run is over."""
        self._placement.leave()

    async def write(self, chain: Chain, **options: Unpack[WriteOptions]) -> Step:
        return await self._placement.call(lambda endpoint: self._model(endpoint).write(chain, **options))

    async def branch(
        self, chain: Chain, begun: Sequence[Step], *, stop: Sequence[str] | None = None, limit: int = DEFAULT_LIMIT
    ) -> tuple[Step, ...]:
        return await self._placement.call(
            lambda endpoint: self._model(endpoint).branch(chain, begun, stop=stop, limit=limit)
        )

    async def score(self, chain: Chain, *spans: str, top: int = 0) -> list[tuple[Token, ...]]:
        return await self._placement.call(lambda endpoint: self._model(endpoint).score(chain, *spans, top=top))

    async def ask(
        self, chain: Chain, question: str, choices: Sequence[str], *, opening: str = ""
    ) -> Mapping[str, float]:
        return await self._placement.call(
            lambda endpoint: self._model(endpoint).ask(chain, question, choices, opening=opening)
        )

    def _model(self, endpoint: ModelEndpoint) -> Model:
        url = endpoint.settings.url
        if url not in self._models:
            self._models[url] = self._make(endpoint)
        return self._models[url]


Messages = tuple[Message, ...]


def connect(settings: Endpoint, table: str = "") -> ModelEndpoint:
    """Make the endpoint that *settings* describe; it connects on entering. Errors name the *table* of the settings."""
    if settings.replicas:
        return ReplicatedEndpoint(settings, lambda server: VllmEndpoint(server, table))
    return VllmEndpoint(settings, table)


class ReplicatedEndpoint:
    """
    The servers of one model, as *settings* list them; *make* makes the endpoint of each.

    Entering succeeds if one server is up; `down` lists the others, which are tried again later. Raise
    `EndpointUnavailable`, with every URL and its cause, if none is up, and `EndpointRejected` for a server with another
    model, vocabulary or chat template than the others.
    """

    def __init__(self, settings: Endpoint, make: Callable[[Endpoint], ModelEndpoint] = VllmEndpoint) -> None:
        self.settings = settings
        self._make = make
        self._replicas = tuple([Replica(server) for server in settings.each])
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
        """The URL and the cause of every replica whose last call failed."""
        return {replica.url: replica.cause for replica in self._replicas if replica.cause}

    @property
    def runs(self) -> Mapping[str, int]:
        """The number of runs on the replica at each URL."""
        return {replica.url: len(replica.runs) for replica in self._replicas}

    async def count(self, messages: Messages, tools: tuple[Tool, ...] = ()) -> int:
        """Count the tokens that a chain about *messages* begins with."""
        return await self._any(lambda endpoint: endpoint.count(messages, tools))

    async def tool_format(self, toolset: Toolset) -> Format | None:
        """Ask a server as `VllmEndpoint.tool_format` does."""
        return await self._any(lambda endpoint: endpoint.tool_format(toolset))

    async def parse_answer(
        self, toolset: Toolset, tokens: Sequence[Token], state: ParserState, *, finished: bool
    ) -> tuple[str, tuple[Calling, ...], ParserState]:
        """Let any server parse, as `VllmEndpoint.parse_answer` does: *state* is all that it needs."""
        return await self._any(lambda endpoint: endpoint.parse_answer(toolset, tokens, state, finished=finished))

    async def _any(self, verb: Callable[[ModelEndpoint], Awaitable[T]]) -> T:
        """Call *verb* on one replica, or on the next if it fails."""
        placement = Placement(self, lambda event: None)
        try:
            return await placement.call(verb)
        finally:
            placement.leave()

    async def queue(self) -> QueueGauges | None:
        """Add up the queues of the servers; None if no server reports one."""
        queues = await asyncio.gather(*(endpoint.queue() for endpoint in self._up))
        known = [queue for queue in queues if queue is not None]
        return QueueGauges(sum(q.running for q in known), sum(q.waiting for q in known)) if known else None

    async def acceptance(self) -> Acceptance | None:
        """Add up the servers' counters of token-level speculation; None if no server speculates."""
        return total(await asyncio.gather(*(endpoint.acceptance() for endpoint in self._up)))

    async def capabilities(self) -> Capabilities:
        """
        Find out what all servers can do that were up at least once.

        Those that cannot be reached now are left out; raise `EndpointUnreachable` if none can.
        """
        found = await asyncio.gather(*(endpoint.capabilities() for endpoint in self._entered), return_exceptions=True)
        every = [each for each in found if isinstance(each, Capabilities)]
        for failure in found:
            if isinstance(failure, BaseException) and not (every and isinstance(failure, EndpointUnreachable)):
                raise failure
        shared: dict[str, Any] = {}
        for name in [capability.name for capability in fields(Capabilities)]:
            first, *others = values = [getattr(capabilities, name) for capabilities in every]
            shared[name] = first if all(other == first for other in others) else False if False in values else None
        return Capabilities(**shared)

    def model(
        self,
        sampling: Sampling = GREEDY,
        *,
        observe: Observer = lambda event: None,
        clock: Callable[[], float] | None = None,
        format: Format | None = None,
    ) -> ReplicatedModel:
        """Make the model of one run, as `VllmEndpoint.model` does; a run that is over calls `ReplicatedModel.leave`."""
        clock = or_now(clock)
        placement = Placement(self, observe)
        return ReplicatedModel(
            placement, lambda endpoint: endpoint.model(sampling, observe=observe, clock=clock, format=format)
        )

    def choose(self, failed: Mapping[str, str]) -> Replica:
        """
        Choose a replica among those that have not *failed* this call, preferably a rested one.

        A run of a session begins on the first that the session prefers, any other run on the one with the fewest runs.
        A replica that failed earlier is tried by one run at a time. Raise `EndpointUnavailable` if all have failed.
        """
        left = [replica for replica in self._replicas if replica.url not in failed]
        if not left:
            raise self._none_left(failed)
        candidates = [replica for replica in left if replica.rested] or left
        if session := SESSION.get():
            first, *_ = in_order((replica.url for replica in candidates), session)
            chosen = next(replica for replica in candidates if replica.url == first)
        else:
            chosen = min(candidates, key=lambda replica: len(replica.runs))
        if chosen.cause:
            chosen.rest()
        return chosen

    async def reach(self, replica: Replica) -> ModelEndpoint:
        """Return the endpoint of *replica*, entered again if it was down. Raise what entering raises."""
        async with replica.entering:
            if replica.endpoint is None or replica.cause:
                return await self._enter(replica)
            return replica.endpoint

    @property
    def up(self) -> tuple[ModelEndpoint, ...]:
        """The servers that have not failed since they were entered."""
        return tuple(self._up)

    @property
    def _entered(self) -> list[ModelEndpoint]:
        return [replica.endpoint for replica in self._replicas if replica.endpoint is not None]

    @property
    def _up(self) -> list[ModelEndpoint]:
        return [replica.endpoint for replica in self._replicas if replica.endpoint is not None and not replica.cause]

    async def _enter(self, replica: Replica) -> ModelEndpoint:
        """Check *replica* with a new connection, which becomes its endpoint if it had none."""
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
    """Raise `EndpointRejected` unless both serve the same model, vocabulary and chat template."""
    url, other_url = fresh.settings.url, known.settings.url
    if fresh.name != known.name:
        wrong = f"serves {fresh.name!r}, and its replica at {other_url} {known.name!r}"
    elif fresh.vocabulary != known.vocabulary:
        wrong = f"has another vocabulary than its replica at {other_url}"
    elif fresh.template != known.template:
        wrong = f"has another chat template than its replica at {other_url}"
    else:
        return
    raise EndpointRejected(wrong, role=fresh.role, url=url, verb="connect")
