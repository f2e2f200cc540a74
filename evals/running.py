"""
Run every arm on every problem: problem by problem, on the same servers, so that drift hits all arms alike.

A sample is kept as soon as it is graded; what is kept already is not run again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from .dealing import Dealer, Rates
from .grading import Graders
from .plan import Plan, Trial, trials
from .samples import Samples
from .taught import Taught
from .trial import Sample, Solved
from .workers import Post, Worker, WorkerLost


async def run(
    posts: Sequence[Post],
    plan: Plan,
    graders: Graders,
    samples: Samples,
    *,
    taught: Taught,
    traces: Path | None = None,
    on_sample: Callable[[Sample], object] = lambda sample: None,
) -> None:
    """
    Take all samples of *plan* that *samples* does not have yet; *traces* is the folder for their traces, if any.

    *taught* is what the arms that adapt have learnt from those, and learns from what is taken. At every one of *posts*
    there is one worker at a time. The first failure of an endpoint ends the run; what was measured is kept. Raise
    `WorkersLost` for a trial that costs several workers.
    """
    going = _Going(plan, graders, samples, taught, traces, on_sample)
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
        samples: Samples,
        taught: Taught,
        traces: Path | None,
        on_sample: Callable[[Sample], object],
    ) -> None:
        self._plan, self._graders, self._samples, self._taught = plan, graders, samples, taught
        self._traces, self._on_sample = traces, on_sample
        self._rates = Rates(samples.done)
        todo = (trial for trial in trials(plan) if trial.place not in samples.done)
        self._dealer = Dealer(todo, lambda trial: taught.ready(trial.place) and self._drawn(trial) is not None)
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
                solved = await worker.solve(replace(trial, given=self._taught.given(trial.place)), drawn, trace)
            except WorkerLost:
                self._dealer.give_back(trial)
            else:
                sample = await self._graded(trial, drawn, solved)
                self._samples.add(trial.number, sample)
                self._taught.learn(trial.number, sample)
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

    async def _graded(self, trial: Trial, drawn: Mapping[str, Any], solved: Solved) -> Sample:
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
