"""
What all requests of one service share, and the runs of one request.

`Runs` answer a request as a stream or in one piece, in the format of its API.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial

from stepspec.orchestrator.concurrency import background
from stepspec.orchestrator.endpoints.request_context import CARRIED
from stepspec.orchestrator.events import Committed, Event
from stepspec.orchestrator.http.slots import waiting_at_most
from stepspec.orchestrator.json_values import write_json
from stepspec.orchestrator.ledger import Ledger
from stepspec.orchestrator.trace import Stopwatch

from ..admission import Admission, Clients
from ..formats.deltas import calls_of, upstream_seconds
from ..formats.reply_format import ReplyFormat, RequestRuns, RunItem
from ..formats.requests import ModelCatalog, Offer, RunRequest
from ..records import (
    RunEvent,
    RunResult,
    ServiceEvent,
    ServiceObserver,
    ServiceRequest,
)
from ..settings import ServiceSettings
from .connection import EVENT_STREAM, ClientConnection
from .health import check_every

log = logging.getLogger("stepspec")

MIN_SECONDS = 0.001
"""Seconds for a run whose deadline was over before it began."""
GRACE_SECONDS = 10.0
"""Seconds beyond its deadline after which a run is cut off. A server that hangs needs them."""


class ServiceContext:
    """Settings, admission, models and clients of one service."""

    def __init__(
        self,
        offer: Offer,
        settings: ServiceSettings,
        observers: Iterable[ServiceObserver] = (),
    ) -> None:
        self.offer = offer
        self.settings = settings
        self.observers = [*observers]
        self.admission = Admission(settings)
        self.models = ModelCatalog(offer)
        self.clients = Clients(settings)
        self.created = int(time.time())
        """The start of the service, in seconds since 1970."""

    def observe(self, event: ServiceEvent) -> None:
        """Call all observers in order. Log the exception of an observer, which harms nothing."""
        for observer in self.observers:
            try:
                observer(event)
            except Exception:
                log.exception("an observer failed at %s", type(event).__name__)

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[None]:
        """Check the health of the servers while the block lasts."""
        async with background(check_every(self.settings.health_every, self.models)):
            yield

    def respond(
        self,
        request: ServiceRequest,
        work: Callable[[ClientConnection, float], Awaitable[None]],
        priority: int = 0,
    ) -> ClientConnection:
        """
        Admit *request*, and answer it by *work*.

        *work* receives the connection, and the seconds that *request* may still take.
        """

        async def admitted_work(connection: ClientConnection) -> None:
            async with self.admission.enter(priority) as waited:
                request.queued = waited
                request.admitted = request.seconds
                seconds = max(self.settings.max_seconds - waited, MIN_SECONDS)
                with waiting_at_most(self.settings.max_wait, waited):
                    await work(connection, seconds)

        return ClientConnection(
            request,
            admitted_work,
            self.settings.send_seconds,
            self.admission.aborted,
        )


class Runs(RequestRuns):
    """The runs of a request, one for each of *run_requests*."""

    def __init__(
        self,
        context: ServiceContext,
        request: ServiceRequest,
        run_requests: Sequence[RunRequest],
    ) -> None:
        super().__init__(run_requests, context.offer.engine.large)
        self._context = context
        self._request = request
        self._items: list[RunItem] = []
        self._failure: Exception | None = None
        self._changed = asyncio.Event()

    def respond(self, format: ReplyFormat) -> ClientConnection:
        """Answer with the runs in *format*."""
        priority = min(run_request.run.priority for run_request in self.run_requests)
        return self._context.respond(self._request, partial(self._answer, format), priority)

    async def _answer(
        self,
        format: ReplyFormat,
        connection: ClientConnection,
        seconds: float,
    ) -> None:
        """Run everything within *seconds*, and answer over *connection*."""
        request = self._request
        runs = [
            self._run(choice, run_request.within(seconds))
            for choice, run_request in enumerate(self.run_requests)
        ]
        answer = self._stream if request.stream else self._whole
        try:
            async with asyncio.timeout(seconds + GRACE_SECONDS), background(*runs):
                await answer(format, connection)
        finally:
            request.ledgers = [Ledger.of(events) for events in self.events]
            request.partial = any(
                call.written for events in self.events for call in calls_of(events)
            )

    async def _whole(self, format: ReplyFormat, connection: ClientConnection) -> None:
        """Answer in one piece."""
        async for items in self._batches():
            for item in items:
                format.render(item)
        await connection.send_whole(write_json(await format.body()))

    async def _stream(self, format: ReplyFormat, connection: ClientConnection) -> None:
        """
        Answer with a stream.

        The headers wait for the first event that shows that a run goes well, but not longer than
        `keep_alive` seconds. Then an early failure gets its own status.
        """
        loop = asyncio.get_running_loop()
        starts = loop.time() + self._context.settings.keep_alive
        batches = self._batches()
        first: list[RunItem] = []
        async for items in batches:
            first += items
            has_begun = any(
                isinstance(item, RunResult) or isinstance(item.event, format.starts_at)
                for item in items
            )
            if has_begun or not items or loop.time() >= starts:
                break
        connection.last_event = format.failed
        await connection.start(EVENT_STREAM)
        await connection.send(await format.opening() + b"".join(map(format.render, first)))
        async for items in batches:
            events = b"".join(map(format.render, items)) if items else format.keep_alive
            await connection.send(events)
        await connection.finish(await format.closing())

    async def _batches(self) -> AsyncGenerator[list[RunItem]]:
        """
        Yield the items since the last batch, in order, until all runs are over.

        A batch is empty if nothing happened for `keep_alive` seconds. If a run fails, its exception
        is raised after the items before it.
        """
        while self._items or len(self.solutions) < len(self.run_requests):
            with suppress(TimeoutError):
                async with asyncio.timeout(self._context.settings.keep_alive):
                    await self._changed.wait()
            items = self._items
            if self._failure is not None and not items:
                raise self._failure
            self._items = []
            if self._failure is None:
                self._changed.clear()
            yield items

    async def _run(self, choice: int, run_request: RunRequest) -> None:
        CARRIED.set(self._request.forwarded)
        wanted = run_request.wanted
        clock = Stopwatch()

        def observe(event: Event) -> None:
            seconds = clock()
            self.events[choice].append(event)
            if isinstance(event, Committed) and self._request.first_step is None:
                self._request.first_step = self._request.seconds
            self._put(RunEvent(self._request, choice, seconds, event))

        try:
            solution = await self._context.offer.engine.solve(
                wanted.conversation,
                run_request.run,
                stop=wanted.stops,
                format=wanted.format,
                tools=wanted.tools,
                session=self._request.session or None,
                observe=observe,
                clock=clock,
            )
        except Exception as exc:
            self._failure = exc
            self._changed.set()
            return
        self.solutions[choice] = solution
        if len(self.solutions) == len(self.run_requests):
            self._request.upstream_seconds = max(map(upstream_seconds, self.events))
        self._put(RunResult(self._request, choice, solution))

    def _put(self, item: RunItem) -> None:
        self._context.observe(item)
        self._items.append(item)
        self._changed.set()
