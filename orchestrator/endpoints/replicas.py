"""
The servers of one model as one endpoint.

A run stays on one replica, and moves to another if that one fails. The runs of one session begin on
the same replica, whose prefix cache has the earlier turns.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from copy import copy
from hashlib import blake2b
from typing import Self, TypeVar, Unpack

from ..chain import Chain, Role, Step, Token, Toolset
from ..concurrency import background
from ..errors import (
    EndpointError,
    EndpointRejected,
    EndpointUnavailable,
    StepspecError,
)
from ..events import Moved, Observer
from ..interfaces import DEFAULT_LIMIT, Model, WriteOptions
from .breaker import PROBE_SECONDS, UNUSABLE_STATUSES, Replica
from .chat_template import Template
from .interfaces import (
    Clock,
    Format,
    Messages,
    ParsedAnswer,
    ParsedTokens,
    ParserState,
    Server,
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


def preferred(candidates: Sequence[Replica]) -> Replica:
    """Return the replica that the session prefers. Without a session: with the fewest runs."""
    session = SESSION.get()
    if not session:
        return min(candidates, key=lambda replica: len(replica.runs))
    by_url = {replica.url: replica for replica in candidates}
    return by_url[in_order(by_url, session)[0]]


class Placement:
    """
    The replica of one run at *endpoint*. Calls may overlap: if the replica fails, the run moves
    once for all.
    """

    def __init__(self, endpoint: ReplicatedEndpoint, observe: Observer) -> None:
        self._endpoint = endpoint
        self._observe = observe
        self._replica: Replica | None = None
        self._moving = asyncio.Lock()

    @property
    def role(self) -> Role:
        return self._endpoint.role

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
                return await self._call_on(replica.server, verb)
            except EndpointError as exc:
                if _blames_request(exc):
                    raise
                if isinstance(exc, EndpointRejected):
                    rejection = exc
                failed[replica.url] += 1
                replica.fail(exc)

    async def _call_on(self, server: Server, verb: Callable[[Server], Awaitable[T]]) -> T:
        """Call *verb* on *server*. A rejection may mean that the server has changed."""
        try:
            return await verb(server)
        except EndpointRejected as exc:
            if _blames_request(exc):
                await server.check_unchanged()
            raise

    def leave(self) -> None:
        if self._replica is not None:
            self._replica.runs.discard(self)
        self._replica = None

    async def _place(self, failed: Mapping[str, int]) -> Replica:
        """Return the run's replica, or choose another if it has *failed* or its circuit is open."""
        async with self._moving:
            replica = self._replica
            if replica is None or failed.get(replica.url) or replica.state != "closed":
                replica = await self._choose(failed)
                self._move(replica)
            return replica

    async def _choose(self, failed: Mapping[str, int]) -> Replica:
        """
        Choose a replica that works. Wait for probes if none does.

        *failed* counts the failures of the call at each URL. Replicas at which the call has not
        failed go first. Raise `EndpointUnavailable` if all circuits stay open for `patience`
        seconds and in a last probe after that, or if the call has failed too often everywhere.
        """
        loop = asyncio.get_running_loop()
        patience = self._endpoint.patience
        until = loop.time() + patience
        tries = MAX_PATIENT_TRIES if patience else MAX_TRIES
        is_last = not patience  # whether the last probe has been asked for
        while True:
            left = [each for each in self._endpoint.replicas if failed.get(each.url, 0) < tries]
            closed = [replica for replica in left if replica.state == "closed"]
            if closed:
                unfailed = [replica for replica in closed if replica.url not in failed]
                return preferred(unfailed or closed)
            is_probed = any(replica.state == "half-open" for replica in left)
            is_over = not is_probed and loop.time() >= until
            if not left or (is_over and is_last) or self._endpoint.stopped:
                raise self._endpoint.none_left()
            if is_over:
                is_last = True
                for replica in left:
                    replica.become("half-open")
            with suppress(TimeoutError):
                async with asyncio.timeout_at(None if is_probed or is_over else until):
                    await self._endpoint.changed.wait()

    def _move(self, to: Replica) -> None:
        left = self._replica
        self.leave()
        self._replica = to
        to.runs.add(self)
        if left is not None and left is not to:
            self._observe(Moved(self.role, left.url, to.url, left.cause))


def _blames_request(exc: EndpointError) -> bool:
    """Return whether *exc* is a rejection that another request to the server may not get."""
    return isinstance(exc, EndpointRejected) and exc.status not in UNUSABLE_STATUSES


class ReplicatedModel(Placement):
    """The `Model` of one run. *make* makes that of one server."""

    def __init__(
        self,
        endpoint: ReplicatedEndpoint,
        observe: Observer,
        make: Callable[[Server], Model],
    ) -> None:
        super().__init__(endpoint, observe)
        self._make = make
        self._models: dict[str, Model] = {}

    async def write(self, chain: Chain, **options: Unpack[WriteOptions]) -> Step:
        return await self.call(lambda endpoint: self._model(endpoint).write(chain, **options))

    async def branch(
        self,
        chain: Chain,
        beginnings: Sequence[Step],
        *,
        stop: Sequence[str] | None = None,
        limit: int = DEFAULT_LIMIT,
    ) -> tuple[Step, ...]:
        return await self.call(
            lambda endpoint: self._model(endpoint).branch(
                chain,
                beginnings,
                stop=stop,
                limit=limit,
            )
        )

    async def score(self, chain: Chain, *spans: str, top: int = 0) -> list[tuple[Token, ...]]:
        return await self.call(lambda endpoint: self._model(endpoint).score(chain, *spans, top=top))

    async def ask(
        self,
        chain: Chain,
        question: str,
        choices: Sequence[str],
        *,
        opening: str = "",
    ) -> Mapping[str, float]:
        return await self.call(
            lambda endpoint: self._model(endpoint).ask(
                chain,
                question,
                choices,
                opening=opening,
            )
        )

    def _model(self, server: Server) -> Model:
        url = server.settings.url
        if url not in self._models:
            self._models[url] = self._make(server)
        return self._models[url]


class ReplicatedEndpoint:
    """
    The servers of one model, or the only one, as *settings* list them; *make* makes the endpoint of
    each.

    Entering succeeds if one server is up, or if the model is *optional*; `down` lists the others.
    Raise `EndpointUnavailable`, with every URL and its cause, if none is up, and `EndpointRejected`
    for a server with another model, vocabulary or chat template than the others, or that
    `reason_to_refuse` gives a reason against.

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
        self.settings = settings
        self.replicas = tuple([Replica(each, make, self._refuse) for each in settings.each])
        self.reason_to_refuse: Callable[[Server], str] = lambda server: ""
        """Returns a reason against a server, or ""."""
        self.patience = 0.0
        """Seconds for which a call waits while no server works."""
        self.stopped = False
        """Whether nothing is probed any more."""
        self._optional = optional
        self._probing = AsyncExitStack()

    async def __aenter__(self) -> Self:
        self.stopped = False
        self.changed = asyncio.Event()
        for replica in self.replicas:
            replica.changed = self.changed
        try:
            await self._connect_all()
            if not self._optional and not self.known:
                raise self.none_left()
            watching = background(*(replica.watch() for replica in self.replicas))
            await self._probing.enter_async_context(watching)
        except BaseException:
            await self._disconnect_all()
            raise
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._probing.aclose()
        self.stopped = True
        for replica in self.replicas:  # A run that goes on would wait for ever for a probe.
            replica.open(replica.failure(EndpointUnavailable, "the solver is closed"))
        await self._disconnect_all()

    async def _connect_all(self) -> None:
        """
        Connect to all servers.

        Once one is up, the others have `PROBE_SECONDS`: one that hangs must not hold up the rest.
        """
        async with background(*(replica.start() for replica in self.replicas)) as connecting:
            waiting: Collection[asyncio.Task[None]] = connecting
            while waiting and not self.known:
                _, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if waiting:
                await asyncio.wait(waiting, timeout=PROBE_SECONDS)
        for replica, task in zip(self.replicas, connecting, strict=True):
            if task.cancelled():
                late = f"no connection {PROBE_SECONDS:g} s after another server"
                replica.open(replica.failure(EndpointUnavailable, late))
            else:
                task.result()

    async def _disconnect_all(self) -> None:
        for replica in self.replicas:
            await replica.disconnect()

    @property
    def role(self) -> Role:
        return self.settings.role

    @property
    def name(self) -> str:
        """
        What the model calls itself; as long as no server of it was up, what the settings call it.
        """
        return self._first.name if self.known else self.settings.model or "unknown"

    @property
    def known(self) -> bool:
        return bool(self.entered)

    @property
    def usable(self) -> bool:
        """Whether a server works, or is being probed."""
        return any(replica.state != "open" for replica in self.replicas)

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
    def entered(self) -> list[Server]:
        """The servers that were up at least once."""
        return [replica.endpoint for replica in self.replicas if replica.endpoint is not None]

    @property
    def up(self) -> list[Server]:
        """The servers whose circuits are closed."""
        return [
            replica.endpoint
            for replica in self.replicas
            if replica.endpoint is not None and replica.state == "closed"
        ]

    @property
    def down(self) -> Mapping[str, str]:
        """The URL and the cause of every server that failed and has passed no probe since."""
        return {
            replica.url: replica.cause for replica in self.replicas if replica.state != "closed"
        }

    @property
    def _first(self) -> Server:
        return (self.up or self.entered)[0]

    def report(self, url: str, exc: StepspecError) -> None:
        """
        Have the server at *url* probed after *exc*, which no call of a run has raised.

        A health check has failed, for example, or a forwarded stream.
        """
        for replica in self.replicas:
            if replica.url == url:
                replica.fail(exc)

    def none_left(self) -> EndpointUnavailable:
        """Make the error for a call when no server works."""
        errors = [replica.error for replica in self.replicas]
        if len(errors) == 1 and isinstance(errors[0], EndpointUnavailable):
            return copy(errors[0])
        causes = "; ".join([f"{replica.url}: {replica.cause}" for replica in self.replicas])
        error = EndpointUnavailable(
            f"no replica is left: {causes}",
            role=self.role,
            url=", ".join(self.settings.urls),
        )
        error.retry_after = min([getattr(failure, "retry_after", 0.0) for failure in errors])
        return error

    def _refuse(self, replica: Replica, fresh: Server) -> str:
        """
        Return why *fresh* must not serve as *replica*; "" if it may.

        It must serve what the other servers do that are up, and the model that was served here
        before. The names of all servers have to be equal: while a server is down, its model may
        have been updated.
        """
        for other in self.replicas:
            known = other.endpoint
            if known is None:
                continue
            place = f"its replica at {other.url}"
            if fresh.name != known.name:
                where = "before" if other is replica else place
                return f"serves {fresh.name!r}, and {where} {known.name!r}"
            if other.state == "closed" and fresh.vocabulary != known.vocabulary:
                return f"has another vocabulary than {place}"
            if other.state == "closed" and fresh.template != known.template:
                return f"has another chat template than {place}"
        return self.reason_to_refuse(fresh)

    async def call(self, verb: Callable[[Server], Awaitable[T]]) -> T:
        """
        Call *verb* on one server, or on the next if it raises `EndpointUnavailable` or
        `MalformedReply`.

        A server that fails is probed. The call counts as a run of its server meanwhile.
        """
        placement = Placement(self, lambda event: None)
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
        return total(await asyncio.gather(*(endpoint.queue() for endpoint in self.up)))

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
        return ReplicatedModel(
            self,
            observe,
            lambda endpoint: endpoint.model(
                sampling,
                observe=observe,
                clock=clock,
                format=format,
            ),
        )
