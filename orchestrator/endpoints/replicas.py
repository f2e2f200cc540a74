"""
The servers of one model as one endpoint: a run stays on one replica, and moves to another when that one fails.

`ReplicatedEndpoint` holds the replicas, `Placement` the replica of one run, and `ReplicatedModel` is the run's `Model`.
The runs of one session begin on the same replica, whose prefix cache has the earlier turns: see `in_order`.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, fields
from hashlib import blake2b
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar, Unpack
from weakref import WeakSet

from ..chain import Chain, Message, Role, Step, Token, Tool, Toolset
from ..concurrency import background
from ..errors import (
    EndpointError,
    EndpointRejected,
    EndpointUnavailable,
    EndpointUnreachable,
    FormatIgnored,
    MalformedReply,
    StepspecError,
)
from ..events import Calling, Moved, Observer
from ..interfaces import DEFAULT_LIMIT, Model, WriteOptions
from ..stats import Acceptance
from .breaker import PROBE_SECONDS, Breaker
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

PROBE = Chain.of("1 + 1")
"""What a probe has one token written about."""


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
    """One server behind its *breaker*. *endpoint* is None until the server was up for the first time."""

    settings: Endpoint
    breaker: Breaker
    endpoint: ModelEndpoint | None = None
    runs: WeakSet[Placement] = field(default_factory=lambda: WeakSet[Placement]())

    @property
    def url(self) -> str:
        return self.settings.url


class Replicas(Protocol):
    """The servers of one model, from which a `Placement` chooses."""

    @property
    def role(self) -> Role: ...

    async def choose(self, failed: Mapping[str, int]) -> tuple[Replica, ModelEndpoint]:
        """
        Choose a replica that works; *failed* counts the failures of a call at each URL.

        Raise `EndpointUnavailable` if none is left.
        """
        ...


class Placement:
    """The replica of one run. Calls may overlap; when the replica fails, the run moves once for all of them."""

    def __init__(self, replicas: Replicas, observe: Observer) -> None:
        self._replicas, self._observe = replicas, observe
        self._replica: Replica | None = None
        self._endpoint: ModelEndpoint | None = None
        self._moving = asyncio.Lock()

    @property
    def role(self) -> Role:
        return self._replicas.role

    async def call(self, verb: Callable[[ModelEndpoint], Awaitable[T]]) -> T:
        """
        Call *verb* on the run's replica, or on the next. Raise `EndpointUnavailable` if it fails on all of them.

        A replica that failed is called once more if a probe has found since that it works and no other is left.
        """
        failed = Counter[str]()
        while True:
            replica, endpoint = await self._place(failed)
            try:
                return await verb(endpoint)
            except FormatIgnored:
                raise
            except (EndpointUnavailable, MalformedReply) as exc:
                failed[replica.url] += 1
                replica.breaker.fail(exc)

    def leave(self) -> None:
        if self._replica is not None:
            self._replica.runs.discard(self)
        self._replica = None

    async def _place(self, failed: Mapping[str, int]) -> tuple[Replica, ModelEndpoint]:
        """Return the run's replica, or choose another if it has *failed* or its circuit is open."""
        async with self._moving:
            replica, endpoint = self._replica, self._endpoint
            if replica is None or endpoint is None or failed.get(replica.url) or replica.breaker.state != "closed":
                replica, endpoint = await self._replicas.choose(failed)
                self._move(replica, endpoint)
            return replica, endpoint

    def _move(self, to: Replica, endpoint: ModelEndpoint) -> None:
        left = self._replica
        self.leave()
        self._replica, self._endpoint = to, endpoint
        to.runs.add(self)
        if left is not None and left is not to:
            self._observe(Moved(self.role, left.url, to.url, left.breaker.cause))


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


def connect(settings: Endpoint, table: str = "", *, optional: bool = False) -> ReplicatedEndpoint:
    """
    Make the endpoint that *settings* describe; it connects on entering. Errors name the *table* of the settings.

    An *optional* one may be entered while no server of it is up.
    """
    return ReplicatedEndpoint(settings, lambda server: VllmEndpoint(server, table), optional=optional)


class ReplicatedEndpoint:
    """
    The servers of one model, or the only one, as *settings* list them; *make* makes the endpoint of each.

    Entering succeeds if one server is up, or if the model is *optional*; `down` lists the others. Raise
    `EndpointUnavailable`, with every URL and its cause, if none is up, and `EndpointRejected` for a server with another
    model, vocabulary or chat template than the others, or that `refuses` gives a reason against.

    Each server has a circuit breaker. A failed call has the server probed at once, and until it passes a probe no other
    call is sent there: see docs/decisions/0028.
    """

    def __init__(
        self,
        settings: Endpoint,
        make: Callable[[Endpoint], ModelEndpoint] = VllmEndpoint,
        *,
        optional: bool = False,
    ) -> None:
        self.settings = settings
        self.refuses: Callable[[ModelEndpoint], str] = lambda endpoint: ""
        self._make, self._optional = make, optional
        self._replicas = tuple([Replica(each, Breaker(each.deadlines.rest)) for each in settings.each])
        self._exit, self._probing = AsyncExitStack(), AsyncExitStack()

    async def __aenter__(self) -> Self:
        try:
            entered = await asyncio.gather(*map(self._enter, self._replicas), return_exceptions=True)
            for replica, exc in zip(self._replicas, entered, strict=True):
                if isinstance(exc, EndpointUnavailable):
                    replica.breaker.open(exc)
                elif isinstance(exc, BaseException):
                    raise exc
            if not self.known and not self._optional:
                raise self._none_left()
            await self._probing.enter_async_context(background(*map(self._watch, self._replicas)))
        except BaseException:
            await self._exit.aclose()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._probing.aclose()
        await self._exit.aclose()

    @property
    def role(self) -> Role:
        return self.settings.role

    @property
    def name(self) -> str:
        """What the model calls itself; as long as no server of it was up, what the settings call it."""
        return self._entered[0].name if self.known else self.settings.model or "unknown"

    @property
    def known(self) -> bool:
        """Whether a server was up at least once, so that template, vocabulary and room are known."""
        return bool(self._entered)

    @property
    def usable(self) -> bool:
        """Whether a server works, or is being probed."""
        return any(replica.breaker.state != "open" for replica in self._replicas)

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
        """The URL and the cause of every replica that failed and has passed no probe since."""
        return {each.url: each.breaker.cause for each in self._replicas if each.breaker.state != "closed"}

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

    async def choose(self, failed: Mapping[str, int]) -> tuple[Replica, ModelEndpoint]:
        """
        Choose a replica that works, preferably one at which the call has not *failed*; wait for probes if none does.

        A run of a session begins on the first that the session prefers, any other run on the one with the fewest runs.
        Raise `EndpointUnavailable` if all circuits are open, and where the call has failed twice.
        """
        while True:
            left = [each for each in self._replicas if failed.get(each.url, 0) < 2]
            closed = [each for each in left if each.breaker.state == "closed"]
            candidates = [each for each in closed if each.url not in failed] or closed
            if candidates:
                chosen = _preferred(candidates)
                assert chosen.endpoint is not None
                return chosen, chosen.endpoint
            probed = [each.breaker.settled.wait() for each in left if each.breaker.state == "half-open"]
            if not probed:
                raise self._none_left()
            async with background(*probed) as waits:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)

    async def _watch(self, replica: Replica) -> None:
        """Probe *replica* while its circuit is not closed: at once, and then after pauses."""
        breaker = replica.breaker
        while True:
            await breaker.failing.wait()
            if breaker.state == "open":
                await asyncio.sleep(breaker.pause)
            try:
                await self._probe(replica)
            except StepspecError as exc:
                breaker.open(exc)
            else:
                breaker.close()

    async def _probe(self, replica: Replica) -> None:
        """
        Connect anew and write one token. Raise a `StepspecError` if that fails, or takes longer than `PROBE_SECONDS`.

        Where requests wait at the server, the token has as long as any other request's first.
        """
        now = asyncio.get_running_loop().time
        began = now()
        try:
            async with asyncio.timeout(PROBE_SECONDS) as limit:
                await self._enter(replica, limit)
        except TimeoutError:
            late = f"no answer to a probe within {now() - began:.0f} s"
            raise EndpointUnavailable(late, role=self.role, url=replica.url, verb="probe") from None

    @property
    def up(self) -> tuple[ModelEndpoint, ...]:
        """The servers whose circuits are closed."""
        return tuple(self._up)

    @property
    def _entered(self) -> list[ModelEndpoint]:
        return [replica.endpoint for replica in self._replicas if replica.endpoint is not None]

    @property
    def _up(self) -> list[ModelEndpoint]:
        return [
            replica.endpoint
            for replica in self._replicas
            if replica.endpoint is not None and replica.breaker.state == "closed"
        ]

    async def _enter(self, replica: Replica, limit: asyncio.Timeout | None = None) -> None:
        """
        Check *replica* with a new connection, which becomes its endpoint if it had none.

        A probe has a *limit*: it sends each request once, and has one token written.
        """
        async with AsyncExitStack() as stack:
            settings = replica.settings.model_copy(update={"retries": 0}) if limit else replica.settings
            fresh = await stack.enter_async_context(self._make(settings))
            others = [other.endpoint for other in self._replicas if other is not replica]
            known = next((other for other in (*others, replica.endpoint) if other is not None), fresh)
            _same(fresh, known)
            if why := self.refuses(fresh):
                raise EndpointRejected(why, role=self.role, url=replica.url, verb="connect")
            if limit:
                queue = await fresh.queue()
                if queue and queue.waiting:
                    limit.reschedule(asyncio.get_running_loop().time() + settings.deadlines.unstreamed)
                await fresh.model().write(PROBE, limit=1)
            elif replica.endpoint is None:
                replica.endpoint = fresh
                self._exit.push_async_exit(stack.pop_all())
        if limit and replica.endpoint is None:
            await self._enter(replica)

    def _none_left(self) -> EndpointUnavailable:
        first = self._replicas[0].breaker.error
        if len(self._replicas) == 1 and isinstance(first, EndpointError):
            kind = type(first) if isinstance(first, EndpointUnavailable) else EndpointUnavailable
            again = kind(first.cause, role=first.role, url=first.url, verb=first.verb)
            again.retry_after = first.retry_after if isinstance(first, EndpointUnavailable) else 0.0
            return again
        causes = "; ".join(f"{each.url}: {each.breaker.cause}" for each in self._replicas if each.breaker.error)
        return EndpointUnavailable(f"no replica is left: {causes}", role=self.role, url=", ".join(self.settings.urls))


def _preferred(candidates: Sequence[Replica]) -> Replica:
    """Return the replica that the session prefers, or the one with the fewest runs."""
    if session := SESSION.get():
        first, *_ = in_order((replica.url for replica in candidates), session)
        return next(replica for replica in candidates if replica.url == first)
    return min(candidates, key=lambda replica: len(replica.runs))


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
