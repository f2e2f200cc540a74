"""What the servers of a pair accept, meanwhile, of the tokens that they draft for their own models."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal, TypeAlias

from stepspec.api import Solver
from stepspec.orchestrator import trace
from stepspec.orchestrator.budget import Budget
from stepspec.orchestrator.chain import Role
from stepspec.orchestrator.endpoints import Sampling
from stepspec.orchestrator.endpoints.metrics import Acceptance
from stepspec.orchestrator.errors import ContextTooLong
from stepspec.orchestrator.events import Called, Event, Observer
from stepspec.orchestrator.interfaces import AnsweredBy, EndedBy
from stepspec.orchestrator.ledger import Account, Ledger
from stepspec.orchestrator.run_options import Delimiter
from stepspec.orchestrator.solution import Solution, SolvedStep, StepFate
from stepspec.orchestrator.step_ends import BLANK_LINE
from stepspec.orchestrator.trace import Moment, Recorder, Stopwatch

ByRole: TypeAlias = Mapping[Role, Acceptance]


async def drafted(solver: Solver) -> ByRole:
    """Look at the counters of both roles; those that do not speculate are left out."""
    endpoints = (solver.large, solver.small)
    found = await asyncio.gather(*(endpoint.acceptance() for endpoint in endpoints))
    return {one.role: told for one, told in zip(endpoints, found, strict=True) if told is not None}


def between(earlier: ByRole, later: ByRole) -> ByRole:
    """What happened from one look to the next."""
    return {role: told - earlier.get(role, Acceptance()) for role, told in later.items()}


def together(found: Iterable[ByRole]) -> ByRole:
    """Add up several of them."""
    added: dict[Role, Acceptance] = {}
    for one in found:
        for role, told in one.items():
            added[role] = added.get(role, Acceptance()) + told
    return added


class Recording:
    """Keeps the events of one run with their times; *observe* sees all."""

    def __init__(self, observe: Observer) -> None:
        self._observe = observe
        self._recorder: Recorder | None = None

    def __call__(self, event: Event) -> None:
        if self._recorder is None:
            self._recorder = Recorder(Stopwatch())  # A run begins with its first event.
        self._recorder(event)
        self._observe(event)

    @property
    def moments(self) -> Sequence[Moment]:
        return self._recorder.moments if self._recorder else ()


Outcome: TypeAlias = Literal["right", "wrong", "truncated", "ungraded", "failed"]

CUT = frozenset({"length", "time", "context"})  # the reasons for which a run ends before it is done
FAILED = "failed"
NOTHING = Ledger(Account("small"), Account("large"))


@dataclass(frozen=True, slots=True)
class Arm:
    """
    One way to solve problems: a policy, its options, how far it looks ahead, and what confidence it hedges at.

    *lead*, *ending*, *answer*, *early_exit*, *sure_bets* and *delimiter* are those of
    `Settings`; *sampling* is what of the solver's sampling the arm has otherwise. An arm that is *like* another one is
    its control: its policy's *p* is the accept rate that the other one has had.
    """

    name: str
    policy: str
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    ahead: int = 2
    hedge: float = 0.0
    lead: int = 0
    ending: EndedBy | None = None
    answer: AnsweredBy | None = None
    early_exit: bool = False
    sure_bets: bool = False
    delimiter: Delimiter = BLANK_LINE
    like: str = ""
    sampling: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True)
class Task:
    """
    One problem, as it is put, and its true answer.

    *name* is the data set's own, *reference* its worked solution, if it has one. *question* is what the data set asks,
    which stays the same whatever it is put into, and with other choices beside it.
    """

    problem: str
    answer: str
    name: str = ""
    reference: str = ""
    question: str = ""


@dataclass(frozen=True, slots=True)
class Written:
    """A step that was written, without its text; the fields are those of `SolvedStep`."""

    author: Role
    fate: StepFate
    grade: float | None
    reason: str
    at: float


@dataclass(frozen=True, slots=True)
class Sample:
    """
    One problem solved by one arm.

    *pace* is seconds a token by role, where a request wrote several. *finish* is why the run ended, or "failed" if it
    could not begin; *graded* is whether the grader came to an end. *answer* is what was written after the thinking.
    *repeat* counts the samples of the same problem, *seed* is that of this one's sampling, and *options* are those of
    the policy where they are not the arm's. *speculation* is what the servers of the roles accepted of the tokens that
    they drafted themselves, where they do.
    """

    arm: str
    correct: bool
    seconds: float
    ledger: Ledger
    pace: Mapping[Role, float]
    finish: str = "stop"
    graded: bool = True
    answer: str = ""
    name: str = ""
    repeat: int = 0
    seed: int = 0
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    steps: tuple[Written, ...] = ()
    degraded: bool = False
    speculation: Mapping[Role, Acceptance] = field(default_factory=dict[Role, Acceptance])

    @property
    def outcome(self) -> Outcome:
        """
        What became of the problem. A run that was cut short is "truncated", whatever it answered in the end.

        It does answer, from the tokens that are kept for that, and is *correct* if the answer is.
        """
        if self.finish == FAILED:
            return "failed"
        if self.finish in CUT:
            return "truncated"
        return "ungraded" if not self.graded else "right" if self.correct else "wrong"

    @property
    def first(self) -> float | None:
        """Seconds until the first step was committed."""
        return min((step.at for step in self.steps if step.fate == "kept"), default=None)


@dataclass(frozen=True, slots=True)
class SolvedTask:
    """What came of solving a task once, before it is graded; no *solution* if the problem is too long."""

    solution: Solution | None
    pace: Mapping[Role, float]

    def sample(self, arm: Arm, *, correct: bool, graded: bool = True, **more: Any) -> Sample:
        if self.solution is None:
            return Sample(arm.name, False, 0.0, NOTHING, {}, FAILED, **more)
        return Sample(
            arm.name,
            correct,
            self.solution.seconds,
            self.solution.ledger,
            self.pace,
            self.solution.finish_reason,
            graded,
            self.solution.text,
            steps=tuple(map(_written, self.solution.steps)),
            degraded=bool(self.solution.degraded),
            **more,
        )


def _written(step: SolvedStep) -> Written:
    return Written(step.author, step.fate, step.grade, step.reason, round(step.at, 4))


def seed(base: int, index: int, repeat: int) -> int:
    """Derive the seed of a sample: the same for all arms, and different for every problem and repeat."""
    return int.from_bytes(blake2b(f"{base} {index} {repeat}".encode(), digest_size=4).digest()) >> 1


async def solve_once(
    solver: Solver,
    arm: Arm,
    problem: str,
    *,
    options: Mapping[str, Any] | None = None,
    sampling: Sampling | None = None,
    drawn: int | None = None,
    budget: Budget | None = None,
    observe: Observer = lambda event: None,
    trace_to: Path | None = None,
) -> SolvedTask:
    """
    Solve *problem* as *arm* does, with its own *options* if none are told.

    What the arm has of its own *sampling* wins; *drawn* is the seed, if the sampling has none.
    """
    if arm.sampling:
        sampling = (sampling or solver.settings.sampling).model_copy(update=dict(arm.sampling))
    options = arm.options if options is None else options
    recording = Recording(observe)
    try:
        solution = await solver.solve(
            problem,
            policy=arm.policy,
            options=options,
            ahead=arm.ahead,
            hedge=arm.hedge,
            lead=arm.lead,
            ending=arm.ending,
            answer=arm.answer,
            early_exit=arm.early_exit,
            sure_bets=arm.sure_bets,
            delimiter=arm.delimiter,
            adapt=0.0,  # the runs of an arm are alike
            load="ignore",  # an arm must not be slowed down by what another one did
            sampling=sampling,
            seed=drawn,
            budget=budget,
            observe=recording,
        )
    except ContextTooLong:
        return SolvedTask(None, {})
    finally:
        if trace_to is not None and recording.moments:
            trace.write(trace_to, recording.moments)
    pace = _pace([moment.event for moment in recording.moments])
    return SolvedTask(solution, pace)


def _pace(events: Sequence[Event]) -> dict[Role, float]:
    """Seconds from one token to the next, by role, over the requests that wrote several."""
    pace: dict[Role, float] = {}
    roles: tuple[Role, ...] = ("small", "large")
    for role in roles:
        calls = [e for e in events if isinstance(e, Called) and e.role == role and e.verb == "write"]
        gaps = [(call.seconds - call.first, call.written - 1) for call in calls if call.first is not None]
        tokens = sum(count for _, count in gaps if count > 0)
        if tokens:
            pace[role] = sum(seconds for seconds, count in gaps if count > 0) / tokens
    return pace
