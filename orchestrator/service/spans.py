"""
Spans over OTLP, after OpenTelemetry's conventions for generative AI: one for each request to the service, and below it
one for each request to a served model.

The SDK is an extra (``otel``), and is imported only by `connect`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from ..chain import Role
from ..errors import ConfigurationError
from ..events import Called, Event, Started
from ..solution import Solution
from .metrics import PATHS
from .visit import Visit

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import Span

log = logging.getLogger("stepspec")

VARIABLES = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
FLUSH = 3.0  # seconds for the last spans to leave
PROVIDER = "vllm"


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


class Spans:
    """A `Witness` that makes spans with *provider*; *models* are the names of the served models."""

    def __init__(self, provider: TracerProvider, models: Mapping[str, str]) -> None:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._provider, self._models = provider, models
        self._tracer = provider.get_tracer("stepspec")
        self._propagator = TraceContextTextMapPropagator()
        self._open: dict[Visit, Span] = {}
        self._runs: dict[tuple[Visit, int], int] = {}

    @asynccontextmanager
    async def flushed(self) -> AsyncGenerator[None]:
        """Send what is left at the end of the block; what has not left within a few seconds is lost."""
        try:
            yield
        finally:
            if not await _within(FLUSH, self._provider.shutdown):
                log.warning("the last spans are lost: nobody took them within %g s", FLUSH)

    def begins(self, visit: Visit) -> None:
        if visit.path not in PATHS:
            return
        from opentelemetry.trace import SpanKind, set_span_in_context

        above = self._propagator.extract(visit.headers)
        span = self._tracer.start_span(f"{visit.method} {visit.path}", above, SpanKind.SERVER)
        span.set_attributes({"http.request.method": visit.method, "url.path": visit.path, "stepspec.request": visit.id})
        self._open[visit] = span
        carried: dict[str, str] = {}
        self._propagator.inject(carried, set_span_in_context(span))
        visit.carried = carried
        visit.notes["trace_id"] = f"{span.get_span_context().trace_id:032x}"

    def sees(self, visit: Visit, index: int, event: Event) -> None:
        match event:
            case Started():
                self._runs[visit, index] = time.time_ns()
            case Called():
                self._called(visit, index, event)
            case _:
                pass

    def _called(self, visit: Visit, index: int, call: Called) -> None:
        from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context

        above, began = self._open.get(visit), self._runs.get((visit, index))
        if above is None or began is None:
            return
        model = self._models.get(call.role, call.role)
        start = began + int(call.started * 1e9)
        span = self._tracer.start_span(
            f"text_completion {model}", set_span_in_context(above), SpanKind.CLIENT, start_time=start
        )
        span.set_attributes(_attributes(call, model) | {"stepspec.choice": index})
        if call.fate == "failed":
            span.set_status(Status(StatusCode.ERROR))
        span.end(start + int(call.seconds * 1e9))

    def solved(self, visit: Visit, index: int, solution: Solution) -> None:
        span, ledger = self._open.get(visit), solution.ledger
        if span is None:
            return
        told: dict[str, Any] = {
            "stepspec.finish_reason": solution.finish_reason,
            "stepspec.share_large": ledger.share_large,
            "stepspec.accept_rate": ledger.accept_rate,
            "gen_ai.usage.output_tokens": ledger.small.kept + ledger.large.kept,
        }
        span.add_event("solved", {key: value for key, value in told.items() if value is not None})

    def failed(self, visit: Visit, exc: Exception) -> None:
        if (span := self._open.get(visit)) is not None:
            span.record_exception(exc)

    def ends(self, visit: Visit) -> None:
        from opentelemetry.trace import Status, StatusCode

        span = self._open.pop(visit, None)
        for key in [key for key in self._runs if key[0] is visit]:
            del self._runs[key]
        if span is None:
            return
        span.update_name(f"chat {visit.model}" if visit.model else f"{visit.method} {visit.path}")
        named = {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": "stepspec",
            "gen_ai.request.model": visit.model,
        }
        span.set_attributes({**named, "http.response.status_code": visit.status})
        if visit.notes.get("user"):
            span.set_attribute("user.id", visit.notes["user"])
        if visit.refusal is not None:
            span.set_attribute("error.type", visit.refusal.code or str(visit.refusal.status))
        if visit.status >= 500:
            span.set_status(Status(StatusCode.ERROR))
        span.end()

    def looked(self, role: Role, up: bool) -> None:
        pass


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


def _attributes(call: Called, model: str) -> dict[str, Any]:
    address = urlsplit(call.url)
    told = {
        "gen_ai.operation.name": "text_completion",
        "gen_ai.provider.name": PROVIDER,
        "gen_ai.request.model": model,
        "gen_ai.usage.input_tokens": call.prompt,
        "gen_ai.usage.output_tokens": call.written,
        "gen_ai.usage.cache_read.input_tokens": call.cached,
        "gen_ai.response.time_to_first_chunk": call.first,
        "server.address": address.hostname,
        "server.port": address.port,
        "error.type": call.fate if call.fate == "failed" else None,
        "stepspec.role": call.role,
        "stepspec.verb": call.verb,
        "stepspec.fate": call.fate,
    }
    return {key: value for key, value in told.items() if value is not None}
