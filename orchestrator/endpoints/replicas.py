"""
The servers of one model as one endpoint.

A run stays on one replica, and moves to another if that one fails. The runs of one session begin on
the same replica, whose prefix cache has the earlier turns.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Self, TypeVar, Unpack

from ..chain import Chain, Role, Step, Token, Toolset
from ..concurrency import background
from ..errors import (
    EndpointError,
    EndpointRejected,
    EndpointUnavailable,
)
from ..events import Moved, Observer
from ..interfaces import DEFAULT_LIMIT, Model, WriteOptions
from .breaker import UNUSABLE_STATUSES, ProbedServers, Replica
from .chat_template import Template
from .interfaces import (
    Clock,
    Format,
    Messages,
    ParsedAnswer,
    ParsedTokens,
    ParserState,
    Server,
    SingleModel,
    Tools,
    or_now,
)
from .metrics import Acceptance, QueueGauges, total
from .request_context import SESSION
from .settings import GREEDY, Endpoint, Sampling

T = TypeVar("T")


MAX_TRIES = 2
"""The most tries of one call on one server, if calls do not wait for a server that is down."""
MAX_PATIENT_TRIES = 5
"""The most tries of one call on one server, if calls wait."""


def in_order(urls: Iterable[str], session: str) -> list[str]:
    """
    Return *urls* in the order in which *session* prefers them.

    This is rendezvous hashing (Thaler and Ravishankar, 1998), which needs no table of sessions. A
    server that is lost moves its own sessions only, and they return when it does.
    """
    return sorted(
        urls,
        key=lambda url: blake2b(f"{session}\n{url}".encode(), digest_size=8).digest(),
        reverse=True,
    )


async def choose(
    servers: ProbedServers,
    failed: Mapping[str, int],
    patience: float = 0.0,
) -> Replica:
    """
    Choose a replica that works. Wait for probes if none does.

    *failed* counts the failures of the call at each URL. Replicas at which the call has not failed
    go first. Raise `EndpointUnavailable` if all circuits stay open for *patience* seconds and in a
    last probe after that, or if the call has failed too often everywhere.
    """
    loop = asyncio.get_running_loop()
    until = loop.time() + patience
    tries = MAX_PATIENT_TRIES if patience else MAX_TRIES
    is_last = not patience  # whether the last probe has been asked for
    while True:
        left = [replica for replica in servers.replicas if failed.get(replica.url, 0) < tries]
        closed = [replica for replica in left if replica.breaker.state == "closed"]
        if closed:
            unfailed = [replica for replica in closed if replica.url not in failed]
            return _preferred(unfailed or closed)
        probed = [replica for replica in left if replica.breaker.state == "half-open"]
        seconds = until - loop.time()
        is_over = not probed and seconds <= 0
        if not left or (is_over and is_last) or servers.stopped:
            raise servers.none_left()
        if is_over:
            is_last = True
            for replica in left:
                replica.breaker.wanted.set()
            await _change(left, None, asyncio.ALL_COMPLETED)
        else:
            await _change(
                probed or left,
                None if probed else seconds,
                asyncio.FIRST_COMPLETED,
            )


async def _change(replicas: Sequence[Replica], seconds: float | None, return_when: str) -> None:
    """
    Wait until the circuits of *replicas* change, at most *seconds*. None: for ever.

    *return_when* is that of `asyncio.wait`.
    """
    async with background(*(replica.breaker.changed.wait() for replica in replicas)) as tasks:
        await asyncio.wait(tasks, timeout=seconds, return_when=return_when)


def _preferred(candidates: Sequence[Replica]) -> Replica:
    """Return the replica that the session prefers. Without a session: with the fewest runs."""
    session = SESSION.get()
    if not session:
        return min(candidates, key=lambda replica: len(replica.runs))
    by_url = {replica.url: replica for replica in candidates}
    return by_url[in_order(by_url, session)[0]]


class Placement:
    """
    The replica of one run. Calls may overlap: if the replica fails, the run moves once for all.

    A call waits for *patience* seconds for a server while none works.
    """

    def __init__(
        self,
        servers: ProbedServers,
        observe: Observer,
        patience: float,
    ) -> None:
        self._servers = servers
        self._observe = observe
        self._patience = patience
        self._replica: Replica | None = None
        self._moving = asyncio.Lock()

    @property
    def role(self) -> Role:
        return self._servers.role

    async def call(self, verb: Callable[[Server], Awaitable[T]]) -> T:
        """
        Call *verb* on the run's replica, or on the next. Raise `EndpointUnavailable` if it fails on
        all of them.

        A replica that failed is called once more if a probe has found since that it works and no
        other is left. A rejection that every request to the replica would get is a failure of the
        replica, and is raised if all fail. A replica that rejects a request as its context or
        vocabulary is not as learnt is learnt anew and called again.
        """
        failed = Counter[str]()
        rejection: EndpointRejected | None = None
        while True:
            try:
                replica = await self._place(failed)
            except EndpointUnavailable as exc:
                raise rejection or exc from None
            try:
                return await self._call_on(replica, verb, first=not failed)
            except EndpointRejected as exc:
                if exc.status not in UNUSABLE_STATUSES:
                    raise
                rejection = exc
                failure: EndpointError = exc
            except EndpointError as exc:
                failure = exc
            failed[replica.url] += 1
            replica.breaker.fail(failure)

    async def _call_on(
        self,
        replica: Replica,
        verb: Callable[[Server], Awaitable[T]],
        *,
        first: bool,
    ) -> T:
        """Call *verb* on *replica*. A *first* rejection may mean that the server has changed."""
        try:
            return await verb(replica.server)
        except EndpointRejected as exc:
            if first and exc.status not in UNUSABLE_STATUSES:
                await replica.server.check_unchanged()
            raise

    def leave(self) -> None:
        if self._replica is not None:
            self._replica.runs.discard(self)
        self._replica = None

    async def _place(self, failed: Mapping[str, int]) -> Replica:
        """Return the run's replica, or choose another if it has *failed* or its circuit is open."""
        async with self._moving:
            replica = self._replica
            if replica is None or failed.get(replica.url) or replica.breaker.state != "closed":
                replica = await choose(self._servers, failed, self._patience)
                self._move(replica)
            return replica

    def _move(self, to: Replica) -> None:
        left = self._replica
        self.leave()
        self._replica = to
        to.runs.add(self)
        if left is not None and left is not to:
            self._observe(Moved(self.role, left.url, to.url, left.breaker.cause))


class ReplicatedModel(SingleModel):
    """The `Model` of one run, on the replica of its *placement*."""

    def __init__(self, placement: Placement, make: Callable[[Server], Model]) -> None:
        self._placement = placement
        self._make = make
        self._models: dict[str, Model] = {}

    @property
    def role(self) -> Role:
        return self._placement.role

    def leave(self) -> None:
        self._placement.leave()

    async def write(self, chain: Chain, **options: Unpack[WriteOptions]) -> Step:
        return await self._placement.call(
            lambda endpoint: self._model(endpoint).write(chain, **options)
        )

    async def branch(
        self,
        chain: Chain,
        beginnings: Sequence[Step],
        *,
        stop: Sequence[str] | None = None,
        limit: int = DEFAULT_LIMIT,
    ) -> tuple[Step, ...]:
        return await self._placement.call(
            lambda endpoint: self._model(endpoint).branch(
                chain,
                beginnings,
                stop=stop,
                limit=limit,
            )
        )

    async def score(self, chain: Chain, *spans: str, top: int = 0) -> list[tuple[Token, ...]]:
        return await self._placement.call(
            lambda endpoint: self._model(endpoint).score(chain, *spans, top=top)
        )

    async def ask(
        self,
        chain: Chain,
        question: str,
        choices: Sequence[str],
        *,
        opening: str = "",
    ) -> Mapping[str, float]:
        return await self._placement.call(
            lambda endpoint: self._model(endpoint).ask(
                chain,
                question,
                choices,
                opening=opening,
            )
        )

    def _model(self, endpoint: Server) -> Model:
        url = endpoint.settings.url
        if url not in self._models:
            self._models[url] = self._make(endpoint)
        return self._models[url]


class ReplicatedEndpoint(ProbedServers):
    """
    The servers of one model, or the only one, as *settings* list them; *make* makes the endpoint of
    each.

    Entering succeeds if one server is up, or if the model is *optional*; `down` lists the others.
    Raise `EndpointUnavailable`, with every URL and its cause, if none is up, and `EndpointRejected`
    for a server with another model, vocabulary or chat template than the others, or that
    `refuses` gives a reason against.

    Each server has a circuit breaker. A failed call has the server probed at once, and until it
    passes a probe no other call is sent there. While no server works, a call waits for one for
    `patience` seconds.
    """

    def __init__(
        self,
        settings: Endpoint,
        make: Callable[[Endpoint], Server],
        *,
        optional: bool = False,
    ) -> None:
        super().__init__(settings, make)
        self.patience = 0.0
        """Seconds for which a call waits while no server works."""
        self._optional = optional

    async def __aenter__(self) -> Self:
        await self.start(optional=self._optional)
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.stop()

    @property
    def name(self) -> str:
        """
        What the model calls itself; as long as no server of it was up, what the settings call it.
        """
        return self._first.name if self.known else self.settings.model or "unknown"

    @property
    def known(self) -> bool:
        return any(self.entered)

    @property
    def usable(self) -> bool:
        """Whether a server works, or is being probed."""
        return any(replica.breaker.state != "open" for replica in self.replicas)

    @property
    def template(self) -> Template:
        return self._first.template

    @property
    def vocabulary(self) -> str:
        return self._first.vocabulary

    @property
    def room(self) -> int:
        return min(endpoint.room for endpoint in self.up or self.entered)

    @property
    def runs(self) -> Mapping[str, int]:
        """The number of runs and forwarded requests on the replica at each URL."""
        return {replica.url: len(replica.runs) for replica in self.replicas}

    @property
    def waiting(self) -> int:
        """The number of requests that wait for a slot of a server."""
        return sum(endpoint.waiting for endpoint in self.entered)

    @property
    def _first(self) -> Server:
        return next(iter(self.up or self.entered))

    async def call(self, verb: Callable[[Server], Awaitable[T]]) -> T:
        """
        Call *verb* on one server, or on the next if it raises `EndpointUnavailable` or
        `MalformedReply`.

        A server that fails is probed. The call counts as a run of its server meanwhile.
        """
        placement = Placement(self, lambda event: None, self.patience)
        try:
            return await placement.call(verb)
        finally:
            placement.leave()

    async def count(self, messages: Messages, tools: Tools = ()) -> int:
        return await self.call(lambda endpoint: endpoint.count(messages, tools))

    async def thinks(self, messages: Messages, tools: Tools = ()) -> bool:
        return await self.call(lambda endpoint: endpoint.thinks(messages, tools))

    async def tool_format(self, toolset: Toolset) -> Format | None:
        return await self.call(lambda endpoint: endpoint.tool_format(toolset))

    async def parse_answer(self, toolset: Toolset, tokens: Sequence[Token]) -> ParsedAnswer:
        return await self.call(lambda endpoint: endpoint.parse_answer(toolset, tokens))

    async def parse_tokens(
        self,
        toolset: Toolset,
        tokens: Sequence[Token],
        state: ParserState,
        *,
        finished: bool,
    ) -> ParsedTokens:
        """
        Let any server parse, as `ModelEndpoint.parse_tokens` does: *state* is all that it needs.
        """
        return await self.call(
            lambda endpoint: endpoint.parse_tokens(
                toolset,
                tokens,
                state,
                finished=finished,
            )
        )

    async def queue(self) -> QueueGauges | None:
        """Add up the queues of the servers; None if no server reports one."""
        return QueueGauges.sum(await asyncio.gather(*(endpoint.queue() for endpoint in self.up)))

    async def acceptance(self) -> Acceptance | None:
        """Add up the servers' counters of token-level speculation; None if no server speculates."""
        return total(await asyncio.gather(*(endpoint.acceptance() for endpoint in self.up)))

    def model(
        self,
        sampling: Sampling = GREEDY,
        *,
        observe: Observer = lambda event: None,
        clock: Clock | None = None,
        format: Format | None = None,
    ) -> ReplicatedModel:
        """Make the model of one run, as `ModelEndpoint.model` does."""
        clock = or_now(clock)
        placement = Placement(self, observe, self.patience)
        return ReplicatedModel(
            placement,
            lambda endpoint: endpoint.model(
                sampling,
                observe=observe,
                clock=clock,
                format=format,
            ),
        )
