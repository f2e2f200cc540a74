"""
What spans are called and what they tell, after OpenTelemetry's conventions for generative AI. Pure.

Tokens are told of requests to a served model only, so that nothing is counted twice where they are added up.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from importlib.util import find_spec
from itertools import islice
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from ..chain import Role
from ..errors import ConfigurationError
from ..events import Answering, Called, Event, Started
from ..solution import Solution
from ..trace import Moment
from .metrics import PATHS
from .middleware import ServiceRequest, UpstreamCall
from .span_tree import SpanTree, Stage, TracedRun

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import Span


PROVIDER = "vllm"
CALL = "text_completion"
OPERATIONS: Mapping[str, tuple[str, str]] = {
    "/v1/chat/completions": ("chat", "chat"),
    "/v1/completions": (CALL, CALL),
    "/v1/responses": ("respond", "chat"),
    "/live": ("live", "chat"),
}
"""By the path: the first word of a request's span, and the convention's name of the operation."""


def request_name(visit: ServiceRequest) -> str:
    word, _ = OPERATIONS[visit.path]
    return f"{word} {visit.model}" if visit.model else f"{visit.method} {visit.path}"


def of_request(visit: ServiceRequest) -> dict[str, Any]:
    refusal = visit.refusal
    return _told(
        {
            "gen_ai.operation.name": OPERATIONS[visit.path][1],
            "gen_ai.provider.name": "stepspec",
            "gen_ai.request.model": visit.model,
            "http.response.status_code": visit.status,
            "user.id": visit.notes.get("user") or None,
            "error.type": None if refusal is None else refusal.code or str(refusal.status),
        }
    )


def of_run(policy: str, choice: int, solution: Solution | None) -> dict[str, Any]:
    """What is told of the run of a *choice*; without a *solution* it was given up, or failed."""
    named = {"gen_ai.operation.name": "invoke_workflow", "gen_ai.workflow.name": policy, "stepspec.choice": choice}
    if solution is None:
        return named
    ledger = solution.ledger
    return named | _told(
        {
            "stepspec.finish_reason": solution.finish_reason,
            "stepspec.share_large": ledger.share_large,
            "stepspec.accept_rate": ledger.accept_rate,
            "stepspec.tokens.kept": ledger.small.kept + ledger.large.kept,
            "stepspec.tokens.discarded": ledger.small.discarded + ledger.large.discarded,
        }
    )


def of_stage(stage: Stage) -> dict[str, Any]:
    return _told(
        {
            "stepspec.step": stage.index if stage.kind != "answer" else None,
            "stepspec.author": stage.author,
            "stepspec.fate": stage.fate,
            "stepspec.grade": stage.grade,
            "stepspec.reason": stage.reason or None,
        }
    )


def of_call(call: Called, model: str) -> dict[str, Any]:
    failed = call.fate == "failed"
    told = {
        "gen_ai.usage.input_tokens": call.prompt,
        "gen_ai.usage.output_tokens": call.written,
        "gen_ai.usage.cache_read.input_tokens": call.cached,
        "gen_ai.response.time_to_first_chunk": call.first,
        "error.type": call.fate if failed else None,
        "stepspec.role": call.role,
        "stepspec.path": call.path or None,
        "stepspec.verb": call.verb,
        "stepspec.fate": call.fate,
    }
    return _client(CALL, model, call.url) | _told(told)


def of_passed(passed: UpstreamCall, operation: str) -> dict[str, Any]:
    told = {
        "http.response.status_code": passed.status or None,
        "gen_ai.response.time_to_first_chunk": passed.first,
        "error.type": passed.failure,
        "stepspec.role": passed.role,
    }
    return _client(operation, passed.model, passed.url) | _told(told)


def _client(operation: str, model: str, url: str) -> dict[str, Any]:
    address = urlsplit(url)
    told = {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": PROVIDER,
        "gen_ai.request.model": model,
        "server.address": address.hostname,
        "server.port": address.port,
    }
    return _told(told)


def _told(given: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in given.items() if value is not None}


log = logging.getLogger("stepspec")

VARIABLES = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
FLUSH = 3.0  # seconds for the last spans to leave
PORTION = 16  # spans, which take about a millisecond to make


def wanted() -> bool:
    """Whether the environment says where spans go."""
    return any(os.environ.get(name) for name in VARIABLES)


def connect(version: str, exporter: SpanExporter | None = None) -> TracerProvider:
    """Make what sends spans to where the ``OTEL_*`` variables say. Raise `ConfigurationError` without the SDK."""
    if find_spec("opentelemetry.sdk") is None:
        raise ConfigurationError("tracing needs the OpenTelemetry SDK: pip install 'stepspec[otel]'")
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
    A `Witness` that makes spans with *provider*.

    Those of a run are made once its request was answered, a few at a time, so that nobody waits for them.
    """

    def __init__(self, provider: TracerProvider) -> None:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._provider = provider
        self._tracer = provider.get_tracer("stepspec")
        self._unfolding = SpanTree(self._tracer)
        self._propagator = TraceContextTextMapPropagator()
        self._open: dict[ServiceRequest, Span] = {}
        self._runs: dict[ServiceRequest, dict[int, TracedRun]] = {}
        self._due: deque[Iterator[Span]] = deque()

    @asynccontextmanager
    async def flushed(self) -> AsyncGenerator[None]:
        """Send what is left at the end of the block; what has not left within a few seconds is lost."""
        try:
            yield
        finally:
            for made in self._due:
                deque(made, maxlen=0)
            self._due.clear()
            if not await _within(FLUSH, self._provider.shutdown):
                log.warning("the last spans are lost: nobody took them within %g s", FLUSH)

    def begins(self, visit: ServiceRequest) -> None:
        if visit.path not in PATHS:
            return
        from opentelemetry.trace import SpanKind, set_span_in_context

        above = self._propagator.extract(visit.headers)
        span = self._tracer.start_span(f"{visit.method} {visit.path}", above, SpanKind.SERVER)
        span.set_attributes({"http.request.method": visit.method, "url.path": visit.path, "stepspec.request": visit.id})
        self._open[visit], self._runs[visit] = span, {}
        carried: dict[str, str] = {}
        self._propagator.inject(carried, set_span_in_context(span))
        visit.carried = {**visit.carried, **carried}
        visit.notes["trace_id"] = f"{span.get_span_context().trace_id:032x}"

    def sees(self, visit: ServiceRequest, index: int, event: Event) -> None:
        runs = self._runs.get(visit)
        if runs is None:
            return
        if isinstance(event, Started):
            runs[index] = TracedRun(index, event)
        elif (run := runs.get(index)) is not None and not isinstance(event, Answering):
            run.moments.append(Moment(run.now, event))

    def solved(self, visit: ServiceRequest, index: int, solution: Solution) -> None:
        run = self._runs.get(visit, {}).get(index)
        if run is not None:
            run.solution = solution

    def failed(self, visit: ServiceRequest, exc: Exception) -> None:
        if (span := self._open.get(visit)) is not None:
            span.record_exception(exc)

    def ends(self, visit: ServiceRequest) -> None:
        from opentelemetry.trace import Status, StatusCode

        span, runs = self._open.pop(visit, None), self._runs.pop(visit, {})
        if span is None:
            return
        span.update_name(request_name(visit))
        span.set_attributes(of_request(visit))
        if visit.status >= 500:
            span.set_status(Status(StatusCode.ERROR))
        for passed in visit.passed:
            self._unfolding.passed(span, visit, passed)
        span.end()
        pouring = bool(self._due)
        self._due.extend(self._unfolding.run(span, run) for run in runs.values())
        if self._due and not pouring:
            asyncio.get_running_loop().call_soon(self._pour)

    def looked(self, role: Role, up: bool) -> None:
        pass

    def _pour(self) -> None:
        """Make a few of the spans that are due, and see to the rest when everybody else had a turn."""
        made: list[Span] = []
        try:
            made = list(islice(self._due[0], PORTION)) if self._due else []
        finally:
            if self._due and not made:
                self._due.popleft()
            if self._due:
                asyncio.get_running_loop().call_soon(self._pour)


async def _within(seconds: float, work: Callable[[], object]) -> bool:
    """
    Whether *work* was done within so many *seconds*; it goes on in a thread that nothing waits for.

    The SDK's own deadlines do not hold: it retries for ten seconds, whatever it is told.
    """
    loop, over = asyncio.get_running_loop(), asyncio.Event()

    def run() -> None:
        work()
        with suppress(RuntimeError):  # The loop is closed, and nobody waits any more.
            loop.call_soon_threadsafe(over.set)

    threading.Thread(target=run, name="last-spans", daemon=True).start()
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await over.wait()
    return over.is_set()
