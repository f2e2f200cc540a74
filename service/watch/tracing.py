"""
Traces in OpenTelemetry: a span for each request, with a span for each request to a served model.

Names and attributes follow OpenTelemetry's conventions for generative AI. Only the spans of
requests to models have tokens, so that a sum over all spans counts no token twice. No span has text
of problems or answers.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, TypeAlias
from urllib.parse import urlsplit

from stepspec.orchestrator.errors import ConfigurationError, install_command
from stepspec.orchestrator.events import Called, Started

from ..records import (
    MODEL_PATHS,
    HealthChecked,
    RequestArrived,
    RequestFailed,
    RequestFinished,
    RunEvent,
    RunResult,
    ServiceEvent,
    ServiceRequest,
    UpstreamAttempt,
)

try:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
    from opentelemetry.trace import Span, SpanKind, Status, StatusCode, set_span_in_context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ImportError as exc:
    raise ConfigurationError(
        f"tracing needs the OpenTelemetry SDK: {install_command('otel')}"
    ) from exc

log = logging.getLogger("stepspec")

Attributes: TypeAlias = Mapping[str, Any]
"""The attributes of a span, by name."""

PROPAGATOR = TraceContextTextMapPropagator()
FLUSH_SECONDS = 3.0
"""Seconds for the last spans to be sent."""


def connect(version: str, exporter: SpanExporter | None = None) -> TracerProvider:
    """
    Make the provider that sends spans.

    It sends them with *exporter*, or to the receiver in the ``OTEL_*`` variables.
    """
    given = OTELResourceDetector().detect().attributes
    provider = TracerProvider(
        resource=Resource.create({"service.name": "stepspec", "service.version": version, **given})
    )
    provider.add_span_processor(BatchSpanProcessor(exporter or OTLPSpanExporter()))
    return provider


@dataclass(frozen=True, slots=True)
class OpenSpan:
    """The span of a request that is not answered yet."""

    span: Span
    """The span."""
    models: dict[int, dict[str, str]] = field(default_factory=dict[int, dict[str, str]])
    """The names of each run's models by role, by the index of the run's choice."""


class Tracing:
    """An observer that makes spans with *provider*."""

    def __init__(self, provider: TracerProvider) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("stepspec")
        self._open: dict[ServiceRequest, OpenSpan] = {}

    @asynccontextmanager
    async def flushed(self) -> AsyncGenerator[None]:
        """
        Send the remaining spans at the end of the block.

        Spans that are not sent within `FLUSH_SECONDS` are lost.
        """
        try:
            yield
        finally:
            if not await _finishes(self._provider.shutdown, FLUSH_SECONDS):
                log.warning(
                    "the last spans are lost: their receiver did not take them within %g s",
                    FLUSH_SECONDS,
                )

    def __call__(self, event: ServiceEvent) -> None:
        if isinstance(event, HealthChecked):
            return
        request = event.request
        if isinstance(event, RequestArrived) and request.path in MODEL_PATHS:
            self._arrived(request)
        elif request in self._open:
            self._traced(event, self._open[request])

    def _arrived(self, request: ServiceRequest) -> None:
        parent = PROPAGATOR.extract(request.headers)
        span = self._tracer.start_span(
            f"{request.method} {request.path}",
            parent,
            SpanKind.SERVER,
        )
        span.set_attributes(
            {
                "http.request.method": request.method,
                "url.path": request.path,
                "stepspec.request": request.id,
            }
        )
        self._open[request] = OpenSpan(span)
        headers: dict[str, str] = {}
        PROPAGATOR.inject(headers, set_span_in_context(span))
        request.forwarded = {**request.forwarded, **headers}
        request.log_fields["trace_id"] = f"{span.get_span_context().trace_id:032x}"

    def _traced(self, event: ServiceEvent, traced: OpenSpan) -> None:
        match event:
            case RunEvent():
                self._run_event(traced, event)
            case RunResult(choice=0, solution=solution):
                ledger = solution.ledger
                summary = {
                    "stepspec.finish_reason": solution.finish_reason,
                    "stepspec.share_large": ledger.share_large,
                    "stepspec.accept_rate": ledger.accept_rate,
                }
                traced.span.set_attributes(_known(summary))
            case RequestFailed(_, exception):
                traced.span.record_exception(exception)
            case RequestFinished(request):
                self._finished(request, self._open.pop(request).span)
            case _:
                pass

    def _run_event(self, traced: OpenSpan, run_event: RunEvent) -> None:
        choice = run_event.choice
        match run_event.event:
            case Started(models=models):
                traced.models[choice] = dict(models)
            case Called() as call if choice in traced.models:
                began = time.time_ns() - _nanoseconds(run_event.at)
                names = traced.models[choice]
                about = {
                    "gen_ai.operation.name": "text_completion",
                    "gen_ai.request.model": names.get(call.role, call.role),
                    "gen_ai.usage.input_tokens": call.prompt,
                    "gen_ai.usage.output_tokens": call.written,
                    "gen_ai.usage.cache_read.input_tokens": call.cached,
                    "error.type": "failed" if call.fate == "failed" else None,
                    "stepspec.choice": choice,
                    "stepspec.verb": call.verb,
                    "stepspec.purpose": call.purpose or None,
                    "stepspec.step": call.step if call.step >= 0 else None,
                    "stepspec.fate": call.fate,
                }
                self._add_client_span(traced.span, began, call, about)
            case _:
                pass

    def _finished(self, request: ServiceRequest, span: Span) -> None:
        operation = MODEL_PATHS[request.path]
        error = request.error
        if request.model:
            span.update_name(f"{operation} {request.model}")
        about = {
            "gen_ai.operation.name": operation,
            "gen_ai.provider.name": "stepspec",
            "gen_ai.request.model": request.model,
            "http.response.status_code": request.status,
            "user.id": request.log_fields.get("user") or None,
            "error.type": error.label if error else None,
        }
        span.set_attributes(_known(about))
        if request.status >= 500:
            span.set_status(Status(StatusCode.ERROR))
        arrived = time.time_ns() - _nanoseconds(request.seconds)
        for attempt in request.attempts:
            about = {
                "gen_ai.operation.name": operation,
                "gen_ai.request.model": attempt.model,
                "http.response.status_code": attempt.status or None,
                "error.type": attempt.failure,
            }
            self._add_client_span(span, arrived, attempt, about)
        span.end()

    def _add_client_span(
        self,
        parent: Span,
        origin: int,
        call: Called | UpstreamAttempt,
        about: Attributes,
    ) -> None:
        """
        Make the span of *call*, a request to a model, below *parent*.

        The times of *call* count from *origin*, in nanoseconds since 1970. *about* has further
        attributes.
        """
        address = urlsplit(call.url)
        attributes = {
            "gen_ai.provider.name": "vllm",
            "server.address": address.hostname,
            "server.port": address.port,
            "gen_ai.response.time_to_first_chunk": call.first,
            "stepspec.role": call.role,
            **about,
        }
        span = self._tracer.start_span(
            f"{about['gen_ai.operation.name']} {about['gen_ai.request.model']}",
            set_span_in_context(parent),
            SpanKind.CLIENT,
            _known(attributes),
            start_time=origin + _nanoseconds(call.started),
        )
        if about["error.type"] is not None:
            span.set_status(Status(StatusCode.ERROR))
        span.end(origin + _nanoseconds(call.started + call.seconds))


def _nanoseconds(seconds: float) -> int:
    return int(seconds * 1e9)


def _known(attributes: Attributes) -> Attributes:
    """Return *attributes* without those that are None."""
    return {name: value for name, value in attributes.items() if value is not None}


async def _finishes(work: Callable[[], object], seconds: float) -> bool:
    """
    Return whether *work* finishes within *seconds*. If it does not, a daemon thread goes on.

    The SDK does not keep its own deadlines: it retries for ten seconds in any case.
    """
    loop = asyncio.get_running_loop()
    finished = asyncio.Event()

    def run() -> None:
        work()
        with suppress(RuntimeError):  # the loop is closed already
            loop.call_soon_threadsafe(finished.set)

    threading.Thread(target=run, name="last-spans", daemon=True).start()
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await finished.wait()
    return finished.is_set()
