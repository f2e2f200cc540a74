"""
One server of a model, behind a circuit breaker: `Replica`. It probes the server while that fails.

See docs/decisions/0028 for what a failure is, and who waits for a probe.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from typing import Any, Literal, TypeAlias, TypeVar
from weakref import WeakSet

from ..chain import Chain
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
E = TypeVar("E", bound=EndpointError)


class Replica:
    """
    One of the servers of a model, at *settings*, connected by *make*.

    Its circuit is closed while the server works, half-open while a probe decides, and open from a
    failed probe on. The pause before the next probe doubles, up to ``deadlines.rest``. If a server
    fails again within that time after a probe, its pauses go on from where they were.

    A probe connects anew, and `endpoint` takes over what the new connection has learnt: the server
    may have been started again with other flags. *refuse* returns a reason against what is served
    now, or "".
    """

    def __init__(
        self,
        settings: Endpoint,
        make: Callable[[Endpoint], Server],
        refuse: Callable[[Replica, Server], str],
    ) -> None:
        self.settings = settings
        self.endpoint: Server | None = None
        """The connection. None: the server was never up."""
        self.runs: WeakSet[Any] = WeakSet()
        """The runs that are placed here."""
        self.state: State = "closed"
        self.error: Exception | None = None
        """Why the server failed last. None: it never did."""
        self.pause = 0.0
        """Seconds before the next probe."""
        self.changed = asyncio.Event()
        """Wakes the tasks that wait for a change of the state, here or at another replica."""
        self._closed_at = 0.0
        self._make = make
        self._refuse = refuse
        self._exit = AsyncExitStack()

    @property
    def url(self) -> str:
        return self.settings.url

    @property
    def server(self) -> Server:
        """The endpoint of a server that was up."""
        assert self.endpoint is not None
        return self.endpoint

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
        if asyncio.get_running_loop().time() - self._closed_at >= self.settings.deadlines.rest:
            self.pause = 0.0
        self.error = exc
        self.become("half-open")

    def open(self, exc: Exception) -> None:
        """Record that a probe failed."""
        self.error = exc
        self.pause = min(2 * self.pause or FIRST_PAUSE, self.settings.deadlines.rest)
        self.become("open")

    def close(self) -> None:
        """Record that a probe succeeded."""
        self._closed_at = asyncio.get_running_loop().time()
        self.become("closed")

    def become(self, state: State) -> None:
        """Change the *state*. An open circuit that becomes half-open is probed at once."""
        self.state = state
        self.changed.set()
        self.changed.clear()

    def failure(self, kind: type[E], cause: str) -> E:
        """Make an error of this server."""
        return kind(cause, role=self.settings.role, url=self.url)

    async def start(self) -> None:
        """Connect. A server that is unavailable will be probed."""
        try:
            await self._connect()
            self.close()
        except EndpointUnavailable as exc:
            self.open(exc)

    async def _connect(self) -> None:
        async with AsyncExitStack() as stack:
            endpoint = await stack.enter_async_context(self._make(self.settings))
            self._check(endpoint)
            self.endpoint = endpoint
            self._exit = stack.pop_all()

    async def disconnect(self) -> None:
        await self._exit.aclose()

    async def watch(self) -> None:
        """Probe the server while its circuit is not closed: at once, and then after pauses."""
        while True:
            await self._leave("closed")
            with suppress(TimeoutError):
                async with asyncio.timeout(self.pause):
                    await self._leave("open")
            try:
                await self._probe()
            # Of any kind: a circuit that stayed half-open would hold every call.
            except Exception as exc:
                level = logging.WARNING if self.state == "half-open" else logging.DEBUG
                self.open(exc)
                log.log(level, "%s; it is probed again in %g s", exc, self.pause)
            else:
                works = "the %s model at %s works again; before: %s"
                log.warning(works, self.settings.role, self.url, self.cause)
                self.close()

    async def _leave(self, state: State) -> None:
        """Wait until the circuit has another state than *state*."""
        while self.state == state:
            await self.changed.wait()

    async def _probe(self) -> None:
        """
        Connect anew and write one token, each request once. Raise a `StepspecError` if that fails.

        The endpoint then knows what the server is now.
        """
        deadlines = self.settings.deadlines
        first = min(await self._patience(), deadlines.first)
        shorter = deadlines.model_copy(update={"first": first})
        probing = self.settings.model_copy(update={"retries": 0, "deadlines": shorter})
        async with self._make(probing) as fresh:
            self._check(fresh)
            await fresh.check_health()
            await fresh.model().write(PROBE, limit=1)
            if self.endpoint is not None:
                self.endpoint.adopt(fresh)
        if self.endpoint is None:
            await self._connect()

    async def _patience(self) -> float:
        """
        Return the seconds for each request of a probe.

        That is `PROBE_SECONDS` or, if requests wait at the server, as long as any other request has
        to its first token, or, if requests run there, as long as their next tokens have.
        """
        if self.endpoint is None:
            return PROBE_SECONDS
        try:
            async with asyncio.timeout(PROBE_SECONDS):
                queue = await self.endpoint.queue()
        except TimeoutError:
            late = f"no answer to a probe within {PROBE_SECONDS:g} s"
            raise self.failure(EndpointUnavailable, late) from None
        if queue and queue.waiting:
            return max(PROBE_SECONDS, self.settings.deadlines.first)
        if queue and queue.running:
            return max(PROBE_SECONDS, self.settings.deadlines.between)
        return PROBE_SECONDS

    def _check(self, fresh: Server) -> None:
        """Raise `EndpointRejected` if *fresh* must not serve here."""
        reason = self._refuse(self, fresh)
        if reason:
            raise self.failure(EndpointRejected, reason)
