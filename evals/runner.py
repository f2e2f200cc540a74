"""Who takes which trial, and what becomes of it when a worker dies. Decides only: no I/O, no waiting."""

from __future__ import annotations

import asyncio
from bisect import insort
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeAlias, cast

from stepspec.api import Solver
from stepspec.orchestrator.budget import Budget
from stepspec.orchestrator.errors import WorkersLost
from stepspec.settings import Settings

from .grading.graders import Graders
from .plan import Plan, Trial, trials
from .sample import Sample, SolvedTask, solve_once
from .store import Place, SampleStore

LIVES = 3  # workers that may be lost with the same trial
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


class TrialQueue:
    """
    Deals trials out in their order, each to one worker at a time.

    One that is not *ready* is left aside until it is, and later ones are dealt meanwhile. What a lost worker held goes
    to the others, before anything new.
    """

    def __init__(self, todo: Iterable[Trial], ready: Callable[[Trial], bool] = lambda trial: True) -> None:
        self._ready = ready
        self._new = deque(enumerate(todo))
        self._aside: list[tuple[int, Trial]] = []  # in order
        self._held: dict[Place, tuple[int, str]] = {}
        self._lost_with: dict[Place, list[str]] = {}
        self._left: set[str] = set()

    @property
    def finished(self) -> bool:
        """Whether there is a sample of every trial."""
        return not (self._new or self._aside or self._held)

    def over(self, worker: str) -> bool:
        """Whether nothing will ever be dealt to *worker* again."""
        return worker in self._left or self.finished

    def deal(self, worker: str) -> Trial | None:
        """The next trial for *worker*; None if there is none now."""
        if worker in self._left:
            return None
        for at, (turn, trial) in enumerate(self._aside):
            if self._ready(trial):
                del self._aside[at]
                return self._hand(turn, trial, worker)
        while self._new:
            turn, trial = self._new.popleft()
            if self._ready(trial):
                return self._hand(turn, trial, worker)
            self._aside.append((turn, trial))
        return None

    def _hand(self, turn: int, trial: Trial, worker: str) -> Trial:
        self._held[trial.place] = turn, worker
        return trial

    def done(self, trial: Trial) -> None:
        """Note that there is a sample of *trial*."""
        del self._held[trial.place]

    def give_back(self, trial: Trial) -> None:
        """
        Note that *trial* was lost together with the worker who held it, who is dealt nothing any more.

        Raise `WorkersLost`, which names the trial, once it has cost too many workers.
        """
        turn, worker = self._held.pop(trial.place)
        self._left.add(worker)
        insort(self._aside, (turn, trial), key=lambda each: each[0])
        lost = self._lost_with.setdefault(trial.place, [])
        lost.append(worker)
        if len(lost) >= LIVES:
            name = f" ({trial.task.name})" if trial.task.name else ""
            raise WorkersLost(
                f"{LIVES} workers were lost while they solved problem {trial.number}{name} as {trial.arm.name!r}: "
                f"{', '.join(lost)}; see their logs for why (memory?), or leave the problem out"
            )


class Rates:
    """Accept rates of arms, from the samples that are *done* by now."""

    def __init__(self, done: Mapping[Place, Sample]) -> None:
        self._done = done
        self._sums: dict[str, list[tuple[int, int]]] = {}  # accepted and all drafts, over the first samples

    def over(self, arm: str, number: int) -> float | None:
        """Accepted drafts of *arm* over all its drafts, up to sample *number*; None while one of these is missing."""
        sums = self._sums.setdefault(arm, [])
        while (sample := self._done.get((len(sums), arm))) is not None:
            accepted, drafts = sums[-1] if sums else (0, 0)
            sums.append((accepted + sample.ledger.accepted, drafts + sample.ledger.drafts))
        if number >= len(sums):
            return None
        accepted, drafts = sums[number]
        return accepted / drafts if drafts else 0.0


async def run(
    posts: Sequence[Post],
    plan: Plan,
    graders: Graders,
    samples: SampleStore,
    *,
    traces: Path | None = None,
    on_sample: Callable[[Sample], object] = lambda sample: None,
) -> None:
    """
    Take all samples of *plan* that *samples* does not have yet; *traces* is the folder for their traces, if any.

    At every one of *posts* there is one worker at a time. The first failure of an endpoint ends the run; what was
    measured is kept. Raise `WorkersLost` for a trial that costs several workers.
    """
    going = _Going(plan, graders, samples, traces, on_sample)
    try:
        async with asyncio.TaskGroup() as group:
            filling = [group.create_task(going.fill(post)) for post in posts]
            await going.end()
            for task in filling:
                task.cancel()  # Some may still be waiting for a worker.
    except ExceptionGroup as failed:
        raise _first(failed) from None


def _first(failed: ExceptionGroup[Exception]) -> Exception:
    first = failed.exceptions[0]
    return _first(cast("ExceptionGroup[Exception]", first)) if isinstance(first, ExceptionGroup) else first


class _Going:
    """A run that goes on: what its workers share."""

    def __init__(
        self,
        plan: Plan,
        graders: Graders,
        samples: SampleStore,
        traces: Path | None,
        on_sample: Callable[[Sample], object],
    ) -> None:
        self._plan, self._graders, self._samples = plan, graders, samples
        self._traces, self._on_sample = traces, on_sample
        self._rates = Rates(samples.done)
        todo = (trial for trial in trials(plan) if trial.place not in samples.done)
        self._dealer = TrialQueue(todo, lambda trial: self._drawn(trial) is not None)
        self._changed = asyncio.Condition()

    async def end(self) -> None:
        """Wait until every sample is taken."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._dealer.finished)

    async def fill(self, post: Post) -> None:
        """Let one worker after the other work at *post*, until nothing is left to do."""
        while not self._dealer.finished:
            async with post() as worker, asyncio.TaskGroup() as group:
                for _ in range(self._plan.concurrency):
                    group.create_task(self._work(worker))

    async def _work(self, worker: Worker) -> None:
        while (trial := await self._next(worker.name)) is not None:
            drawn = self._drawn(trial) or {}
            trace = self._traces / trace_name(trial.number, trial.arm.name) if self._traces else None
            try:
                solved = await worker.solve(trial, drawn, trace)
            except WorkerLost:
                self._dealer.give_back(trial)
            else:
                sample = await self._graded(trial, drawn, solved)
                self._samples.add(trial.number, sample)
                self._dealer.done(trial)
                self._on_sample(sample)
            async with self._changed:
                self._changed.notify_all()

    async def _next(self, worker: str) -> Trial | None:
        """Wait for a trial; None if there will be none for *worker*."""
        async with self._changed:
            while (trial := self._dealer.deal(worker)) is None and not self._dealer.over(worker):
                await self._changed.wait()
            return trial

    def _drawn(self, trial: Trial) -> Mapping[str, Any] | None:
        """The options of a control, which are none of its arm's; None as long as the rate is not known."""
        if not trial.arm.like:
            return {}
        rate = self._rates.over(trial.arm.like, trial.number)
        return None if rate is None else {"p": rate, "seed": trial.seed}

    async def _graded(self, trial: Trial, drawn: Mapping[str, Any], solved: SolvedTask) -> Sample:
        text = solved.solution.text if solved.solution else ""
        grade = await self._graders.grade(text, trial.task.answer, self._plan.metric)
        return solved.sample(
            trial.arm,
            correct=grade == "right",
            graded=grade != "ungraded",
            name=trial.task.name,
            repeat=trial.repeat,
            seed=trial.seed,
            options=drawn,
        )


def trace_name(number: int, arm: str) -> str:
    """The file of a sample's trace: its number, and the *arm* in letters that any file system takes."""
    letters = "".join(sign if sign.isalnum() else "-" for sign in arm).strip("-")
    return f"{number:05}-{letters}.jsonl"
