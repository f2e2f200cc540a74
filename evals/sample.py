"""How one arm solves one problem: the arm, the task, the run, and the sample, its record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any, Literal, TypeAlias, TypeVar, Unpack

from stepspec.api import Solver
from stepspec.orchestrator.budget import Budget
from stepspec.orchestrator.endpoints import Sampling
from stepspec.orchestrator.endpoints.request_context import separate_cache
from stepspec.orchestrator.errors import ContextTooLong
from stepspec.orchestrator.events import Observer
from stepspec.orchestrator.ledger import Account, Ledger
from stepspec.orchestrator.run_options import ARM_OPTIONS, RunOptions, RunOverrides
from stepspec.orchestrator.solution import Solution, SolvedStep
from stepspec.orchestrator.trace import Stopwatch

from .grading.graders import Gold, Graders
from .plain import PLAIN, solve_plain

R = TypeVar("R", bound=RunOptions)


Outcome: TypeAlias = Literal["right", "wrong", "truncated", "ungraded", "failed", "degraded"]

TRUNCATED = frozenset({"length", "time", "context"})  # finish reasons of truncated runs
FAILED = "failed"
EMPTY_LEDGER = Ledger(Account("small"), Account("large"))


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to solve problems."""

    name: str
    """The name in tables."""
    run: RunOptions
    """The options of its runs."""

    @classmethod
    def of(
        cls,
        name: str,
        method: str,
        choices: Mapping[str, Any] | None = None,
        **overrides: Unpack[RunOverrides],
    ) -> Arm:
        """
        Make the arm of a *method* with its options, the *choices*.

        The *overrides* are other options of a run. Raise `ConfigurationError` for a wrong value.
        """
        run = RunOptions(policy=method, options=dict(choices or {}), auto=False)
        return cls(name, run.with_overrides(overrides))

    def record(self) -> dict[str, Any]:
        """The arm as one table of names and values, for files."""
        options = self.run.model_dump(include={"policy", "options", *ARM_OPTIONS})
        return {"name": self.name, **options}

    @property
    def policy(self) -> str:
        return self.run.policy

    @property
    def options(self) -> Mapping[str, Any]:
        return self.run.options

    def resolve(self, defaults: R) -> R:
        """
        Return the options of a run of this arm. The solver's own options are *defaults*.

        An arm without a system prompt has that of the solver.
        """
        values = {name: getattr(self.run, name) for name in ("policy", "options", *ARM_OPTIONS)}
        values["system"] = self.run.system or defaults.system
        return defaults.model_copy(update=values)


@dataclass(frozen=True, slots=True)
class Task:
    """One problem of a benchmark."""

    problem: str
    """The text that the models read."""
    gold: Gold
    """Grades answers to it."""
    name: str = ""
    """Its name in the data set; "" without one."""
    question: str = ""
    """The text of the data set: no prompt template, and choices in the original order."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The record of a run: one arm solved one problem, once."""

    arm: str
    """The name of the arm."""
    correct: bool
    """Whether the answer is right."""
    seconds: float
    """Wall seconds of the run."""
    ledger: Ledger
    """The tokens and seconds of the run."""
    finish: str = "stop"
    """Why the run ended; "failed" if the problem was too long to begin."""
    graded: bool = True
    """False if the grader ran out of time."""
    answer: str = ""
    """The text after the thinking."""
    name: str = ""
    """The name of the task."""
    seed: int = 0
    """The sampling seed."""
    steps: tuple[SolvedStep, ...] = ()
    """The steps of the run, without their texts."""
    degraded: bool = False
    """Whether the run went on without the small model or its verifier."""

    @property
    def outcome(self) -> Outcome:
        """
        The outcome of the run.

        A run that spent its budget is "truncated". It still writes an answer, with tokens that are
        reserved for the answer. This answer may be right.
        """
        if self.finish == FAILED:
            return "failed"
        if self.finish in TRUNCATED:
            return "truncated"
        if not self.graded:
            return "ungraded"
        return "right" if self.correct else "wrong"

    @property
    def first(self) -> float | None:
        """Seconds until the first step was committed; None without a step."""
        return min((step.at for step in self.steps if step.fate == "kept"), default=None)


def derive_seed(base: int, index: int, repeat: int) -> int:
    """Derive the seed of a sample: equal for all arms, different for every problem and repeat."""
    return int.from_bytes(blake2b(f"{base} {index} {repeat}".encode(), digest_size=4).digest()) >> 1


async def solve_once(
    solver: Solver,
    arm: Arm,
    problem: str,
    *,
    sampling: Sampling,
    budget: Budget | None = None,
    observe: Observer = lambda event: None,
) -> Solution | None:
    """
    Solve *problem* with *arm*. Return None if the problem is too long.

    If *budget* is None, the settings decide. The arm does not use what other arms left in the
    servers' prefix caches.
    """
    run = arm.resolve(solver.settings.run)
    run = run.model_copy(update={"sampling": sampling, "budget": budget or run.budget})
    try:
        if arm.policy == PLAIN:
            return await solve_plain(solver, problem, run)
        with separate_cache(arm.name):
            return await solver.solve(problem, run, observe=observe, clock=Stopwatch())
    except ContextTooLong:
        return None


async def graded(
    solution: Solution | None,
    arm: Arm,
    task: Task,
    seed: int,
    graders: Graders,
) -> Sample:
    """
    Grade the *solution* of a run, and return its sample.

    If *solution* is None, the problem was too long for the context.
    """
    if solution is None:
        return Sample(arm.name, False, 0.0, EMPTY_LEDGER, FAILED, name=task.name, seed=seed)
    mark = await task.gold.grade(solution.text, graders)
    return Sample(
        arm=arm.name,
        correct=mark == "right",
        seconds=solution.seconds,
        ledger=solution.ledger,
        finish=solution.finish_reason,
        graded=mark != "ungraded",
        answer=solution.text,
        name=task.name,
        seed=seed,
        steps=tuple(replace(step, text="", at=round(step.at, 4)) for step in solution.steps),
        degraded=bool(solution.degraded),
    )


async def sample_once(
    solver: Solver,
    arm: Arm,
    task: Task,
    seed: int,
    graders: Graders,
    observe: Observer = lambda event: None,
) -> Sample:
    """Solve *task* with *arm* and this sampling *seed*, and grade the answer."""
    sampling = solver.settings.run.sampling.with_seed(seed)
    solution = await solve_once(solver, arm, task.problem, sampling=sampling, observe=observe)
    return await graded(solution, arm, task, seed, graders)
