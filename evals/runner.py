"""
Run the trials of a plan.

Workers take them from a queue. The trials of a lost worker go to the others.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from stepspec.api import Solver
from stepspec.orchestrator import trace
from stepspec.orchestrator.budget import Budget
from stepspec.orchestrator.concurrency import at_once, supervised
from stepspec.orchestrator.errors import WorkersLost
from stepspec.orchestrator.events import Observer
from stepspec.orchestrator.solution import Solution
from stepspec.orchestrator.trace import Recorder, Stopwatch
from stepspec.settings import Settings

from .grading.graders import Graders
from .plan import Plan, Trial, trials
from .sample import Sample, graded, solve_once
from .store import Place, SampleStore

MAX_LOST = 3
"""Workers that may be lost with the same trial."""
WARM_UP = "What is 1 + 1?"
WARM_UP_TOKENS = 64


class WorkerLost(Exception):
    """A worker is gone with its trials. The message says why. The run goes on without it."""


class Worker(Protocol):
    """Solves trials with a solver of its own. No two workers have the same name."""

    @property
    def name(self) -> str: ...

    async def solve(self, trial: Trial, trace_to: Path | None) -> Solution | None:
        """
        Solve a problem. The trace goes into *trace_to*.

        Return None for a problem that is too long. Raise `WorkerLost` if the worker is gone.
        """
        ...


WorkerSlot: TypeAlias = Callable[[], AbstractAsyncContextManager[Worker]]
"""Holds one worker. The block is left with `WorkerLost` if the worker is gone."""


class WorkerGroup(Protocol):
    """Workers on other machines."""

    def slots(self, settings: Settings, plan: Plan) -> Sequence[WorkerSlot]:
        """Slots for workers, each with a solver of *settings*."""
        ...

    def record(self) -> Mapping[str, Any]:
        """What the run folder records about the workers."""
        ...


@dataclass(frozen=True, slots=True)
class LocalWorker:
    """A worker in this process."""

    solver: Solver
    """Solves the problems."""
    plan: Plan
    """The plan of the run."""
    name: str = "here"
    """The name of the worker."""

    async def observed(self, trial: Trial, observe: Observer) -> Solution | None:
        """Solve a problem. *observe* sees the events of the run."""
        return await solve_once(
            self.solver,
            trial.arm,
            trial.task.problem,
            sampling=self.plan.sampling.with_seed(trial.seed),
            budget=self.plan.budget,
            observe=observe,
        )

    async def solve(self, trial: Trial, trace_to: Path | None) -> Solution | None:
        recorder = Recorder(Stopwatch())
        try:
            return await self.observed(trial, recorder)
        finally:
            if trace_to is not None and recorder.moments:
                trace.write(trace_to, recorder.moments)


@asynccontextmanager
async def local_worker(solver: Solver, plan: Plan) -> AsyncGenerator[LocalWorker]:
    """
    Yield a worker in this process.

    First every arm solves a short problem. So no sample contains costs that occur only once.
    """
    for arm in plan.arms:
        await solve_once(
            solver,
            arm,
            WARM_UP,
            sampling=plan.sampling,
            budget=Budget(tokens=WARM_UP_TOKENS),
        )
    yield LocalWorker(solver, plan)


async def run(
    slots: Sequence[WorkerSlot],
    plan: Plan,
    graders: Graders,
    samples: SampleStore,
    *,
    traces: Path | None = None,
    on_sample: Callable[[Sample], object] = lambda sample: None,
) -> None:
    """
    Solve all trials of *plan* that *samples* does not have yet.

    Each of *slots* holds one worker at a time. *traces* is the folder for the traces; None: they
    are not kept. The first failure of an endpoint ends the run, and finished samples are kept. The
    trials of a lost worker go to the other workers before any new trial. Raise `WorkersLost`, which
    names the trial, if a trial was lost with `MAX_LOST` workers.
    """
    queue: asyncio.PriorityQueue[tuple[int, Trial]] = asyncio.PriorityQueue()
    for entry in enumerate(trials(plan)):
        if entry[1].place not in samples.done:
            queue.put_nowait(entry)
    if queue.empty():
        return
    lost_with: defaultdict[Place, list[str]] = defaultdict(list)
    """The names of the workers that were lost with a trial."""
    lost_workers: set[str] = set()

    async def work(worker: Worker) -> None:
        while True:
            turn, trial = await queue.get()
            if worker.name in lost_workers:  # Another task of this worker has noticed the loss.
                queue.put_nowait((turn, trial))
                queue.task_done()
                return
            trace_to = traces / trace_name(trial.number, trial.arm.name) if traces else None
            try:
                solution = await worker.solve(trial, trace_to)
                sample = await graded(solution, trial.arm, trial.task, trial.seed, graders)
            # The loss of the worker in another task cancels this one.
            except (WorkerLost, asyncio.CancelledError):
                lost_workers.add(worker.name)
                lost_with[trial.place].append(worker.name)
                queue.put_nowait((turn, trial))
                queue.task_done()
                raise
            samples.add(trial.number, sample)
            on_sample(sample)
            queue.task_done()

    async def fill(slot: WorkerSlot) -> None:
        while True:
            try:
                async with slot() as worker:
                    await at_once(work(worker) for _ in range(plan.concurrency))
            except WorkerLost:
                _check_lost(lost_with, plan)

    async with supervised(*map(fill, slots)):
        await queue.join()


def _check_lost(lost_with: Mapping[Place, Sequence[str]], plan: Plan) -> None:
    """Raise `WorkersLost` if a trial was lost with `MAX_LOST` workers."""
    for (number, arm), workers in lost_with.items():
        if len(workers) >= MAX_LOST:
            name = plan.tasks[number // plan.repeats].name
            problem = f"{number} ({name})" if name else str(number)
            raise WorkersLost(
                f"{MAX_LOST} workers were lost while they solved problem {problem} as {arm!r}:"
                f" {', '.join(workers)}; see their logs for why (memory?), or leave the problem out"
            )


def trace_name(number: int, arm: str) -> str:
    """Return the file name of a trace: the sample's number, and letters and digits of *arm*."""
    letters = "".join(sign if sign.isalnum() else "-" for sign in arm).strip("-")
    return f"{number:05}-{letters}.jsonl"
