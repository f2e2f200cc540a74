"""
The health of a model's servers: each is behind a circuit `Breaker`, and `Health` probes those that
failed.

See docs/decisions/0028 for what a failure is, and who waits for a probe.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias
from weakref import WeakSet

from ..chain import Chain, Role
from ..concurrency import background
from ..errors import EndpointError, EndpointRejected, EndpointUnavailable, StepspecError
from .interfaces import Server
from .settings import Endpoint

PROBE_SECONDS = 5.0  # for a probe of an idle server
# seconds from the first failed probe to the next; each further pause is twice as long
FIRST_PAUSE = 1.0
# HTTP statuses of a rejection that every request to the server would get
UNUSABLE = frozenset({401, 403, 404, 405})
PROBE = Chain.of("1 + 1")  # the conversation about which a probe has one token written

log = logging.getLogger("stepspec")
State: TypeAlias = Literal["closed", "half-open", "open"]


class Breaker:
    """
    Closed while the server works, half-open while a probe decides, open from a failed probe on.

    The pause before the next probe doubles up to *longest* seconds. A server that fails again
    within *longest* seconds after a probe is paused on from where it was. *changed* is set with the
    next change, and then replaced. Who cannot wait for the end of a pause sets *wanted*.
    """

    def __init__(self, longest: float) -> None:
        self.state: State = "closed"
        self.error: Exception | None = None
        self.pause = 0.0
        self.changed = asyncio.Event()
        self.wanted = asyncio.Event()
        self._longest = longest
        self._closed_at = 0.0

    @property
    def cause(self) -> str:
        """Why the server failed last; "" if it never did."""
        return (
            self.error.cause if isinstance(self.error, EndpointError) else str(self.error or "")
        ) or ("failed" if self.error else "")

    def fail(self, exc: StepspecError) -> None:
        """Note that a call failed: the server is to be probed, unless its probes fail already."""
        if self.state == "closed":
            if asyncio.get_running_loop().time() - self._closed_at >= self._longest:
                self.pause = 0.0
            self.error = exc
            self._become("half-open")

    def open(self, exc: Exception) -> None:
        """Note that a probe failed."""
        self.error = exc
        self.pause = min(2 * self.pause or FIRST_PAUSE, self._longest)
        self._become("open")

    def close(self) -> None:
        """Note that a probe succeeded."""
        self._closed_at = asyncio.get_running_loop().time()
        self._become("closed")

    def _become(self, state: State) -> None:
        self.state = state
        self.changed.set()
        self.changed = asyncio.Event()


@dataclass(eq=False)
class Replica:
    """
    One server behind its *breaker*, with the *runs* that are placed there.

    *endpoint* is None until the server was up for the first time.
    """

    settings: Endpoint
    breaker: Breaker
    endpoint: Server | None = None
    runs: WeakSet[Any] = field(default_factory=lambda: WeakSet[Any]())

    @property
    def url(self) -> str:
        return self.settings.url

    @property
    def server(self) -> Server:
        """The endpoint of a server that was up."""
        assert self.endpoint is not None
        return self.endpoint


class Health:
    """
    The servers that *settings* list, connected by *make*, and a task for each that probes it while
    it fails.

    A probe connects anew, and the server's endpoint takes over what the new connection has learnt:
    the server may have been started again with other flags. `refuses` gives a reason against a
    server, or "".
    """

    def __init__(self, settings: Endpoint, make: Callable[[Endpoint], Server]) -> None:
        self.role: Role = settings.role
        self.refuses: Callable[[Server], str] = lambda endpoint: ""
        self.replicas = tuple(
            [Replica(each, Breaker(each.deadlines.rest)) for each in settings.each]
        )
        self._make = make
        self._exit = AsyncExitStack()
        self._probing = AsyncExitStack()

    async def start(self, *, optional: bool) -> None:
        """
        Connect to all servers and begin to probe those that are down. Raise unless one is up or
        none has to be.

        Once one is up, the others have `PROBE_SECONDS`: one that hangs must not hold up the rest.
        """
        self.stopped = False
        try:
            async with background(*map(self._connect, self.replicas)) as connecting:
                waiting: Collection[asyncio.Task[None]] = connecting
                while waiting and not any(self.entered):
                    _, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                if waiting:
                    await asyncio.wait(waiting, timeout=PROBE_SECONDS)
            for replica, task in zip(self.replicas, connecting, strict=True):
                late = EndpointUnavailable(
                    f"no connection {PROBE_SECONDS:g} s after another server", url=replica.url
                )
                if isinstance(
                    exc := late if task.cancelled() else task.exception(), EndpointUnavailable
                ):
                    replica.breaker.open(exc)
                elif exc:
                    raise exc
                else:
                    replica.breaker.close()
            if not optional and not any(self.entered):
                raise self.none_left()
            await self._probing.enter_async_context(background(*map(self._watch, self.replicas)))
        except BaseException:
            await self._exit.aclose()
            raise

    async def stop(self) -> None:
        await self._probing.aclose()
        self.stopped = True
        for each in self.replicas:  # a run that goes on would wait for ever for a probe
            each.breaker.open(
                EndpointUnavailable("the solver is closed", role=self.role, url=each.url)
            )
        await self._exit.aclose()

    @property
    def entered(self) -> Iterator[Server]:
        """The endpoints of the servers that were up at least once."""
        return (replica.endpoint for replica in self.replicas if replica.endpoint is not None)

    @property
    def up(self) -> list[Server]:
        """The endpoints of the servers whose circuits are closed."""
        return [
            each.endpoint
            for each in self.replicas
            if each.breaker.state == "closed" and each.endpoint is not None
        ]

    @property
    def down(self) -> Mapping[str, str]:
        """The URL and the cause of every server that failed and has passed no probe since."""
        return {
            each.url: each.breaker.cause for each in self.replicas if each.breaker.state != "closed"
        }

    def report(self, url: str, exc: StepspecError) -> None:
        """Have the server at *url* probed, at which a request of others failed."""
        for replica in self.replicas:
            if replica.url == url:
                replica.breaker.fail(exc)

    def none_left(self) -> EndpointUnavailable:
        """Make the error for a call when no server works."""
        first = self.replicas[0].breaker.error
        if len(self.replicas) == 1 and isinstance(first, EndpointError):
            kind = type(first) if isinstance(first, EndpointUnavailable) else EndpointUnavailable
            error = kind(first.cause, role=first.role, url=first.url, verb=first.verb)
        else:
            causes = "; ".join(
                f"{each.url}: {each.breaker.cause}" for each in self.replicas if each.breaker.error
            )
            urls = ", ".join(replica.url for replica in self.replicas)
            error = EndpointUnavailable(f"no replica is left: {causes}", role=self.role, url=urls)
        wanted = [getattr(each.breaker.error, "retry_after", 0.0) for each in self.replicas]
        error.retry_after = min(wanted)
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
                with suppress(TimeoutError):
                    async with asyncio.timeout(breaker.pause):
                        await breaker.wanted.wait()
            breaker.wanted.clear()
            try:
                await self._probe(replica)
            except (
                Exception
            ) as exc:  # of any kind: a circuit that stayed half-open would hold every call
                level = logging.WARNING if breaker.state == "half-open" else logging.DEBUG
                breaker.open(exc)
                log.log(level, "%s; it is probed again in %g s", exc, breaker.pause)
            else:
                log.warning(
                    "the %s model at %s works again; before: %s",
                    self.role,
                    replica.url,
                    breaker.cause,
                )
                breaker.close()

    async def _probe(self, replica: Replica) -> None:
        """
        Connect anew and write one token, each request once. Raise a `StepspecError` if that fails.

        Every request has `PROBE_SECONDS`; where requests wait, as long as any other has to its
        first token; where some run, as long as their next tokens have. Then the replica's endpoint
        knows what the server is now.
        """
        settings = replica.settings
        seconds = PROBE_SECONDS
        try:
            async with asyncio.timeout(PROBE_SECONDS):
                queue = await replica.endpoint.queue() if replica.endpoint else None
        except TimeoutError:
            late = f"no answer to a probe within {PROBE_SECONDS:g} s"
            raise EndpointUnavailable(late, role=self.role, url=replica.url, verb="probe") from None
        if queue and (queue.waiting or queue.running):
            seconds = max(
                seconds, settings.deadlines.first if queue.waiting else settings.deadlines.between
            )
        deadlines = settings.deadlines.model_copy(
            update={"first": min(seconds, settings.deadlines.first)}
        )
        async with self._make(
            settings.model_copy(update={"retries": 0, "deadlines": deadlines})
        ) as fresh:
            self._check(replica, fresh)
            await fresh.check_health()
            await fresh.model().write(PROBE, limit=1)
            if replica.endpoint is not None:
                replica.endpoint.adopt(fresh)
        if replica.endpoint is None:
            await self._connect(replica)

    def _check(self, replica: Replica, fresh: Server) -> None:
        """
        Raise `EndpointRejected` unless *fresh* may serve as *replica*.

        It must serve what the other servers do that are up, and the model that was served here
        before.
        """
        others = [
            other for other in self.replicas if other is not replica and other.endpoint is not None
        ]
        up = [other.endpoint for other in others if other.breaker.state == "closed"]
        known = [
            endpoint
            for endpoint in (*up, replica.endpoint, *(other.endpoint for other in others))
            if endpoint
        ]
        wrong = _difference(fresh, known[0], whole=bool(up)) if known else ""
        if why := wrong or self.refuses(fresh):
            raise EndpointRejected(why, role=self.role, url=replica.url, verb="connect")


def _difference(fresh: Server, known: Server, *, whole: bool) -> str:
    """
    Say how the model at *fresh* differs from that at *known*; not *whole*: by name, as it may have
    been updated.
    """
    where = "before" if fresh.settings.url == known.settings.url else ""
    other = f"its replica at {known.settings.url}"
    if fresh.name != known.name:
        return f"serves {fresh.name!r}, and {where or other} {known.name!r}"
    if whole and fresh.vocabulary != known.vocabulary:
        return f"has another vocabulary than {other}"
    if whole and fresh.template != known.template:
        return f"has another chat template than {other}"
    return ""
