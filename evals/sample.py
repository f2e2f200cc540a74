"""One problem solved by one arm: the task, the arm, the run, and the sample that is kept of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar, Unpack

from stepspec.api import Solver
from stepspec.orchestrator import trace
from stepspec.orchestrator.budget import Budget
from stepspec.orchestrator.chain import Role
from stepspec.orchestrator.endpoints import Sampling
from stepspec.orchestrator.endpoints.metrics import Acceptance
from stepspec.orchestrator.endpoints.request_context import separate_cache
from stepspec.orchestrator.errors import ContextTooLong
from stepspec.orchestrator.events import Called, Event, Observer
from stepspec.orchestrator.ledger import Account, Ledger
from stepspec.orchestrator.run_options import Limits, RunOptions, RunOverrides, arm_options
from stepspec.orchestrator.solution import Solution, StepFate
from stepspec.orchestrator.trace import Recorder, Stopwatch

from .grading.graders import Gold
from .plain import PLAIN, solve_plain

ByRole: TypeAlias = Mapping[Role, Acceptance]
R = TypeVar("R", bound=RunOptions)


def sum_acceptances(readings: Iterable[ByRole]) -> ByRole:
    """Add up the *readings*, role by role."""
    sums: dict[Role, Acceptance] = {}
    for reading in readings:
        for role, acceptance in reading.items():
            sums[role] = sums.get(role, Acceptance()) + acceptance
    return sums


Outcome: TypeAlias = Literal["right", "wrong", "truncated", "ungraded", "failed", "degraded"]

CUT = frozenset({"length", "time", "context"})  # finish reasons of truncated runs
FAILED = "failed"
EMPTY_LEDGER = Ledger(Account("small"), Account("large"))


@dataclass(frozen=True, slots=True)
class Arm:
    """
    One way to solve problems: the options of its runs.

    *sampling* holds what differs from the sampling of the solver. An arm that is *like* another arm
    is its control: the option *p* of its policy is the accept rate of the other arm.
    """

    name: str
    run: RunOptions
    like: str = ""
    sampling: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @classmethod
    def of(
        cls,
        name: str,
        method: str,
        choices: Mapping[str, Any] | None = None,
        *,
        like: str = "",
        sampling: Mapping[str, Any] | None = None,
        **overrides: Unpack[RunOverrides],
    ) -> Arm:
        """
        Make the arm of a *method* with its options, its *choices*; the *overrides* are other
        options of a run.

        Raise `ConfigurationError` for a wrong value.
        """
        run = RunOptions(policy=method, options=dict(choices or {}), auto=False).with_overrides(
            overrides
        )
        return cls(name, run, like, dict(sampling or {}))

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Arm:
        """Read an arm as `record` writes it; additional fields of older versions are left out."""
        overrides: Any = {name: record[name] for name in arm_options() if name in record}
        about = {name: record[name] for name in ("like", "sampling") if name in record}
        return cls.of(record["name"], record["policy"], record["options"], **about, **overrides)

    def record(self) -> dict[str, Any]:
        """The arm as one table of names and values, for files."""
        options = self.run.model_dump(include={"policy", "options", *arm_options()})
        return {"name": self.name, **options, "like": self.like, "sampling": self.sampling}

    @property
    def policy(self) -> str:
        return self.run.policy

    @property
    def options(self) -> Mapping[str, Any]:
        return self.run.options

    def resolve(self, defaults: R) -> R:
        """
        Return the options of a run of this arm by a solver whose runs have the options *defaults*.

        No run may change with the runs before it, unless its arm has `auto`, nor be slowed down by
        those of another.
        """
        values = {name: getattr(self.run, name) for name in ("policy", "options", *arm_options())}
        # as for the problem, it is the same for every arm
        values["system"] = self.run.system or defaults.system
        return defaults.model_copy(update=values)


@dataclass(frozen=True, slots=True)
class Task:
    """
    One problem, as the models read it, and *gold*, which grades answers to it.

    *name* and *reference*, a worked solution, come from the data set, where it has them. *question*
    is the data set's own text, without the prompt template and without choices in a random order.
    """

    problem: str
    gold: Gold
    name: str = ""
    reference: str = ""
    question: str = ""


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One step of a sample, without its text; the fields are those of `SolvedStep`."""

    author: Role
    fate: StepFate
    grade: float | None
    reason: str
    at: float

    @property
    def repair(self) -> bool:
        """Whether the step replaces the rejected part of a draft."""
        return self.fate == "kept" and bool(self.reason)


@dataclass(frozen=True, slots=True)
class Sample:
    """
    One problem solved by one arm.

    *pace* is the seconds per token by role, from requests that wrote several tokens. *finish* is
    the reason why the run ended, or "failed" if the problem was too long to begin. *graded* is
    false if the grader ran out of time. *answer* is the text after the thinking. *repeat* numbers
    the samples of one problem, *seed* is the sampling seed, and *options* are policy options beyond
    those of the arm. *speculation* counts, by role, the tokens that the server drafted and accepted
    itself, where it speculates. A *degraded* run went on without the small model or its verifier.
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
    steps: tuple[StepRecord, ...] = ()
    degraded: bool = False
    speculation: Mapping[Role, Acceptance] = field(default_factory=dict[Role, Acceptance])

    @property
    def outcome(self) -> Outcome:
        """
        The outcome of the problem. A run that ran out of its budget is "truncated", whether its
        answer is right or not.

        Such a run still answers, from tokens reserved for the answer, and is *correct* if that
        answer is.
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
    """A solved task before it is graded; *solution* is None if the problem is too long."""

    solution: Solution | None
    pace: Mapping[Role, float]

    def sample(self, arm: Arm, *, correct: bool, graded: bool = True, **more: Any) -> Sample:
        if self.solution is None:
            return Sample(arm.name, False, 0.0, EMPTY_LEDGER, {}, FAILED, **more)
        return Sample(
            arm.name,
            correct,
            self.solution.seconds,
            self.solution.ledger,
            self.pace,
            self.solution.finish_reason,
            graded,
            self.solution.text,
            steps=tuple(
                StepRecord(s.author, s.fate, s.grade, s.reason, round(s.at, 4))
                for s in self.solution.steps
            ),
            degraded=bool(self.solution.degraded),
            **more,
        )


def derive_seed(base: int, index: int, repeat: int) -> int:
    """Derive the seed of a sample: equal for all arms, different for every problem and repeat."""
    return int.from_bytes(blake2b(f"{base} {index} {repeat}".encode(), digest_size=4).digest()) >> 1


async def solve_once(
    solver: Solver,
    arm: Arm,
    problem: str,
    *,
    options: Mapping[str, Any] | None = None,
    sampling: Sampling | None = None,
    budget: Budget | None = None,
    observe: Observer = lambda event: None,
    trace_to: Path | None = None,
) -> SolvedTask:
    """
    Solve *problem* as *arm* does, with its own options if *options* is None.

    Sampling fields of the arm override *sampling*. What is None is as in the settings. The arm
    finds nothing in the prefix caches that other arms wrote.
    """
    run = arm.resolve(solver.settings.run)
    sampling = (sampling or run.sampling).model_copy(update=dict(arm.sampling))
    limits = run.budget if budget is None else Limits.of(budget)
    own = run.options if options is None else dict(options)
    run = run.model_copy(update={"options": own, "sampling": sampling, "budget": limits})
    clock = Stopwatch()
    recorder = Recorder(clock)

    def record(event: Event) -> None:
        recorder(event)
        observe(event)

    try:
        if arm.policy == PLAIN:
            return SolvedTask(
                *await solve_plain(solver, problem, sampling, limits.budget(), clock, run.system)
            )
        with separate_cache(arm.name):
            solution = await solver.solve(problem, run, observe=record, clock=clock)
    except ContextTooLong:
        return SolvedTask(None, {})
    finally:
        if trace_to is not None and recorder.moments:
            trace.write(trace_to, recorder.moments)
    return SolvedTask(solution, _pace(recorder.events))


def _pace(events: Sequence[Event]) -> dict[Role, float]:
    """Mean seconds between two tokens, by role, over the requests that wrote several tokens."""
    pace: dict[Role, float] = {}
    roles: tuple[Role, ...] = ("small", "large")
    for role in roles:
        calls = [
            e for e in events if isinstance(e, Called) and e.role == role and e.verb == "write"
        ]
        gaps = [
            (call.seconds - call.first, call.written - 1)
            for call in calls
            if call.first is not None
        ]
        tokens = sum(count for _, count in gaps if count > 0)
        if tokens:
            pace[role] = sum(seconds for seconds, count in gaps if count > 0) / tokens
    return pace


async def sample_once(
    solver: Solver, arm: Arm, task: Task, seed: int, observe: Observer = lambda event: None
) -> Sample:
    """
    Solve *task* as *arm* does, with this sampling *seed*; without a grader, only the expected text
    is right.
    """
    sampling = solver.settings.run.sampling.with_seed(seed)
    solved = await solve_once(solver, arm, task.problem, sampling=sampling, observe=observe)
    right = solved.solution is not None and solved.solution.answer == str(task.gold)
    return solved.sample(arm, correct=right, seed=seed)
