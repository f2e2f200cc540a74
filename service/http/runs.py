"""
What all requests of one service share, and the runs of one request.

`Runs` answer a request as a stream or in one piece, in the format of its API.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Self

import aiohttp

from stepspec.orchestrator.concurrency import background
from stepspec.orchestrator.endpoints.request_context import CARRIED
from stepspec.orchestrator.events import Committed, Event
from stepspec.orchestrator.http.slots import waiting_at_most
from stepspec.orchestrator.json_values import write_json
from stepspec.orchestrator.ledger import Ledger
from stepspec.orchestrator.trace import Stopwatch

from ..admission import Admission, Clients
from ..errors import INTERNAL_ERROR, api_error
from ..formats.reply_format import ReplyFormat, RequestRuns, RunItem
from ..formats.requests import ModelCatalog, Offer, RunRequest
from ..records import (
    RequestFailed,
    RunEvent,
    RunResult,
    ServiceEvent,
    ServiceObserver,
    ServiceRequest,
)
from ..settings import ServiceSettings
from .connection import EVENT_STREAM, ClientConnection, StreamedResponse, Work
from .health import HealthMonitor

log = logging.getLogger("stepspec")

IDLE_SECONDS = 2.0
"""
Seconds that an idle connection stays open.

vLLM closes its own after five seconds, perhaps just when a request is under way.
"""
MIN_SECONDS = 0.001
"""Seconds for a run whose deadline was over before it began."""
GRACE_SECONDS = 10.0
"""Seconds beyond its deadline after which a run is cut off. A server that hangs needs them."""


class ServiceContext:
    """Settings, admission, models, clients and connections of one service."""

    http: aiohttp.ClientSession
    """The connections for forwarded requests, while the context is `open`."""
    health: HealthMonitor
    """The health of the servers, while the context is `open`."""

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
        """Hold connections, and check the health of the servers, while the block lasts."""
        engine = self.offer.engine
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=IDLE_SECONDS)
        cookies = aiohttp.DummyCookieJar()
        async with aiohttp.ClientSession(connector=connector, cookie_jar=cookies) as http:
            self.http = http
            self.health = HealthMonitor(
                {"small": engine.small, "large": engine.large}, self.observe
            )
            async with self.health.checking(self.settings.health_every):
                yield

    @asynccontextmanager
    async def admitted(self, request: ServiceRequest, priority: int = 0) -> AsyncGenerator[float]:
        """
        Wait for admission, and yield the seconds that *request* may still take. Raise `ApiError`.
        """
        async with self.admission.enter(priority) as waited:
            request.queued = waited
            request.admitted = request.seconds
            with waiting_at_most(self.settings.max_wait, waited):
                yield max(self.settings.max_seconds - waited, MIN_SECONDS)

    def respond(self, request: ServiceRequest, work: Work) -> StreamedResponse:
        return StreamedResponse(
            request,
            work,
            self.settings.send_seconds,
            self.admission.aborted,
        )


class Runs(RequestRuns):
    """
    The runs of a request, one for each of *run_requests*.

    Each iteration yields the items since the last iteration, in order. The list is empty if nothing
    happened for `keep_alive` seconds. If a run fails, its exception is raised after the items
    before it.
    """

    def __init__(
        self,
        context: ServiceContext,
        request: ServiceRequest,
        run_requests: Sequence[RunRequest],
    ) -> None:
        super().__init__(run_requests, context.offer.engine.large)
        self._context = context
        self._request = request
        self._keep_alive = context.settings.keep_alive
        self._items: list[RunItem] = []
        self._failure: Exception | None = None
        self._changed = asyncio.Event()

    @asynccontextmanager
    async def _started(self) -> AsyncGenerator[None]:
        """
        Wait for admission, and run everything while the block lasts.

        Raise `ApiError` if the request is refused. At the end of the block, runs that are not over
        are cancelled and awaited.
        """
        priority = min(run_request.run.priority for run_request in self.run_requests)
        async with self._context.admitted(self._request, priority) as seconds:
            runs = [
                self._run(choice, run_request.within(seconds))
                for choice, run_request in enumerate(self.run_requests)
            ]
            try:
                async with asyncio.timeout(seconds + GRACE_SECONDS), background(*runs):
                    yield
            finally:
                ledgers = [Ledger.of(counts.events) for counts in self.counts]
                self._request.ledgers = ledgers
                self._request.large_tokens = sum(
                    ledger.large.written + ledger.large.judging for ledger in ledgers
                )

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> list[RunItem]:
        if not self._items and len(self.solutions) == len(self.run_requests):
            raise StopAsyncIteration
        return await self._next(self._keep_alive)

    async def _until(self, events: tuple[type[Event], ...]) -> list[RunItem]:
        """
        Wait for the first of *events*, or for `keep_alive` seconds. Return the items until then.

        The headers of a stream wait for the event, so that an early failure gets its own status.
        """
        items: list[RunItem] = []
        with suppress(TimeoutError):
            async with asyncio.timeout(self._keep_alive):
                while not any(_is_one_of(events, item) for item in items):
                    items += await self._next(self._keep_alive)
        return items

    async def _next(self, seconds: float) -> list[RunItem]:
        if self._failure is None and not self._items:
            self._changed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._changed.wait()
        if self._failure is not None and not self._items:
            raise self._failure
        items = self._items
        self._items = []
        return items

    async def _run(self, choice: int, run_request: RunRequest) -> None:
        CARRIED.set(self._request.forwarded)
        wanted = run_request.wanted
        clock = Stopwatch()

        def observe(event: Event) -> None:
            seconds = clock()
            self.counts[choice](event)
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
            self._request.upstream_seconds = max(counts.upstream_seconds for counts in self.counts)
        self._put(RunResult(self._request, choice, solution))

    def _put(self, item: RunItem) -> None:
        self._context.observe(item)
        self._items.append(item)
        self._changed.set()

    def respond(self, format: ReplyFormat) -> StreamedResponse:
        """Answer with the runs in *format*."""
        return self._context.respond(self._request, partial(self._answer, format))

    async def _answer(self, format: ReplyFormat, connection: ClientConnection) -> None:
        """
        Run everything and answer over *connection*.

        Raise `ApiError` before the response starts. Later errors end the response.
        """
        answer = self._stream if self._request.stream else self._whole
        try:
            async with self._started():
                await answer(format, connection)
        except Exception as exc:
            error = api_error(exc, partial=any(counts.written for counts in self.counts))
            if error.code == INTERNAL_ERROR:
                self._context.observe(RequestFailed(self._request, exc))
            await connection.fail(error)

    async def _whole(self, format: ReplyFormat, connection: ClientConnection) -> None:
        """Answer in one piece."""
        async for items in self:
            for item in items:
                format.render(item)
        await connection.send_json(write_json(await format.body()))

    async def _stream(self, format: ReplyFormat, connection: ClientConnection) -> None:
        """Answer with a stream."""
        first = await self._until(format.starts_at)
        await connection.start(EVENT_STREAM, failure=format.failed)
        await connection.send(await format.opening() + b"".join(map(format.render, first)))
        async for items in self:
            events = b"".join(map(format.render, items)) if items else format.keep_alive
            await connection.send(events)
        await connection.finish(await format.closing())


def _is_one_of(events: tuple[type[Event], ...], item: RunItem) -> bool:
    """Return whether *item* is one of *events*, or the result of a run."""
    return isinstance(item, RunResult) or isinstance(item.event, events)
