"""Who takes the samples of an evaluation: this process, or others on other machines."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from stepspec.api import Solver
from stepspec.orchestrator.budget import Budget
from stepspec.settings import Settings

from .plan import Plan, Trial
from .sample import SolvedTask, solve_once

WARM_UP = "What is 1 + 1?"
WARM_UP_TOKENS = 64


class WorkerLost(Exception):
    """A worker is gone with what it held; the message says why. The run goes on without it."""


class Worker(Protocol):
    """Somebody with a solver of their own; no two have the same *name*."""

    @property
    def name(self) -> str: ...

    async def solve(self, trial: Trial, options: Mapping[str, Any], trace_to: Path | None) -> SolvedTask:
        """Solve a problem, with *options* beside those of the arm. Raise `WorkerLost` if the worker is."""
        ...


Post: TypeAlias = Callable[[], AbstractAsyncContextManager[Worker]]  # filled by one worker, and by another after it


class Team(Protocol):
    """Workers of other machines."""

    def posts(self, settings: Settings, plan: Plan, *, near: bool) -> Sequence[Post]:
        """Where they work, each with a solver of *settings*; *near* says that only this machine reaches the servers."""
        ...

    def record(self) -> Mapping[str, Any]:
        """What is worth writing down about them."""
        ...


@dataclass(frozen=True, slots=True)
class LocalWorker:
    """The worker in whose process this runs."""

    solver: Solver
    plan: Plan
    name: str = "here"

    async def solve(self, trial: Trial, options: Mapping[str, Any], trace_to: Path | None) -> SolvedTask:
        return await solve_once(
            self.solver,
            trial.arm,
            trial.task.problem,
            options={**trial.arm.options, **options},
            sampling=self.plan.sampling.model_copy(update={"seed": trial.seed}),
            budget=self.plan.budget,
            trace_to=trace_to,
        )


@asynccontextmanager
async def here(solver: Solver, plan: Plan) -> AsyncGenerator[LocalWorker]:
    """Make a worker of this process, warmed up."""
    await warm_up(solver, plan)
    yield LocalWorker(solver, plan)


async def warm_up(solver: Solver, plan: Plan) -> None:
    """Let every arm solve something short, so that no sample pays for what is done only once."""
    for arm in plan.arms:
        await solve_once(solver, arm, WARM_UP, sampling=plan.sampling, budget=Budget(WARM_UP_TOKENS))
