"""
The servers of one model as one endpoint.

A run stays on one replica. If this replica fails, the run moves to another. The runs of one session
begin on the same replica, because its prefix cache has the earlier turns.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from copy import copy
from hashlib import blake2b
from random import random
from typing import Self, TypeVar, Unpack

from ..chain import Chain, Role, Step, Token
from ..concurrency import background
from ..errors import (
    EndpointError,
    EndpointRejected,
    EndpointUnavailable,
    StepspecError,
)
from ..events import Moved, Observer
from ..interfaces import Model, WriteOptions
from .breaker import PROBE_SECONDS, UNUSABLE_STATUSES, Replica
from .chat_template import Template
from .interfaces import Clock, Format, Server, or_now
from .metrics import QueueGauges, total
from .request_context import SESSION
from .settings import GREEDY, Endpoint, Sampling

T = TypeVar("T")


MAX_TRIES = 2
"""The maximum number of tries of one call on one server, if `patience` is 0."""
MAX_PATIENT_TRIES = 5
"""The maximum number of tries of one call on one server, if `patience` is above 0."""


def in_order(urls: Iterable[str], session: str) -> list[str]:
    """
    Return *urls* in the order in which *session* prefers them.

    This is rendezvous hashing (Thaler and Ravishankar, 1998). It needs no table of sessions. If a
    server is lost, only its own sessions move. They return when the server returns.
    """
    return sorted(
        urls,
        key=lambda url: blake2b(f"{session}\n{url}".encode(), digest_size=8).digest(),
        reverse=True,
    )


def preferred(candidates: Sequence[Replica]) -> Replica:
    """
    Return the replica that the session prefers.

    Without a session, return a replica with the fewest runs: a random one, so that several
    processes do not all begin with the first replica.
    """
    session = SESSION.get()
    if not session:
        return min(candidates, key=lambda replica: (len(replica.runs), random()))
    by_url = {replica.url: replica for replica in candidates}
    return by_url[in_order(by_url, session)[0]]


class Placement:
    """
    The replica of one run at *endpoint*.

    The calls of the run may overlap. If the replica fails, the run moves once, with all its calls.
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
        Call *verb* on the run's replica. If the replica fails, go on with another one.

        Raise `EndpointUnavailable` if no replica is left. A replica that failed is called again
        only if a later probe succeeded, and only if every other replica failed or is down.

        If a server rejects the API key, or would reject every request for another reason, the
        replica has failed. If no replica is left, the last such rejection is raised. A replica has
        also failed if it rejects a request because its context or vocabulary has changed. A probe
        then learns the replica anew.
        """
        failed = Counter[str]()
        rejection: EndpointRejected | None = None
        while True:
            try:
                replica = await self._place(failed)
            except EndpointUnavailable as exc:
                # Only the user can correct the cause of the rejection, for example a wrong key.
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
        """
        Call *verb* on *server*.

        If the server rejects the call because the server has changed, raise `EndpointUnavailable`.
        """
        try:
            return await verb(server)
        except EndpointRejected as exc:
            if _blames_request(exc):
                await server.check_unchanged()  # If this raises, `call` tries again.
            raise

    def leave(self) -> None:
        if self._replica is not None:
            self._replica.runs.discard(self)
        self._replica = None

    async def _place(self, failed: Mapping[str, int]) -> Replica:
        """Return the run's replica. If this replica has *failed* or is not up, choose anew."""
        async with self._moving:
            replica = self._replica
            if replica is None or failed.get(replica.url) or replica.state != "closed":
                replica = await self._choose(failed)
                self._move(replica)
            return replica

    async def _choose(self, failed: Mapping[str, int]) -> Replica:
        """
        Choose a replica that works. If no replica works, wait for probes.

        *failed* counts the failures of the call at each URL. Replicas without a failure of this
        call go first. If `patience` is above 0, each replica is probed once more after
        `patience` seconds.

        Raise `EndpointUnavailable` if no replica works within `patience` seconds, and the last
        probes fail. Raise it also if the call has failed too often on every replica.
        """
        loop = asyncio.get_running_loop()
        patience = self._endpoint.patience
        until = loop.time() + patience
        tries = MAX_PATIENT_TRIES if patience else MAX_TRIES
        # Without patience there is no last probe: act as if it had been requested.
        last_probe_requested = not patience
        while True:
            left = [each for each in self._endpoint.replicas if failed.get(each.url, 0) < tries]
            closed = [replica for replica in left if replica.state == "closed"]
            if closed:
                unfailed = [replica for replica in closed if replica.url not in failed]
                return preferred(unfailed or closed)
            is_probing = any(replica.state == "half-open" for replica in left)
            patience_is_over = not is_probing and loop.time() >= until
            if not left or (patience_is_over and last_probe_requested) or self._endpoint.stopped:
                raise self._endpoint.none_left()
            if patience_is_over:
                last_probe_requested = True
                for replica in left:
                    replica.become("half-open")
            # Probes have their own time limits. Without a probe, wait until the patience is over.
            with suppress(TimeoutError):
                async with asyncio.timeout_at(None if is_probing or patience_is_over else until):
                    await self._endpoint.changed.wait()

    def _move(self, to: Replica) -> None:
        previous = self._replica
        self.leave()
        self._replica = to
        to.runs.add(self)
        if previous is not None and previous is not to:
            self._observe(Moved(self.role, previous.url, to.url, previous.cause))


def _blames_request(exc: EndpointError) -> bool:
    """Return whether *exc* rejects this request only. The server can accept other requests."""
    return isinstance(exc, EndpointRejected) and exc.status not in UNUSABLE_STATUSES


class ReplicatedModel(Placement):
    """The `Model` of one run. *make* returns the `Model` on one server."""

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
    The servers of one model.

    *settings* list one or more servers. *make* returns the endpoint of one server.

    Entering succeeds if one server is up, or if the model is *optional*. `down` lists the servers
    that are not up. If no server is up, and the model is not optional, raise
    `EndpointUnavailable` with every URL and its cause. Raise `EndpointRejected` if a server has
    another model, vocabulary or chat template than the others. Raise `EndpointRejected` also if
    `reason_to_refuse` returns a reason against a server.

    Each server has a circuit breaker. After a failed call, the server is probed at once. Until a
    probe succeeds, no new call is sent to this server. If no server works, a call waits for
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
        """Returns a reason against a server. "": there is none."""
        self.patience = 0.0
        """Seconds for which a call waits while no server works."""
        self.stopped = False
        """Whether the endpoint was exited. Then no server is probed."""
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
        # Open all circuits. A run that goes on would otherwise wait for a probe for ever.
        for replica in self.replicas:
            replica.open(replica.failure(EndpointUnavailable, "the solver is closed"))
        await self._disconnect_all()

    async def _connect_all(self) -> None:
        """
        Connect to all servers.

        After the first server is up, the others have `PROBE_SECONDS` more. A server that hangs
        must not hold up the rest.
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
        """The name that the servers give the model. Before a server was up: `settings.model`."""
        return self._first.name if self.known else self.settings.model or "unknown"

    @property
    def known(self) -> bool:
        """Whether a server was up at least once."""
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
        """The URL of every server that is not up, with the cause."""
        return {
            replica.url: replica.cause for replica in self.replicas if replica.state != "closed"
        }

    @property
    def _first(self) -> Server:
        return (self.up or self.entered)[0]

    def report(self, url: str, exc: StepspecError) -> None:
        """
        Record *exc*, an error of the server at *url* outside of the calls of runs.

        For example, a health check or a forwarded stream failed. The server is probed, as after
        a failed call.
        """
        for replica in self.replicas:
            if replica.url == url:
                replica.fail(exc)

    def none_left(self) -> EndpointUnavailable:
        """Return the error for a call that no server can answer."""
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
        Return a reason why *fresh* must not serve as *replica*. "": there is none.

        The vocabulary and the chat template must be equal to those of every server that is up. The
        model's name must be equal to that of every server that was ever up, also to the name that
        this replica had before. Of a server that is down, only the name is compared, because its
        model may be updated meanwhile.
        """
        for other in self.replicas:
            served = other.endpoint
            if served is None:
                continue
            place = f"its replica at {other.url}"
            if fresh.name != served.name:
                where = "before" if other is replica else place
                return f"serves {fresh.name!r}, and {where} {served.name!r}"
            if other.state == "closed" and fresh.vocabulary != served.vocabulary:
                return f"has another vocabulary than {place}"
            if other.state == "closed" and fresh.template != served.template:
                return f"has another chat template than {place}"
        return self.reason_to_refuse(fresh)

    async def call(self, verb: Callable[[Server], Awaitable[T]]) -> T:
        """
        Call *verb* on one server. If the server fails, go on with another one.

        `Placement.call` says which errors are failures of a server. A server that fails is probed.
        Until the call ends, the call counts as a run of its server.
        """
        placement = Placement(self, lambda event: None)
        try:
            return await placement.call(verb)
        finally:
            placement.leave()

    async def queue(self) -> QueueGauges | None:
        """Add up the queues of the servers. None: no server reports a queue."""
        return total(await asyncio.gather(*(endpoint.queue() for endpoint in self.up)))

    def model(
        self,
        sampling: Sampling = GREEDY,
        *,
        observe: Observer = lambda event: None,
        clock: Clock | None = None,
        format: Format | None = None,
    ) -> ReplicatedModel:
        """Make the model of one run, as `Server.model` does."""
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
