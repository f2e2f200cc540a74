"""
What a run worked on, from when to when, and which requests that took. Pure.

Events tell when something was over. When it began is read off what had to be over before, and off the requests.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from ..chain import Accept, Role, Rollback, Step
from ..events import (
    Answered,
    Called,
    Chosen,
    Committed,
    Drafted,
    Judged,
    Lost,
    Repaired,
    Started,
)
from ..solution import Solution
from ..trace import Moment
from . import tracing
from .middleware import ServiceRequest, UpstreamCall

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer


Kind: TypeAlias = Literal["draft", "judgement", "repair", "answer"]
StageFate: TypeAlias = Literal["kept", "accepted", "rejected", "lost"]

AT_ONCE = 1e-3  # seconds between the end of one thing and the beginning of the next
SLACK = 0.02  # seconds between the end of a request and that of what it was for


@dataclass(slots=True, eq=False)
class Stage:
    """
    The draft, the judgement or the repair of step *index*, or the answer; seconds are since the run began.

    A draft is "kept", "rejected" or "lost", a judgement "accepted", "rejected" or, if it was cut short, "lost". *grade*
    and *reason* are the verdict's. *over* calls of the run were over by then. *calls* were made for this alone;
    *shared* ones, kept open, for what came before or after as well.
    """

    kind: Kind
    index: int
    started: float
    ended: float
    author: Role | None = None
    fate: StageFate = "lost"
    grade: float | None = None
    reason: str = ""
    over: int = 0
    calls: list[Called] = field(default_factory=list[Called])
    shared: list[Called] = field(default_factory=list[Called])


@dataclass(frozen=True, slots=True)
class Stages:
    """All *stages* of a run in the order of their ends, and the *rest* of its calls: those shared, and those lost."""

    stages: Sequence[Stage]
    rest: Sequence[Called]

    @classmethod
    def of(cls, moments: Iterable[Moment]) -> Stages:
        """Read them off the events of a run, which may have ended anyhow."""
        following = _Following()
        for moment in moments:
            following.hear(moment)
        return cls(following.stages, _hand_out(following.calls, following.stages))


class _Following:
    """Follows the events of a run."""

    def __init__(self) -> None:
        self.stages: list[Stage] = []
        self.calls: list[Called] = []
        self._drafts: dict[int, Stage] = {}
        self._verdicts: dict[int, float] = {}
        self._commits: dict[int, float] = {-1: 0.0}
        self._free = 0.0  # since when the next draft could be made
        self._turned: float | None = None  # when a rival took the place of a draft

    def hear(self, moment: Moment) -> None:
        at = moment.at
        match moment.event:
            case Called():
                self.calls.append(moment.event)
            case Drafted(index, draft):
                self._drafted(index, draft, at)
            case Judged(index, _, verdict) if index in self._drafts:
                self._judged(index, verdict, at)
            case Lost(index) if index in self._drafts:
                self._lost(index, at)
            case Chosen():
                self._free = self._turned = at
            case Committed(index):
                self._commits[index] = at
                if (drafted := self._drafts.get(index)) is not None and drafted.fate == "accepted":
                    drafted.fate = "kept"
            case Repaired(index, step, rollback):
                self._repaired(index, step, rollback, at)
            case Answered(step):
                begun = self._bet(step.author, self._free, max(self._commits.values()))
                self._add("answer", len(self._commits) - 1, begun, at, step.author, "kept")
            case _:
                pass

    def _add(
        self, kind: Kind, index: int, started: float, at: float, author: Role | None = None, fate: StageFate = "lost"
    ) -> Stage:
        stage = Stage(kind, index, started, at, author, fate, over=len(self.calls))
        self.stages.append(stage)
        return stage

    def _begun(self, author: Role, free: float) -> float:
        """When *author*, who was *free* since then, began to write a draft."""
        latest = takewhile(lambda call: _end(call) >= free + AT_ONCE, reversed(self.calls))  # they come when over
        return max(free, min((call.started for call in latest if _writes(call, author)), default=free))

    def _bet(self, author: Role, drafted: float, taken: float) -> float:
        """When *author* began what was *taken* then: that second, or before, if it was a bet on what was *drafted*."""
        latest = takewhile(lambda call: _end(call) >= drafted, reversed(self.calls))
        writes = (call.started for call in latest if _writes(call, author) and call.fate == "done")
        return min([taken, *[started for started in writes if started >= drafted - AT_ONCE][:1]])

    def _drafted(self, index: int, draft: Step, at: float) -> None:
        self._drafts[index] = self._add("draft", index, self._begun(draft.author, self._free), at, draft.author)
        self._free, self._turned = at, None

    def _judged(self, index: int, verdict: Accept | Rollback, at: float) -> None:
        draft = self._drafts[index]
        draft.fate = "accepted" if isinstance(verdict, Accept) else "rejected"
        judgement = self._add("judgement", index, draft.ended, at, fate=draft.fate)
        judgement.grade = draft.grade = verdict.score
        judgement.reason = draft.reason = verdict.reason if isinstance(verdict, Rollback) else ""
        self._verdicts[index] = at

    def _lost(self, index: int, at: float) -> None:
        draft = self._drafts.pop(index)
        draft.fate = "lost"
        if index not in self._verdicts:
            self._add("judgement", index, draft.ended, max(draft.ended, self._turn(at)))
        self._verdicts.pop(index, None)

    def _turn(self, at: float) -> float:
        """When what is known *at* that second to be lost was given up."""
        fallen = min((index for index, one in self._drafts.items() if one.fate == "rejected"), default=None)
        return self._turned or (at if fallen is None else self._taken(fallen))

    def _taken(self, index: int) -> float:
        """When the verdict on step *index*, a rollback, was acted upon."""
        return max(self._verdicts.get(index, 0.0), self._commits.get(index - 1, 0.0))

    def _repaired(self, index: int, step: Step, rollback: Rollback, at: float) -> None:
        drafted = index - 1 if rollback.keep else index
        taken = self._taken(drafted)
        begun = self._bet(step.author, self._drafts[drafted].ended, taken) if drafted in self._drafts else taken
        self._add("repair", index, begun, at, step.author, "kept").reason = rollback.reason
        self._drafts.clear()
        self._verdicts.clear()
        self._free = at


def _writes(call: Called, author: Role | None) -> bool:
    return call.verb == "write" and call.role == author


def _end(call: Called) -> float:
    return call.started + call.seconds


def _hand_out(calls: Sequence[Called], stages: Sequence[Stage]) -> list[Called]:
    """Give every call to the stage that it was made for; return those that belong to several, or to none."""
    owners = _closing(calls, stages)
    rest, ready = list[Called](), {stage: stage.started for stage in stages}
    coming, there = deque(sorted(stages, key=lambda stage: stage.started)), list[Stage]()
    for place, call in sorted(enumerate(calls), key=lambda one: one[1].started):
        while coming and coming[0].started <= call.started + AT_ONCE:
            there.append(coming.popleft())
        there = [stage for stage in there if stage.ended + SLACK >= call.started]
        stage = owners.get(place) or _owner(call, [stage for stage in there if place < stage.over], ready)
        if stage is None:
            rest.append(call)
        else:
            stage.calls.append(call)
            ready[stage] = _end(call)
    for call in rest:
        for stage in stages:
            if _writes(call, stage.author) and call.started < stage.ended and stage.started < _end(call):
                stage.shared.append(call)
    return rest


def _closing(calls: Sequence[Called], stages: Iterable[Stage]) -> dict[int, Stage]:
    """Find the calls, by their places, that judgements ended with: a verdict comes as soon as the last one is over."""
    owners: dict[int, Stage] = {}
    for stage in stages:
        first = place = stage.over
        while stage.kind == "judgement" and place and stage.ended - _end(calls[place - 1]) <= AT_ONCE:
            place -= 1
            if calls[place].verb != "write" and place not in owners:
                first = place
        if first < stage.over:
            owners[first] = stage
    return owners


def _owner(call: Called, there: Iterable[Stage], ready: Mapping[Stage, float]) -> Stage | None:
    """
    The one of the stages that *call* lies in that it was made for.

    What writes is for those by the same model, if there are such, and all else for judgements. Of several it is for the
    one that was *ready* for it last, and of those that were at the same time, for the one that is over next.
    """
    around = list(there)
    fitting = [stage for stage in around if stage.author == call.role] if call.verb == "write" or call.path else []
    if not fitting and not (call.verb == "write" and call.fate == "cancelled"):  # which is a bet on a judged draft
        fitting = [stage for stage in around if stage.kind == "judgement"]
    begun = call.started + AT_ONCE
    claims = {stage: ready[stage] if ready[stage] <= begun else stage.started for stage in fitting}
    last = [stage for stage, claim in claims.items() if claim >= max(claims.values()) - AT_ONCE]
    return min(last, key=lambda stage: (ready[stage] > begun, stage.ended), default=None)


@dataclass(slots=True, eq=False)
class TracedRun:
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


class SpanTree:
    """Makes spans with *tracer*, complete ones, after everything is over."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    def run(self, request: Span, run: TracedRun) -> Iterator[Span]:
        """Make the spans of *run* below that of its *request*, one after the other."""
        told, models = Stages.of(run.moments), dict[str, str](run.began.models)
        policy = run.began.policy
        whole = self._span(
            request,
            f"invoke_workflow {policy}",
            (run.clock, 0.0, run.ended),
            tracing.of_run(policy, run.choice, run.solution),
        )
        yield whole
        shared: dict[int, Span] = {}
        for call in told.rest:
            shared[id(call)] = span = self._call(whole, run, call, models)
            yield span
        for stage in told.stages:
            links = [shared[id(call)] for call in stage.shared]
            times = run.clock, stage.started, stage.ended
            span = self._span(whole, stage.kind, times, tracing.of_stage(stage), links=links)
            yield span
            for call in stage.calls:
                yield self._call(span, run, call, models)

    def passed(self, request: Span, visit: ServiceRequest, passed: UpstreamCall) -> None:
        """Make the span of a request that was *passed* on."""
        _, operation = tracing.OPERATIONS[visit.path]
        began = time.time_ns() - int(visit.seconds * 1e9)
        self._span(
            request,
            f"{operation} {passed.model}",
            (began, passed.started, passed.started + passed.seconds),
            tracing.of_passed(passed, operation),
            client=True,
            failed=passed.failure is not None,
        )

    def _call(self, above: Span, run: TracedRun, call: Called, models: Mapping[str, str]) -> Span:
        model = models.get(call.path or call.role, call.role)
        return self._span(
            above,
            f"{tracing.CALL} {model}",
            (run.clock, call.started, call.started + call.seconds),
            tracing.of_call(call, model),
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
