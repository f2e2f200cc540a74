"""
Traces in OpenTelemetry: one span for each request, and below it one for each request to a served
model.

Names and attributes follow OpenTelemetry's conventions for generative AI. Tokens are attributes of
the requests to models only, so that a sum over spans counts nothing twice. No span contains text of
problems or answers.
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
from stepspec.orchestrator.events import Called, Event, Started

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

FLUSH_SECONDS = 3.0  # for the last spans to be sent
CALL = "text_completion"
OPERATIONS: Mapping[str, str] = {"/v1/completions": CALL, COUNT_PATH: "count_tokens"}
"""The convention's name of the operation by path; "chat" for all others."""


def connect(version: str, exporter: SpanExporter | None = None) -> TracerProvider:
    """Make the provider that sends spans with *exporter*, or where the ``OTEL_*`` variables say."""
    name = os.environ.get("OTEL_SERVICE_NAME", "stepspec")
    provider = TracerProvider(
        resource=Resource.create({"service.name": name, "service.version": version})
    )
    provider.add_span_processor(BatchSpanProcessor(exporter or OTLPSpanExporter()))
    return provider


@dataclass(slots=True)
class _Open:
    """
    The *span* of a request that is not answered yet, with its *runs* by the index of their choice.

    Of a run there is the time at which it began, in nanoseconds since 1970, and its models' names
    by role or path.
    """

    span: Span
    runs: dict[int, tuple[int, Mapping[str, str]]] = field(
        default_factory=dict[int, tuple[int, Mapping[str, str]]]
    )


class Tracing:
    """An observer that makes spans with *provider*."""

    def __init__(self, provider: TracerProvider) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("stepspec")
        self._propagator = TraceContextTextMapPropagator()
        self._open: dict[ServiceRequest, _Open] = {}

    @asynccontextmanager
    async def flushed(self) -> AsyncGenerator[None]:
        """
        Send the remaining spans at the end of the block; those not sent within `FLUSH_SECONDS` are
        lost.
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
        if isinstance(event, RequestArrived):
            if event.request.path in MODEL_PATHS:
                self._arrived(event.request)
        elif (
            not isinstance(event, HealthChecked)
            and (traced := self._open.get(event.request)) is not None
        ):
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
        self._open[request] = _Open(span)
        headers: dict[str, str] = {}
        self._propagator.inject(headers, set_span_in_context(span))
        request.forwarded = {**request.forwarded, **headers}
        request.log_fields["trace_id"] = f"{span.get_span_context().trace_id:032x}"

    def _traced(
        self, event: RunEvent | RunResult | RequestFailed | RequestFinished, traced: _Open
    ) -> None:
        match event:
            case RunEvent(_, choice, at, run_event):
                self._run_event(traced, choice, at, run_event)
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

    def _run_event(self, traced: _Open, choice: int, at: float, event: Event) -> None:
        match event:
            case Started(models=models):
                traced.runs[choice] = time.time_ns() - int(at * 1e9), dict(models)
            case Called() if choice in traced.runs:
                began, names = traced.runs[choice]
                model = names.get(event.path or event.role, event.role)
                times = began + int(event.started * 1e9), event.seconds
                more = _call_attributes(event) | {"stepspec.choice": choice}
                self._client_span(traced.span, CALL, model, event.url, times, more)
            case _:
                pass

    def _finished(self, request: ServiceRequest, span: Span) -> None:
        operation = OPERATIONS.get(request.path, "chat")
        error = request.error
        span.update_name(
            f"{operation} {request.model}" if request.model else f"{request.method} {request.path}"
        )
        about = {
            "gen_ai.operation.name": operation,
            "gen_ai.provider.name": "stepspec",
            "gen_ai.request.model": request.model,
            "http.response.status_code": request.status,
            "user.id": request.log_fields.get("user") or None,
            "error.type": None if error is None else error.code or str(error.status),
        }
        span.set_attributes(_known(about))
        if request.status >= 500:
            span.set_status(Status(StatusCode.ERROR))
        arrived = time.time_ns() - int(request.seconds * 1e9)
        for call in request.calls:
            more = {
                "http.response.status_code": call.status or None,
                "gen_ai.response.time_to_first_chunk": call.first,
                "error.type": call.failure,
                "stepspec.role": call.role,
            }
            times = arrived + int(call.started * 1e9), call.seconds
            self._client_span(span, operation, call.model, call.url, times, more)
        span.end()

    def _client_span(
        self,
        parent: Span,
        operation: str,
        model: str,
        url: str,
        times: tuple[int, float],
        attributes: Mapping[str, Any],
    ) -> None:
        """
        Make the span of a request to a model. *times* are its start in nanoseconds since 1970, and
        its seconds.
        """
        (start, seconds) = times
        address = urlsplit(url)
        about = {
            "gen_ai.operation.name": operation,
            "gen_ai.provider.name": "vllm",
            "gen_ai.request.model": model,
            "server.address": address.hostname,
            "server.port": address.port,
            **attributes,
        }
        span = self._tracer.start_span(
            *(f"{operation} {model}", set_span_in_context(parent), SpanKind.CLIENT, _known(about)),
            start_time=start,
        )
        if attributes["error.type"] is not None:
            span.set_status(Status(StatusCode.ERROR))
        span.end(start + int(seconds * 1e9))


def _call_attributes(call: Called) -> dict[str, Any]:
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
    """Leave out the attributes that are None."""
    return {name: value for name, value in attributes.items() if value is not None}


async def _finishes(work: Callable[[], object], seconds: float) -> bool:
    """
    Whether *work* finishes within *seconds*; if not, it goes on in a daemon thread.

    The SDK's own deadlines do not hold: it retries for ten seconds whatever the deadline.
    """
    loop = asyncio.get_running_loop()
    finished = asyncio.Event()

    def run() -> None:
        work()
        with suppress(RuntimeError):  # The loop is closed already.
            loop.call_soon_threadsafe(finished.set)

    threading.Thread(target=run, name="last-spans", daemon=True).start()
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await finished.wait()
    return finished.is_set()
