"""
Traces in OpenTelemetry: a span for each request, with a span for each request to a served model.

Names and attributes follow OpenTelemetry's conventions for generative AI. Only the spans of
requests to models have tokens, so that a sum over all spans counts no token twice. No span has text
of problems or answers.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from stepspec.orchestrator.errors import ConfigurationError, install_command
from stepspec.orchestrator.events import Called, Started

from ..records import (
    COUNT_PATH,
    MODEL_PATHS,
    HealthChecked,
    RequestArrived,
    RequestFailed,
    RequestFinished,
    RunEvent,
    RunResult,
    ServiceEvent,
    ServiceRequest,
)

try:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
    from opentelemetry.trace import Span, SpanKind, Status, StatusCode, set_span_in_context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ImportError as exc:
    raise ConfigurationError(
        f"tracing needs the OpenTelemetry SDK: {install_command('otel')}"
    ) from exc

log = logging.getLogger("stepspec")

FLUSH_SECONDS = 3.0
"""Seconds for the last spans to be sent."""
TEXT_COMPLETION = "text_completion"
OPERATIONS: Mapping[str, str] = {"/v1/completions": TEXT_COMPLETION, COUNT_PATH: "count_tokens"}
"""The convention's name of the operation, by path. Other paths are "chat"."""


def connect(version: str, exporter: SpanExporter | None = None) -> TracerProvider:
    """
    Make the provider that sends spans.

    It sends them with *exporter*, or to the receiver in the ``OTEL_*`` variables.
    """
    name = os.environ.get("OTEL_SERVICE_NAME", "stepspec")
    provider = TracerProvider(
        resource=Resource.create({"service.name": name, "service.version": version})
    )
    provider.add_span_processor(BatchSpanProcessor(exporter or OTLPSpanExporter()))
    return provider


@dataclass(frozen=True, slots=True)
class TracedRun:
    """A run of a request."""

    began: int
    """The start, in nanoseconds since 1970."""
    models: Mapping[str, str]
    """The names of the models, by role or path."""


@dataclass(frozen=True, slots=True)
class OpenSpan:
    """The span of a request that is not answered yet."""

    span: Span
    """The span."""
    runs: dict[int, TracedRun] = field(default_factory=dict[int, TracedRun])
    """The runs of the request, by the index of their choice."""


@dataclass(frozen=True, slots=True)
class ClientSpan:
    """A request to a served model, as its span shows it."""

    operation: str
    """The convention's name of the operation."""
    model: str
    """The name of the model."""
    url: str
    """The base URL of the server."""
    began: int
    """The start, in nanoseconds since 1970."""
    seconds: float
    """Seconds from the start to the end."""
    attributes: Mapping[str, Any]
    """Further attributes. ``error.type`` is None if the request did not fail."""


class Tracing:
    """An observer that makes spans with *provider*."""

    def __init__(self, provider: TracerProvider) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("stepspec")
        self._propagator = TraceContextTextMapPropagator()
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
        if isinstance(event, RequestArrived):
            if event.request.path in MODEL_PATHS:
                self._arrived(event.request)
            return
        traced = self._open.get(event.request)
        if traced is not None:
            self._traced(event, traced)

    def _arrived(self, request: ServiceRequest) -> None:
        parent = self._propagator.extract(request.headers)
        span = self._tracer.start_span(f"{request.method} {request.path}", parent, SpanKind.SERVER)
        about = {
            "http.request.method": request.method,
            "url.path": request.path,
            "stepspec.request": request.id,
        }
        span.set_attributes(about)
        self._open[request] = OpenSpan(span)
        headers: dict[str, str] = {}
        self._propagator.inject(headers, set_span_in_context(span))
        request.forwarded = {**request.forwarded, **headers}
        request.log_fields["trace_id"] = f"{span.get_span_context().trace_id:032x}"

    def _traced(
        self, event: RunEvent | RunResult | RequestFailed | RequestFinished, traced: OpenSpan
    ) -> None:
        match event:
            case RunEvent():
                self._run_event(traced, event)
            case RunResult(choice=0, solution=solution):
                ledger = solution.ledger
                about = {
                    "stepspec.finish_reason": solution.finish_reason,
                    "stepspec.share_large": ledger.share_large,
                    "stepspec.accept_rate": ledger.accept_rate,
                }
                traced.span.set_attributes(_known(about))
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
                began = time.time_ns() - _nanoseconds(run_event.at)
                traced.runs[choice] = TracedRun(began, dict(models))
            case Called() as call if choice in traced.runs:
                run = traced.runs[choice]
                span = ClientSpan(
                    operation=TEXT_COMPLETION,
                    model=run.models.get(call.path or call.role, call.role),
                    url=call.url,
                    began=run.began + _nanoseconds(call.started),
                    seconds=call.seconds,
                    attributes=_call_attributes(call) | {"stepspec.choice": choice},
                )
                self._add_client_span(traced.span, span)
            case _:
                pass

    def _finished(self, request: ServiceRequest, span: Span) -> None:
        operation = OPERATIONS.get(request.path, "chat")
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
        for call in request.calls:
            client_span = ClientSpan(
                operation=operation,
                model=call.model,
                url=call.url,
                began=arrived + _nanoseconds(call.started),
                seconds=call.seconds,
                attributes={
                    "http.response.status_code": call.status or None,
                    "gen_ai.response.time_to_first_chunk": call.first,
                    "error.type": call.failure,
                    "stepspec.role": call.role,
                },
            )
            self._add_client_span(span, client_span)
        span.end()

    def _add_client_span(self, parent: Span, client_span: ClientSpan) -> None:
        """Make the span of a request to a model below *parent*."""
        address = urlsplit(client_span.url)
        about = {
            "gen_ai.operation.name": client_span.operation,
            "gen_ai.provider.name": "vllm",
            "gen_ai.request.model": client_span.model,
            "server.address": address.hostname,
            "server.port": address.port,
            **client_span.attributes,
        }
        span = self._tracer.start_span(
            f"{client_span.operation} {client_span.model}",
            set_span_in_context(parent),
            SpanKind.CLIENT,
            _known(about),
            start_time=client_span.began,
        )
        if client_span.attributes["error.type"] is not None:
            span.set_status(Status(StatusCode.ERROR))
        span.end(client_span.began + _nanoseconds(client_span.seconds))


def _nanoseconds(seconds: float) -> int:
    return int(seconds * 1e9)


def _call_attributes(call: Called) -> dict[str, Any]:
    """Return the attributes of a request to a model within a run."""
    return {
        "gen_ai.usage.input_tokens": call.prompt,
        "gen_ai.usage.output_tokens": call.written,
        "gen_ai.usage.cache_read.input_tokens": call.cached,
        "gen_ai.response.time_to_first_chunk": call.first,
        "error.type": call.fate if call.fate == "failed" else None,
        "stepspec.role": call.role,
        "stepspec.path": call.path or None,
        "stepspec.verb": call.verb,
        "stepspec.purpose": call.purpose or None,
        "stepspec.step": call.step if call.step >= 0 else None,
        "stepspec.fate": call.fate,
    }


def _known(attributes: Mapping[str, Any]) -> dict[str, Any]:
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
