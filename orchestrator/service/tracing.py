"""Traces of requests in OpenTelemetry: where spans are sent, and the observer that has them made."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from importlib.util import find_spec
from itertools import islice
from typing import TYPE_CHECKING

from ..errors import ConfigurationError
from ..events import Answering, Started
from ..installation import install_command
from ..trace import Moment
from .observers import (
    MODEL_PATHS,
    RequestArrived,
    RequestFailed,
    RequestFinished,
    RunEvent,
    RunResult,
    ServiceEvent,
    ServiceRequest,
)
from .span_tree import SpanTree, TracedRun, request_attributes, request_name

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import Span

log = logging.getLogger("stepspec")

VARIABLES = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
FLUSH_SECONDS = 3.0  # for the last spans to be sent
BATCH = 16  # spans, which take about a millisecond to make


def configured() -> bool:
    """Whether the environment says where to send spans."""
    return any(os.environ.get(name) for name in VARIABLES)


def connect(version: str, exporter: SpanExporter | None = None) -> TracerProvider:
    """Make the provider that sends spans where the ``OTEL_*`` variables say. Raise `ConfigurationError` without SDK."""
    if find_spec("opentelemetry.sdk") is None:
        raise ConfigurationError(f"tracing needs the OpenTelemetry SDK: {install_command('otel')}")
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    if exporter is None:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

        exporter = OTLPSpanExporter()
    name = os.environ.get("OTEL_SERVICE_NAME", "stepspec")
    provider = TracerProvider(resource=Resource.create({"service.name": name, "service.version": version}))
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return provider


class Tracing:
    """
    An observer that makes spans with *provider*.

    The spans of a run are made after its request was answered, a few at a time, so that no request waits for them.
    """

    def __init__(self, provider: TracerProvider) -> None:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._provider = provider
        self._tracer = provider.get_tracer("stepspec")
        self._spans = SpanTree(self._tracer)
        self._propagator = TraceContextTextMapPropagator()
        self._open: dict[ServiceRequest, Span] = {}
        self._runs: dict[ServiceRequest, dict[int, TracedRun]] = {}
        self._unmade: deque[Iterator[Span]] = deque()

    @asynccontextmanager
    async def flushed(self) -> AsyncGenerator[None]:
        """Send the remaining spans at the end of the block; those not sent within `FLUSH_SECONDS` are lost."""
        try:
            yield
        finally:
            for spans in self._unmade:
                deque(spans, maxlen=0)
            self._unmade.clear()
            if not await _finishes(self._provider.shutdown, FLUSH_SECONDS):
                log.warning("the last spans are lost: their receiver did not take them within %g s", FLUSH_SECONDS)

    def __call__(self, event: ServiceEvent) -> None:
        match event:
            case RequestArrived(request):
                self._arrived(request)
            case RunEvent(request, choice, seconds, run_event):
                self._run_event(request, choice, Moment(seconds, run_event))
            case RunResult(request, choice, solution):
                if (run := self._runs.get(request, {}).get(choice)) is not None:
                    run.solution = solution
            case RequestFailed(request, exception):
                if (span := self._open.get(request)) is not None:
                    span.record_exception(exception)
            case RequestFinished(request):
                self._finished(request)
            case _:
                pass

    def _arrived(self, request: ServiceRequest) -> None:
        if request.path not in MODEL_PATHS:
            return
        from opentelemetry.trace import SpanKind, set_span_in_context

        parent = self._propagator.extract(request.headers)
        span = self._tracer.start_span(f"{request.method} {request.path}", parent, SpanKind.SERVER)
        about = {"http.request.method": request.method, "url.path": request.path, "stepspec.request": request.id}
        span.set_attributes(about)
        self._open[request], self._runs[request] = span, {}
        headers: dict[str, str] = {}
        self._propagator.inject(headers, set_span_in_context(span))
        request.forwarded = {**request.forwarded, **headers}
        request.log_fields["trace_id"] = f"{span.get_span_context().trace_id:032x}"

    def _run_event(self, request: ServiceRequest, choice: int, moment: Moment) -> None:
        runs = self._runs.get(request)
        if runs is None:
            return
        if isinstance(moment.event, Started):
            runs[choice] = TracedRun(choice, moment.event, time.time_ns() - int(moment.at * 1e9))
        elif (run := runs.get(choice)) is not None and not isinstance(moment.event, Answering):
            run.moments.append(moment)

    def _finished(self, request: ServiceRequest) -> None:
        from opentelemetry.trace import Status, StatusCode

        span, runs = self._open.pop(request, None), self._runs.pop(request, {})
        if span is None:
            return
        span.update_name(request_name(request))
        span.set_attributes(request_attributes(request))
        if request.status >= 500:
            span.set_status(Status(StatusCode.ERROR))
        for call in request.calls:
            self._spans.forwarded(span, request, call)
        span.end()
        scheduled = bool(self._unmade)
        self._unmade.extend(self._spans.run(span, run) for run in runs.values())
        if self._unmade and not scheduled:
            asyncio.get_running_loop().call_soon(self._make_batch)

    def _make_batch(self) -> None:
        """Make a few spans, and schedule the next batch after everything else that is ready to run."""
        spans: list[Span] = []
        try:
            spans = list(islice(self._unmade[0], BATCH)) if self._unmade else []
        finally:
            if self._unmade and not spans:
                self._unmade.popleft()
            if self._unmade:
                asyncio.get_running_loop().call_soon(self._make_batch)


async def _finishes(work: Callable[[], object], seconds: float) -> bool:
    """
    Whether *work* finishes within *seconds*; if not, it goes on in a daemon thread.

    The SDK's own deadlines do not hold: it retries for ten seconds whatever the deadline.
    """
    loop, finished = asyncio.get_running_loop(), asyncio.Event()

    def run() -> None:
        work()
        with suppress(RuntimeError):  # The loop is closed already.
            loop.call_soon_threadsafe(finished.set)

    threading.Thread(target=run, name="last-spans", daemon=True).start()
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await finished.wait()
    return finished.is_set()
