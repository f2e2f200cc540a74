"""A scripted solver, and samples, to test the code around them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from stepspec import Sampling, Solution, Solver
from stepspec.evals.arms import SHIPPED
from stepspec.evals.results import Result, compare_arms
from stepspec.evals.sample import Arm, Sample
from stepspec.evals.store import Place
from stepspec.orchestrator.budget import Budget
from stepspec.orchestrator.events import Observer, Started
from stepspec.orchestrator.ledger import Account, Ledger
from stepspec.orchestrator.run import FinishReason
from stepspec.orchestrator.run_options import RunOptions
from stepspec.orchestrator.solution import SolvedStep
from stepspec.orchestrator.trace import Stopwatch
from stepspec.settings import Settings

DEAD = "--small", "http://127.0.0.1:9", "--large", "http://127.0.0.1:19"  # where nothing listens


class Connected(Solver):
    """A solver that connects to nothing."""

    async def __aenter__(self) -> Connected:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass


@dataclass(frozen=True)
class SolveCall:
    """The arguments of a run."""

    problem: str
    policy: str
    options: Mapping[str, Any]
    sampling: Sampling
    budget: Budget
    ahead: int

    @property
    def seed(self) -> int | None:
        return self.sampling.seed


def solution(
    answer: str,
    *,
    reason: FinishReason = "stop",
    seconds: float = 1.0,
    drafts: int = 10,
    accepted: int = 8,
    small: int = 30,
    large: int = 10,
) -> Solution:
    ledger = Ledger(
        Account("small", kept=small, discarded=5),
        Account("large", kept=large, judging=7),
        drafts,
        accepted,
    )
    steps = (
        SolvedStep(0, "small", "a", 8.0, "kept", "", 0.25),
        SolvedStep(1, "small", "b", 2.0, "rejected", "grade", 0.5),
    )
    return Solution(
        answer,
        rf"\boxed{{{answer}}}" if answer else "",
        r"\boxed{99}",
        steps,
        ledger,
        reason,
        seconds,
    )


def sample(
    arm: str,
    seconds: float,
    *,
    small: int = 0,
    large: int = 0,
    discarded: int = 0,
    correct: bool = True,
) -> Sample:
    judging, drafts, accepted = (50, 10, 8) if arm == SHIPPED.name else (0, 0, 0)
    ledger = Ledger(
        Account("small", kept=small, discarded=discarded),
        Account("large", kept=large, judging=judging),
        drafts,
        accepted,
    )
    return Sample(arm, correct, seconds, ledger)


@dataclass
class ScriptedSolver:
    """
    Returns the solutions of *script*, which may raise; *calls* has the runs in the order of their
    starts.

    A run waits for a permit of the *gate*, if there is one; *most* is how many waited at the same
    time.
    """

    script: Callable[[SolveCall], Solution]
    gate: asyncio.Semaphore | None = None
    settings: Settings = field(default_factory=Settings)
    calls: list[SolveCall] = field(default_factory=list[SolveCall])
    open: int = 0
    most: int = 0

    async def solve(
        self, problem: str, run: RunOptions, *, observe: Observer, clock: Stopwatch
    ) -> Solution:
        call = SolveCall(problem, run.policy, run.options, run.sampling, run.budget, run.ahead)
        self.calls.append(call)
        self.open += 1
        self.most = max(self.most, self.open)
        try:
            if self.gate is not None:
                await self.gate.acquire()
            await asyncio.sleep(0)
            observe(Started((), call.policy))
            return self.script(call)
        finally:
            self.open -= 1

    @property
    def solver(self) -> Solver:
        return cast("Solver", self)


def compared(
    done: Mapping[Place, Sample], arms: Sequence[Arm], repeats: int = 1, baseline: str = ""
) -> list[Result]:
    """Compare *arms* by their names."""
    return compare_arms(done, [arm.name for arm in arms], repeats, baseline)
