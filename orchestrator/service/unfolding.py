"""From what happened in a run to its spans: the run, its stages below it, and below them their requests."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..events import Called, Started
from ..solution import Solution
from ..trace import Moment
from . import conventions
from .stages import Stages
from .visit import Passed, Visit

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer


@dataclass(slots=True, eq=False)
class Run:
    """What is known of the run of a *choice*: who takes part, what happened until when, and what came of it."""

    choice: int
    began: Started
    since: float = field(default_factory=lambda: asyncio.get_running_loop().time())
    clock: int = field(default_factory=time.time_ns)
    moments: list[Moment] = field(default_factory=list[Moment])
    solution: Solution | None = None

    @property
    def now(self) -> float:
        """Seconds since it began."""
        return asyncio.get_running_loop().time() - self.since

    @property
    def ended(self) -> float:
        return self.moments[-1].at if self.moments else 0.0


class Unfolding:
    """Makes spans with *tracer*, complete ones, after everything is over."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    def run(self, request: Span, run: Run) -> Iterator[Span]:
        """Make the spans of *run* below that of its *request*, one after the other."""
        told, models = Stages.of(run.moments), dict[str, str](run.began.models)
        policy = run.began.policy
        whole = self._span(
            request,
            f"invoke_workflow {policy}",
            (run.clock, 0.0, run.ended),
            conventions.of_run(policy, run.choice, run.solution),
        )
        yield whole
        shared: dict[int, Span] = {}
        for call in told.rest:
            shared[id(call)] = span = self._call(whole, run, call, models)
            yield span
        for stage in told.stages:
            links = [shared[id(call)] for call in stage.shared]
            times = run.clock, stage.started, stage.ended
            span = self._span(whole, stage.kind, times, conventions.of_stage(stage), links=links)
            yield span
            for call in stage.calls:
                yield self._call(span, run, call, models)

    def passed(self, request: Span, visit: Visit, passed: Passed) -> None:
        """Make the span of a request that was *passed* on."""
        _, operation = conventions.OPERATIONS[visit.path]
        began = time.time_ns() - int(visit.seconds * 1e9)
        self._span(
            request,
            f"{operation} {passed.model}",
            (began, passed.started, passed.started + passed.seconds),
            conventions.of_passed(passed, operation),
            client=True,
            failed=passed.failure is not None,
        )

    def _call(self, above: Span, run: Run, call: Called, models: Mapping[str, str]) -> Span:
        model = models.get(call.path or call.role, call.role)
        return self._span(
            above,
            f"{conventions.CALL} {model}",
            (run.clock, call.started, call.started + call.seconds),
            conventions.of_call(call, model),
            client=True,
            failed=call.fate == "failed",
        )

    def _span(
        self,
        above: Span,
        name: str,
        times: tuple[int, float, float],
        attributes: Mapping[str, Any],
        *,
        client: bool = False,
        failed: bool = False,
        links: Sequence[Span] = (),
    ) -> Span:
        """Make a span; *times* are the clock's in nanoseconds, and from then the first and the last second."""
        from opentelemetry.trace import Link, SpanKind, Status, StatusCode, set_span_in_context

        clock, start, end = times
        span = self._tracer.start_span(
            name,
            set_span_in_context(above),
            SpanKind.CLIENT if client else SpanKind.INTERNAL,
            attributes,
            [Link(one.get_span_context()) for one in links],
            clock + int(start * 1e9),
        )
        if failed:
            span.set_status(Status(StatusCode.ERROR))
        span.end(clock + int(end * 1e9))
        return span
