"""
Run the trials of a plan.

Workers take them from a queue. The trials of a lost worker go to the others.
"""

from __future__ import annotations

import asyncio
from bisect import insort
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from stepspec.api import Solver
from stepspec.orchestrator import trace
from stepspec.orchestrator.budget import Budget
from stepspec.orchestrator.concurrency import at_once, supervised
from stepspec.orchestrator.errors import WorkersLost
from stepspec.orchestrator.solution import Solution
from stepspec.orchestrator.trace import Recorder, Stopwatch
from stepspec.settings import Settings

from .grading.graders import Graders
from .plan import Plan, Trial, trials
from .sample import Sample, solve_once
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

    async def solve(
        self,
        trial: Trial,
        options: Mapping[str, Any],
        trace_to: Path | None,
    ) -> Solution | None:
        """
        Solve a problem with *options* beyond those of the arm. The trace goes into *trace_to*.

        Return None for a problem that is too long. Raise `WorkerLost` if the worker is gone.
        """
        ...


WorkerSlot: TypeAlias = Callable[[], AbstractAsyncContextManager[Worker]]
"""Holds one worker at a time."""


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

    async def solve(
        self,
        trial: Trial,
        options: Mapping[str, Any],
        trace_to: Path | None,
    ) -> Solution | None:
        choices = {**trial.arm.options, **options}
        run = trial.arm.run.model_copy(update={"options": choices})
        recorder = Recorder(Stopwatch())
        try:
            return await solve_once(
                self.solver,
                replace(trial.arm, run=run),
                trial.task.problem,
                sampling=self.plan.sampling.with_seed(trial.seed),
                budget=self.plan.budget,
                observe=recorder,
            )
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
            budget=Budget(WARM_UP_TOKENS),
        )
    yield LocalWorker(solver, plan)


class TrialQueue:
    """
    Hands out trials in their order, each to one worker at a time, without waiting.

    A trial that is not *ready* waits until it is ready, and later trials overtake it. The trials of
    a lost worker go to the other workers before any new trial.
    """

    def __init__(
        self,
        todo: Iterable[Trial],
        ready: Callable[[Trial], bool] = lambda trial: True,
    ) -> None:
        self._ready = ready
        self._todo = list(enumerate(todo))  # in order
        self._held: dict[Place, tuple[int, str]] = {}
        self._lost_with: dict[Place, list[str]] = {}
        self._left: set[str] = set()

    @property
    def finished(self) -> bool:
        """Whether there is a sample of every trial."""
        return not (self._todo or self._held)

    def finished_for(self, worker: str) -> bool:
        """Whether *worker* will never get another trial."""
        return worker in self._left or self.finished

    def take(self, worker: str) -> Trial | None:
        """The next trial for *worker*; None if no trial is ready."""
        if worker in self._left:
            return None
        for index, (turn, trial) in enumerate(self._todo):
            if self._ready(trial):
                del self._todo[index]
                self._held[trial.place] = (turn, worker)
                return trial
        return None

    def done(self, trial: Trial) -> None:
        """Note that *trial* has a sample."""
        del self._held[trial.place]

    def give_back(self, trial: Trial) -> None:
        """
        Note that the worker of *trial* is lost. That worker gets no further trial.

        Raise `WorkersLost`, which names the trial, if it was lost with `MAX_LOST` workers.
        """
        turn, worker = self._held.pop(trial.place)
        self._left.add(worker)
        insort(self._todo, (turn, trial), key=lambda entry: entry[0])
        lost = self._lost_with.setdefault(trial.place, [])
        lost.append(worker)
        if len(lost) >= MAX_LOST:
            name = f" ({trial.task.name})" if trial.task.name else ""
            raise WorkersLost(
                f"{MAX_LOST} workers were lost while they solved problem {trial.number}{name} as"
                f" {trial.arm.name!r}: {', '.join(lost)}; see their logs for why (memory?), or"
                " leave the problem out"
            )


def accept_rate(done: Mapping[Place, Sample], arm: str, number: int) -> float | None:
    """
    Return the accepted share of all drafts of *arm* up to sample *number*.

    None while one of the samples is missing.
    """
    samples = [done.get((earlier, arm)) for earlier in range(number + 1)]
    ledgers = [sample.ledger for sample in samples if sample is not None]
    if len(ledgers) < len(samples):
        return None
    drafts = sum(ledger.drafts for ledger in ledgers)
    return sum(ledger.accepted for ledger in ledgers) / drafts if drafts else 0.0


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
    are not kept. The first failure of an endpoint ends the run, and finished samples are kept.
    Raise `WorkersLost` for a trial that was lost with several workers.
    """
    state = _Run(plan, graders, samples, traces, on_sample)
    # A slot may wait for a worker until all is finished.
    async with supervised(*map(state.fill, slots)):
        await state.finished()


@dataclass
class _Run:
    """The state that the workers of a run share."""

    plan: Plan
    """The plan."""
    graders: Graders
    """Grade the answers."""
    samples: SampleStore
    """Keeps the samples."""
    traces: Path | None
    """The folder for traces; None: they are not kept."""
    on_sample: Callable[[Sample], object]
    """Is called with each sample."""

    def __post_init__(self) -> None:
        done = self.samples.done
        todo = (trial for trial in trials(self.plan) if trial.place not in done)
        self._queue = TrialQueue(todo, lambda trial: self._control_options(trial) is not None)
        self._changed = asyncio.Condition()

    async def finished(self) -> None:
        """Wait until every trial has a sample."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._queue.finished)

    async def fill(self, slot: WorkerSlot) -> None:
        """Keep a worker in *slot*, replacing lost ones, until no trial is left."""
        while not self._queue.finished:
            async with slot() as worker:
                await at_once(self._work(worker) for _ in range(self.plan.concurrency))

    async def _work(self, worker: Worker) -> None:
        while (trial := await self._next(worker.name)) is not None:
            options = self._control_options(trial) or {}
            path = None
            if self.traces is not None:
                path = self.traces / trace_name(trial.number, trial.arm.name)
            try:
                solution = await worker.solve(trial, options, path)
            except WorkerLost:
                self._queue.give_back(trial)
            else:
                sample = await self._graded(trial, options, solution)
                self.samples.add(trial.number, sample)
                self._queue.done(trial)
                self.on_sample(sample)
            async with self._changed:
                self._changed.notify_all()

    async def _next(self, worker: str) -> Trial | None:
        """Wait for a trial for *worker*; None if there will be none."""
        async with self._changed:
            while True:
                trial = self._queue.take(worker)
                if trial is not None or self._queue.finished_for(worker):
                    return trial
                await self._changed.wait()

    def _control_options(self, trial: Trial) -> Mapping[str, Any] | None:
        """
        Return the options of *trial* beyond those of its arm.

        Only a control has any. None: its accept rate is not known yet.
        """
        if not trial.arm.like:
            return {}
        rate = accept_rate(self.samples.done, trial.arm.like, trial.number)
        return None if rate is None else {"p": rate, "seed": trial.seed}

    async def _graded(
        self,
        trial: Trial,
        options: Mapping[str, Any],
        solution: Solution | None,
    ) -> Sample:
        text = solution.text if solution else ""
        grade = await trial.task.gold.grade(text, self.graders)
        return Sample.of(
            solution,
            trial.arm,
            correct=grade == "right",
            graded=grade != "ungraded",
            name=trial.task.name,
            repeat=trial.repeat,
            seed=trial.seed,
            options=options,
        )


def trace_name(number: int, arm: str) -> str:
    """Return the file name of a trace: the sample's number, and letters and digits of *arm*."""
    letters = "".join(sign if sign.isalnum() else "-" for sign in arm).strip("-")
    return f"{number:05}-{letters}.jsonl"
