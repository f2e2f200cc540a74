"""
The servers of one model. Each is behind a circuit `Breaker`. `ProbedServers` probes those that
failed.

See docs/decisions/0028 for what a failure is, and who waits for a probe.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias
from weakref import WeakSet

from ..chain import Chain, Role
from ..concurrency import background
from ..errors import EndpointError, EndpointRejected, EndpointUnavailable, StepspecError
from .interfaces import Server
from .settings import Endpoint

PROBE_SECONDS = 5.0
"""The time limit of a probe while the server is idle."""
FIRST_PAUSE = 1.0
"""Seconds from the first failed probe to the next. Each further pause is twice as long."""
UNUSABLE_STATUSES = frozenset({401, 403, 404, 405})
"""HTTP statuses of a rejection that every request to the server would get."""
PROBE = Chain.of("1 + 1")
"""The conversation about which a probe has one token written."""

log = logging.getLogger("stepspec")
State: TypeAlias = Literal["closed", "half-open", "open"]


class Breaker:
    """
    Closed while the server works, half-open while a probe decides, open from a failed probe on.

    The pause before the next probe doubles, up to *longest* seconds. If a server fails again within
    *longest* seconds after a probe, its pauses go on from where they were.
    """

    def __init__(self, longest: float) -> None:
        self.state: State = "closed"
        self.error: Exception | None = None
        """Why the server failed last. None: it never did."""
        self.pause = 0.0
        """Seconds before the next probe."""
        self.changed = asyncio.Event()
        """Set with the next change, and then replaced."""
        self.wanted = asyncio.Event()
        """Set by a call that cannot wait for the end of a pause."""
        self._longest = longest
        self._closed_at = 0.0

    @property
    def cause(self) -> str:
        """Why the server failed last. "": it never did."""
        if self.error is None:
            return ""
        return getattr(self.error, "cause", str(self.error)) or "failed"

    def fail(self, exc: StepspecError) -> None:
        """Record that a call failed. The server is probed, unless its circuit is already open."""
        if self.state != "closed":
            return
        if asyncio.get_running_loop().time() - self._closed_at >= self._longest:
            self.pause = 0.0
        self.error = exc
        self._become("half-open")

    def open(self, exc: Exception) -> None:
        """Record that a probe failed."""
        self.error = exc
        self.pause = min(2 * self.pause or FIRST_PAUSE, self._longest)
        self._become("open")

    def close(self) -> None:
        """Record that a probe succeeded."""
        self._closed_at = asyncio.get_running_loop().time()
        self._become("closed")

    def _become(self, state: State) -> None:
        self.state = state
        self.changed.set()
        self.changed = asyncio.Event()


@dataclass(eq=False)
class Replica:
    """One of the servers of a model."""

    settings: Endpoint
    """Where the server is."""
    breaker: Breaker
    """Whether the server works."""
    endpoint: Server | None = None
    """The connection. None: the server was never up."""
    runs: WeakSet[Any] = field(default_factory=lambda: WeakSet[Any]())
    """The runs that are placed here."""

    @property
    def url(self) -> str:
        return self.settings.url

    @property
    def server(self) -> Server:
        """The endpoint of a server that was up."""
        assert self.endpoint is not None
        return self.endpoint


class ProbedServers:
    """
    The servers that *settings* list, connected by *make*. A task probes each while it fails.

    A probe connects anew, and the server's endpoint takes over what the new connection has learnt:
    the server may have been started again with other flags.
    """

    def __init__(self, settings: Endpoint, make: Callable[[Endpoint], Server]) -> None:
        self.settings = settings
        self.reason_to_refuse: Callable[[Server], str] = lambda endpoint: ""
        """Returns a reason against a server, or ""."""
        self.replicas = tuple(
            [Replica(server, Breaker(server.deadlines.rest)) for server in settings.each]
        )
        self._make = make
        self._exit = AsyncExitStack()
        self._probing = AsyncExitStack()

    async def start(self, *, optional: bool) -> None:
        """
        Connect to all servers, and begin to probe those that are down.

        Once one is up, the others have `PROBE_SECONDS`: one that hangs must not hold up the rest.
        Raise `EndpointUnavailable` if none is up, unless the model is *optional*, and any other
        error of a server.
        """
        self.stopped = False
        try:
            await self._connect_all()
            if not optional and not any(self.entered):
                raise self.none_left()
            await self._probing.enter_async_context(background(*map(self._watch, self.replicas)))
        except BaseException:
            await self._exit.aclose()
            raise

    async def _connect_all(self) -> None:
        async with background(*map(self._connect, self.replicas)) as connecting:
            waiting: Collection[asyncio.Task[None]] = connecting
            while waiting and not any(self.entered):
                _, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if waiting:
                await asyncio.wait(waiting, timeout=PROBE_SECONDS)
        for replica, task in zip(self.replicas, connecting, strict=True):
            try:
                task.result()
                replica.breaker.close()
            except EndpointUnavailable as exc:
                replica.breaker.open(exc)
            except asyncio.CancelledError:
                late = f"no connection {PROBE_SECONDS:g} s after another server"
                replica.breaker.open(EndpointUnavailable(late, url=replica.url))

    @property
    def role(self) -> Role:
        return self.settings.role

    async def stop(self) -> None:
        await self._probing.aclose()
        self.stopped = True
        for replica in self.replicas:  # A run that goes on would wait for ever for a probe.
            closed = EndpointUnavailable(
                "the solver is closed",
                role=self.role,
                url=replica.url,
            )
            replica.breaker.open(closed)
        await self._exit.aclose()

    @property
    def entered(self) -> Iterator[Server]:
        """The servers that were up at least once."""
        return (replica.endpoint for replica in self.replicas if replica.endpoint is not None)

    @property
    def up(self) -> tuple[Server, ...]:
        """The servers whose circuits are closed."""
        return tuple(
            [
                replica.server
                for replica in self.replicas
                if replica.endpoint and replica.breaker.state == "closed"
            ]
        )

    @property
    def down(self) -> Mapping[str, str]:
        """The URL and the cause of every server that failed and has passed no probe since."""
        return {
            replica.url: replica.breaker.cause
            for replica in self.replicas
            if replica.breaker.state != "closed"
        }

    def report(self, url: str, exc: StepspecError) -> None:
        """
        Have the server at *url* probed after *exc*, which no call of a run has raised.

        A health check has failed, for example, or a forwarded stream.
        """
        for replica in self.replicas:
            if replica.url == url:
                replica.breaker.fail(exc)

    def none_left(self) -> EndpointUnavailable:
        """Make the error for a call when no server works."""
        failures = [replica.breaker.error for replica in self.replicas]
        first = failures[0]
        if len(failures) == 1 and isinstance(first, EndpointError):
            kind = type(first) if isinstance(first, EndpointUnavailable) else EndpointUnavailable
            error = kind(
                first.cause,
                role=first.role,
                url=first.url,
                verb=first.verb,
            )
        else:
            failed = [replica for replica in self.replicas if replica.breaker.error]
            causes = "; ".join(f"{replica.url}: {replica.breaker.cause}" for replica in failed)
            urls = ", ".join(replica.url for replica in self.replicas)
            error = EndpointUnavailable(
                f"no replica is left: {causes}",
                role=self.role,
                url=urls,
            )
        error.retry_after = min(getattr(failure, "retry_after", 0.0) for failure in failures)
        return error

    async def _connect(self, replica: Replica) -> None:
        async with AsyncExitStack() as stack:
            endpoint = await stack.enter_async_context(self._make(replica.settings))
            self._check(replica, endpoint)
            replica.endpoint = endpoint
            self._exit.push_async_exit(stack.pop_all())

    async def _watch(self, replica: Replica) -> None:
        """Probe *replica* while its circuit is not closed: at once, and then after pauses."""
        breaker = replica.breaker
        while True:
            while breaker.state == "closed":
                await breaker.changed.wait()
            if breaker.state == "open":
                await _within(breaker.wanted.wait(), breaker.pause)
            breaker.wanted.clear()
            try:
                await self._probe(replica)
            # Of any kind: a circuit that stayed half-open would hold every call.
            except Exception as exc:
                level = logging.WARNING if breaker.state == "half-open" else logging.DEBUG
                breaker.open(exc)
                log.log(level, "%s; it is probed again in %g s", exc, breaker.pause)
            else:
                works = "the %s model at %s works again; before: %s"
                log.warning(works, self.role, replica.url, breaker.cause)
                breaker.close()

    async def _probe(self, replica: Replica) -> None:
        """
        Connect anew and write one token, each request once. Raise a `StepspecError` if that fails.

        The replica's endpoint then knows what the server is now.
        """
        settings = replica.settings
        first = min(await self._patience(replica), settings.deadlines.first)
        deadlines = settings.deadlines.model_copy(update={"first": first})
        probing = settings.model_copy(update={"retries": 0, "deadlines": deadlines})
        async with self._make(probing) as fresh:
            self._check(replica, fresh)
            await fresh.check_health()
            await fresh.model().write(PROBE, limit=1)
            if replica.endpoint is not None:
                replica.endpoint.adopt(fresh)
        if replica.endpoint is None:
            await self._connect(replica)

    async def _patience(self, replica: Replica) -> float:
        """
        Return the seconds for each request of a probe.

        That is `PROBE_SECONDS` or, if requests wait at the server, as long as any other request has
        to its first token, or, if requests run there, as long as their next tokens have.
        """
        if replica.endpoint is None:
            return PROBE_SECONDS
        try:
            async with asyncio.timeout(PROBE_SECONDS):
                queue = await replica.endpoint.queue()
        except TimeoutError:
            late = f"no answer to a probe within {PROBE_SECONDS:g} s"
            raise EndpointUnavailable(
                late,
                role=self.role,
                url=replica.url,
                verb="probe",
            ) from None
        deadlines = replica.settings.deadlines
        seconds = 0.0
        if queue and queue.waiting:
            seconds = deadlines.first
        elif queue and queue.running:
            seconds = deadlines.between
        return max(PROBE_SECONDS, seconds)

    def _check(self, replica: Replica, fresh: Server) -> None:
        """
        Raise `EndpointRejected` unless *fresh* may serve as *replica*.

        It must serve what the other servers do that are up, and the model that was served here
        before.
        """
        up = [server for server in self.up if server is not replica.endpoint]
        known = next(filter(None, (*up, replica.endpoint, *self.entered)), None)
        wrong = self.reason_to_refuse(fresh)
        if known is not None:
            wrong = _difference(fresh, known, whole=bool(up)) or wrong
        if wrong:
            raise EndpointRejected(
                wrong,
                role=self.role,
                url=replica.url,
                verb="connect",
            )


async def _within(wait: Awaitable[object], seconds: float) -> None:
    """Await *wait* for *seconds* at most."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await wait


def _difference(fresh: Server, known: Server, *, whole: bool) -> str:
    """
    Return how the model at *fresh* differs from the one at *known*; "" if it does not.

    Without *whole* only the names count, as the model may have been updated.
    """
    other = f"its replica at {known.settings.url}"
    if fresh.name != known.name:
        where = "before" if fresh.settings.url == known.settings.url else other
        return f"serves {fresh.name!r}, and {where} {known.name!r}"
    if whole and fresh.vocabulary != known.vocabulary:
        return f"has another vocabulary than {other}"
    if whole and fresh.template != known.template:
        return f"has another chat template than {other}"
    return ""
