"""
Traces in OpenTelemetry: a span for each request, and one for each request of its runs to a model.

Names and attributes follow OpenTelemetry's conventions for generative AI. Only the spans of
requests to models have tokens, so that a sum over all spans counts no token twice. No span has text
of problems or answers.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeAlias
from urllib.parse import urlsplit

from stepspec.orchestrator.errors import ConfigurationError, install_command
from stepspec.orchestrator.events import Called, Started

from ..records import (
    MODEL_PATHS,
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
NANOSECONDS = 1e9
"""In one second."""
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


class Tracing:
    """An observer that makes spans with *provider*."""

    def __init__(self, provider: TracerProvider) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("stepspec")
        self._spans: dict[ServiceRequest, Span] = {}  # of requests that are not answered yet
        # the names of the models by role, of the requests whose runs have started
        self._models: dict[ServiceRequest, Mapping[str, str]] = {}

    @asynccontextmanager
    async def flushed(self) -> AsyncGenerator[None]:
        """
        Send the remaining spans at the end of the block.

        Spans that are not sent within `FLUSH_SECONDS` are lost. The SDK does not keep its own
        deadlines: it retries for ten seconds in any case.
        """
        try:
            yield
        finally:
            sending = threading.Thread(target=self._provider.shutdown, daemon=True)
            sending.start()
            await asyncio.to_thread(sending.join, FLUSH_SECONDS)
            if sending.is_alive():
                log.warning(
                    "the last spans are lost: their receiver did not take them within %g s",
                    FLUSH_SECONDS,
                )

    def __call__(self, event: ServiceEvent) -> None:
        request = event.request
        if isinstance(event, RequestArrived) and request.path in MODEL_PATHS:
            self._arrived(request)
        span = self._spans.get(request)
        if span is None:
            return
        match event:
            case RunEvent(event=Started(models=models)):
                self._models[request] = dict(models)
            case RunEvent(event=Called() as call):
                self._called(event, call, span)
            case RunResult(choice=0, solution=solution):
                ledger = solution.ledger
                summary = {
                    "stepspec.finish_reason": solution.finish_reason,
                    "stepspec.share_large": ledger.share_large,
                    "stepspec.accept_rate": ledger.accept_rate,
                }
                span.set_attributes(_known(summary))
            case RequestFailed(_, exception):
                span.record_exception(exception)
            case RequestFinished():
                self._finished(request, span)
            case _:
                pass

    def _arrived(self, request: ServiceRequest) -> None:
        """Begin the span of *request*, and pass it on to the models."""
        attributes = {
            "http.request.method": request.method,
            "url.path": request.path,
            "stepspec.request": request.id,
        }
        span = self._tracer.start_span(
            f"{request.method} {request.path}",
            PROPAGATOR.extract(request.headers),
            SpanKind.SERVER,
            attributes,
        )
        self._spans[request] = span
        headers = dict(request.forwarded)
        PROPAGATOR.inject(headers, set_span_in_context(span))
        request.forwarded = headers
        request.log_fields["trace_id"] = f"{span.get_span_context().trace_id:032x}"

    def _called(self, run_event: RunEvent, call: Called, span: Span) -> None:
        """Make the span of *call*, a request of a run to a model, below *span*."""
        names = self._models.get(run_event.request, {})
        model = names.get(call.role, call.role)
        address = urlsplit(call.url)
        attributes = {
            "gen_ai.operation.name": "text_completion",
            "gen_ai.provider.name": "vllm",
            "gen_ai.request.model": model,
            "gen_ai.response.time_to_first_chunk": call.first,
            "gen_ai.usage.input_tokens": call.prompt,
            "gen_ai.usage.output_tokens": call.written,
            "gen_ai.usage.cache_read.input_tokens": call.cached,
            "server.address": address.hostname,
            "server.port": address.port,
            "error.type": "failed" if call.fate == "failed" else None,
            "stepspec.role": call.role,
            "stepspec.choice": run_event.choice,
            "stepspec.verb": call.verb,
            "stepspec.purpose": call.purpose or None,
            "stepspec.step": call.step if call.step >= 0 else None,
            "stepspec.fate": call.fate,
        }
        started = time.time_ns() - int((run_event.at - call.started) * NANOSECONDS)
        client_span = self._tracer.start_span(
            f"text_completion {model}",
            set_span_in_context(span),
            SpanKind.CLIENT,
            _known(attributes),
            start_time=started,
        )
        if call.fate == "failed":
            client_span.set_status(Status(StatusCode.ERROR))
        client_span.end(started + int(call.seconds * NANOSECONDS))

    def _finished(self, request: ServiceRequest, span: Span) -> None:
        """End *span*."""
        del self._spans[request]
        self._models.pop(request, None)
        operation = MODEL_PATHS[request.path]
        if request.model:
            span.update_name(f"{operation} {request.model}")
        about = {
            "gen_ai.operation.name": operation,
            "gen_ai.provider.name": "stepspec",
            "gen_ai.request.model": request.model,
            "http.response.status_code": request.status,
            "user.id": request.log_fields.get("user") or None,
            "error.type": request.error.label if request.error else None,
        }
        span.set_attributes(_known(about))
        if request.status >= 500:
            span.set_status(Status(StatusCode.ERROR))
        span.end()


def _known(attributes: Attributes) -> Attributes:
    """Return *attributes* without those that are None."""
    return {name: value for name, value in attributes.items() if value is not None}
