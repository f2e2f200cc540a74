"""
The spans of a request, after OpenTelemetry's conventions for generative AI.

A request is a span, each of its runs one below it, and below that the stages of the run (drafts, judgements, repairs,
the answer) with their calls to models. Stages are read off the events of the run: `Called` names its purpose and step.
Tokens are attributes of the calls only, so that a sum over spans counts nothing twice.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias
from urllib.parse import urlsplit

from ..chain import Accept, Role, Rollback, Step, Verdict
from ..events import Answered, Called, Chosen, Committed, Drafted, Judged, Lost, Purpose, Repaired, Started
from ..solution import Solution
from ..trace import Moment
from .observers import COUNT_PATH, MESSAGES_PATH, ServiceRequest, UpstreamCall

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer

PROVIDER = "vllm"
CALL = "text_completion"
OPERATIONS: Mapping[str, tuple[str, str]] = {
    "/v1/chat/completions": ("chat", "chat"),
    "/v1/completions": (CALL, CALL),
    "/v1/responses": ("respond", "chat"),
    MESSAGES_PATH: ("message", "chat"),
    COUNT_PATH: ("count_tokens", "count_tokens"),
    "/live": ("live", "chat"),
}
"""By path: the first word of a request's span, and the convention's name of the operation."""

StageKind: TypeAlias = Literal["draft", "judgement", "repair", "answer"]
StageFate: TypeAlias = Literal["kept", "accepted", "rejected", "lost"]


@dataclass(slots=True, eq=False)
class Stage:
    """
    The draft, the judgement or the repair of step *index*, or the answer; seconds are since the run began.

    A draft is "kept", "rejected" or "lost", a judgement "accepted", "rejected" or, if it was cancelled, "lost". *grade*
    and *reason* are the verdict's. *calls* were made for this stage alone; *shared* are streams that were kept open and
    wrote this draft among others.
    """

    kind: StageKind
    index: int
    started: float
    ended: float
    author: Role | None = None
    fate: StageFate = "lost"
    grade: float | None = None
    reason: str = ""
    calls: Sequence[Called] = ()
    shared: list[Called] = field(default_factory=list[Called])


@dataclass(frozen=True, slots=True)
class Stages:
    """
    All *stages* of a run in the order of their ends, and the *rest* of its calls: those shared by stages or cancelled.

    Calls without a purpose, as in traces from before purposes were recorded, belong to no stage: they are in the rest.
    """

    stages: Sequence[Stage]
    rest: Sequence[Called]

    @classmethod
    def of(cls, moments: Iterable[Moment]) -> Stages:
        """Read the stages off the events of a run, which may be incomplete."""
        reader = _StageReader()
        for moment in moments:
            reader.read(moment)
        reader.share_streams()
        return cls(reader.stages, reader.calls)


class _StageReader:
    """Reads the events of a run one by one; `calls` are those that no stage has claimed so far."""

    def __init__(self) -> None:
        self.stages: list[Stage] = []
        self.calls: list[Called] = []
        self._drafts: dict[int, tuple[Stage, float]] = {}  # by index, with the second since when drafts build on it
        self._unowned: list[tuple[Stage, float]] = []  # drafts without calls of their own, with the same second
        self._verdicts: dict[int, float] = {}
        self._commits: dict[int, float] = {-1: 0.0}
        self._restarted = 0.0  # when drafting began anew, after a repair or the choice of a rival
        self._drafted = 0.0  # when the last draft was complete
        self._chosen: float | None = None  # when a rival took the place of a draft

    def read(self, moment: Moment) -> None:
        at = moment.at
        match moment.event:
            case Called() as call:
                self.calls.append(call)
            case Drafted(index, draft):
                self._draft(index, draft, at)
            case Judged(index, _, verdict) if index in self._drafts:
                self._judgement(index, verdict, at)
            case Lost(index) if index in self._drafts:
                self._lost(index, at)
            case Chosen():
                self._restarted = self._drafted = self._chosen = at
            case Committed(index):
                self._commits[index] = at
                if index in self._drafts and self._drafts[index][0].fate == "accepted":
                    self._drafts[index][0].fate = "kept"
            case Repaired(index, step, rollback):
                self._repair(index, step, rollback, at)
            case Answered(step):
                calls = self._claim(len(self._commits) - 1, ("answer",), self._restarted, nested=step.author)
                self._add("answer", len(self._commits) - 1, max(self._commits.values()), at, calls, step.author, "kept")
            case _:
                pass

    def _add(
        self,
        kind: StageKind,
        index: int,
        started: float,
        ended: float,
        calls: Sequence[Called],
        author: Role | None = None,
        fate: StageFate = "lost",
    ) -> Stage:
        """Add a stage. It began with its first call if that was before *started*, as that of a bet is."""
        started = min([started, *(call.started for call in calls)])
        stage = Stage(kind, index, started, ended, author, fate, calls=calls)
        self.stages.append(stage)
        return stage

    def _claim(
        self, index: int, purposes: tuple[Purpose, ...], since: float, *, nested: Role | None = None
    ) -> list[Called]:
        """
        Take the calls about step *index* for one of the *purposes* that began after second *since*.

        Calls within a nested pair have purposes of their own: those of the pair in the role *nested* are taken.
        """

        def fits(call: Called) -> bool:
            mine = call.role == nested if call.path else call.purpose in purposes
            return mine and call.purpose != "" and call.step == call.last_step == index and call.started >= since

        claimed = sorted(filter(fits, self.calls), key=lambda call: call.started)
        self.calls = [call for call in self.calls if not fits(call)]
        return claimed

    def _draft(self, index: int, draft: Step, at: float) -> None:
        calls = self._claim(index, ("draft",), self._restarted, nested=draft.author)
        started = min([call.started for call in calls], default=self._drafted)
        stage = self._add("draft", index, started, at, calls, draft.author)
        if not calls:
            self._unowned.append((stage, self._restarted))
        self._drafts[index] = stage, self._restarted
        self._drafted, self._chosen = at, None

    def share_streams(self) -> None:
        """Give every draft without calls the latest stream that it was taken from: one that was kept open."""
        for stage, since in self._unowned:
            streams = [
                call
                for call in self.calls
                if call.purpose == "draft"
                and (call.role, call.path) == (stage.author, "")
                and call.step <= stage.index <= call.last_step
                and since <= call.started < stage.ended
            ]
            stage.shared = streams[-1:]

    def _judgement(self, index: int, verdict: Verdict, at: float) -> None:
        draft, since = self._drafts[index]
        draft.fate = "accepted" if isinstance(verdict, Accept) else "rejected"
        calls = self._claim(index, ("verify",), since, nested="large")
        judgement = self._add("judgement", index, draft.ended, at, calls, fate=draft.fate)
        judgement.grade = draft.grade = verdict.score
        judgement.reason = draft.reason = verdict.reason if isinstance(verdict, Rollback) else ""
        self._verdicts[index] = at

    def _lost(self, index: int, at: float) -> None:
        draft, since = self._drafts.pop(index)
        draft.fate = "lost"
        if index not in self._verdicts:
            calls = self._claim(index, ("verify",), since, nested="large")
            self._add("judgement", index, draft.ended, max(draft.ended, self._cancelled(at)), calls)
        self._verdicts.pop(index, None)

    def _cancelled(self, at: float) -> float:
        """Return when the bets were cancelled that are reported as lost *at* that second."""
        rejected = min((index for index, (draft, _) in self._drafts.items() if draft.fate == "rejected"), default=None)
        return self._chosen or (at if rejected is None else self._acted_upon(rejected))

    def _acted_upon(self, index: int) -> float:
        """Return when the rollback of step *index* was acted upon: all steps before it had to be committed."""
        return max(self._verdicts.get(index, 0.0), self._commits.get(index - 1, 0.0))

    def _repair(self, index: int, step: Step, rollback: Rollback, at: float) -> None:
        calls = self._claim(index, ("repair", "hedge"), self._restarted, nested=step.author)
        rejected = index - 1 if rollback.keep else index
        stage = self._add("repair", index, self._acted_upon(rejected), at, calls, step.author, "kept")
        stage.reason = rollback.reason
        self._drafts.clear()
        self._verdicts.clear()
        self._restarted = self._drafted = at


@dataclass(slots=True, eq=False)
class TracedRun:
    """
    The run of one *choice*: its first event, the later ones with their times, and its solution if it has one.

    Its times are seconds since *clock*, nanoseconds since the epoch.
    """

    choice: int
    began: Started
    clock: int
    moments: list[Moment] = field(default_factory=list[Moment])
    solution: Solution | None = None

    @property
    def ended(self) -> float:
        return self.moments[-1].at if self.moments else 0.0


class SpanTree:
    """Makes spans with *tracer* after their ends, with the times at which things happened."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    def run(self, request: Span, run: TracedRun) -> Iterator[Span]:
        """Make the spans of *run* below that of its *request*, one after the other."""
        stages, models = Stages.of(run.moments), dict[str, str](run.began.models)
        policy, times = run.began.policy, (run.clock, 0.0, run.ended)
        attributes = _run_attributes(policy, run.choice, run.solution)
        run_span = self._span(request, f"invoke_workflow {policy}", times, attributes)
        yield run_span
        shared: dict[int, Span] = {}
        for call in stages.rest:
            shared[id(call)] = span = self._call(run_span, run, call, models)
            yield span
        for stage in stages.stages:
            links = [shared[id(call)] for call in stage.shared]
            times = run.clock, stage.started, stage.ended
            span = self._span(run_span, stage.kind, times, _stage_attributes(stage), links=links)
            yield span
            for call in stage.calls:
                yield self._call(span, run, call, models)

    def forwarded(self, parent: Span, request: ServiceRequest, call: UpstreamCall) -> None:
        """Make the span of a *request* that was forwarded to a served model."""
        _, operation = OPERATIONS[request.path]
        began = time.time_ns() - int(request.seconds * 1e9)
        self._span(
            parent,
            f"{operation} {call.model}",
            (began, call.started, call.started + call.seconds),
            _forwarded_attributes(call, operation),
            client=True,
            failed=call.failure is not None,
        )

    def _call(self, parent: Span, run: TracedRun, call: Called, models: Mapping[str, str]) -> Span:
        model = models.get(call.path or call.role, call.role)
        times = run.clock, call.started, call.started + call.seconds
        attributes, failed = _call_attributes(call, model), call.fate == "failed"
        return self._span(parent, f"{CALL} {model}", times, attributes, client=True, failed=failed)

    def _span(
        self,
        parent: Span,
        name: str,
        times: tuple[int, float, float],
        attributes: Mapping[str, Any],
        *,
        client: bool = False,
        failed: bool = False,
        links: Sequence[Span] = (),
    ) -> Span:
        """Make a span. *times* are a clock reading in nanoseconds, and first and last second after that."""
        from opentelemetry.trace import Link, SpanKind, Status, StatusCode, set_span_in_context

        clock, start, end = times
        span = self._tracer.start_span(
            name,
            set_span_in_context(parent),
            SpanKind.CLIENT if client else SpanKind.INTERNAL,
            attributes,
            [Link(linked.get_span_context()) for linked in links],
            clock + int(start * 1e9),
        )
        if failed:
            span.set_status(Status(StatusCode.ERROR))
        span.end(clock + int(end * 1e9))
        return span


def request_name(request: ServiceRequest) -> str:
    word, _ = OPERATIONS[request.path]
    return f"{word} {request.model}" if request.model else f"{request.method} {request.path}"


def request_attributes(request: ServiceRequest) -> dict[str, Any]:
    error = request.error
    return _known(
        {
            "gen_ai.operation.name": OPERATIONS[request.path][1],
            "gen_ai.provider.name": "stepspec",
            "gen_ai.request.model": request.model,
            "http.response.status_code": request.status,
            "user.id": request.log_fields.get("user") or None,
            "error.type": None if error is None else error.code or str(error.status),
        }
    )


def _run_attributes(policy: str, choice: int, solution: Solution | None) -> dict[str, Any]:
    names = {"gen_ai.operation.name": "invoke_workflow", "gen_ai.workflow.name": policy, "stepspec.choice": choice}
    if solution is None:
        return names
    ledger = solution.ledger
    return names | _known(
        {
            "stepspec.finish_reason": solution.finish_reason,
            "stepspec.share_large": ledger.share_large,
            "stepspec.accept_rate": ledger.accept_rate,
            "stepspec.tokens.kept": ledger.small.kept + ledger.large.kept,
            "stepspec.tokens.discarded": ledger.small.discarded + ledger.large.discarded,
        }
    )


def _stage_attributes(stage: Stage) -> dict[str, Any]:
    return _known(
        {
            "stepspec.step": stage.index if stage.kind != "answer" else None,
            "stepspec.author": stage.author,
            "stepspec.fate": stage.fate,
            "stepspec.grade": stage.grade,
            "stepspec.reason": stage.reason or None,
        }
    )


def _call_attributes(call: Called, model: str) -> dict[str, Any]:
    return _client_attributes(CALL, model, call.url) | _known(
        {
            "gen_ai.usage.input_tokens": call.prompt,
            "gen_ai.usage.output_tokens": call.written,
            "gen_ai.usage.cache_read.input_tokens": call.cached,
            "gen_ai.response.time_to_first_chunk": call.first,
            "error.type": call.fate if call.fate == "failed" else None,
            "stepspec.role": call.role,
            "stepspec.path": call.path or None,
            "stepspec.verb": call.verb,
            "stepspec.fate": call.fate,
        }
    )


def _forwarded_attributes(call: UpstreamCall, operation: str) -> dict[str, Any]:
    return _client_attributes(operation, call.model, call.url) | _known(
        {
            "http.response.status_code": call.status or None,
            "gen_ai.response.time_to_first_chunk": call.first,
            "error.type": call.failure,
            "stepspec.role": call.role,
        }
    )


def _client_attributes(operation: str, model: str, url: str) -> dict[str, Any]:
    address = urlsplit(url)
    return _known(
        {
            "gen_ai.operation.name": operation,
            "gen_ai.provider.name": PROVIDER,
            "gen_ai.request.model": model,
            "server.address": address.hostname,
            "server.port": address.port,
        }
    )


def _known(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out the attributes that are None."""
    return {name: value for name, value in attributes.items() if value is not None}
