"""
Run every arm on every problem: problem by problem, on the same servers, so that drift hits all arms alike.

A sample is kept as soon as it is graded; what is kept already is not run again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

from ..api import Solver
from ..orchestrator.budget import Budget
from ..orchestrator.endpoints import Sampling
from .answers import Metric
from .arms import turns
from .grading import Graders
from .samples import Place, Samples
from .trial import Arm, Sample, Task, solve_once

WARM_UP = "What is 1 + 1?"
WARM_UP_TOKENS = 64


@dataclass(frozen=True, slots=True)
class Plan:
    """
    What is measured: all *arms* on all *tasks*, each *repeats* times, by the same rules.

    *sampling* without its seed, which every sample has its own of, derived from *seed*; the same for all arms. At most
    *concurrency* runs go on at once.
    """

    tasks: tuple[Task, ...]
    arms: tuple[Arm, ...]
    metric: Metric
    sampling: Sampling
    budget: Budget
    repeats: int = 1
    seed: int = 0
    concurrency: int = 1


@dataclass(frozen=True, slots=True)
class Trial:
    """One sample to be taken; *number* counts the samples of each arm."""

    number: int
    repeat: int
    seed: int
    task: Task
    arm: Arm

    @property
    def place(self) -> Place:
        return self.number, self.arm.name


def trials(plan: Plan) -> Iterator[Trial]:
    """Every trial, in the order in which they are begun; controls come after those whose accept rate they share."""
    free, controls = [arm for arm in plan.arms if not arm.like], [arm for arm in plan.arms if arm.like]
    for index, task in enumerate(plan.tasks):
        for repeat in range(plan.repeats):
            number = index * plan.repeats + repeat
            for arm in (*turns(free, number), *controls):
                yield Trial(number, repeat, seed(plan.seed, index, repeat), task, arm)


def seed(base: int, index: int, repeat: int) -> int:
    """Derive the seed of a sample: the same for all arms, and different for every problem and repeat."""
    return int.from_bytes(blake2b(f"{base} {index} {repeat}".encode(), digest_size=4).digest()) >> 1


async def warm_up(solver: Solver, plan: Plan) -> None:
    """Let every arm solve something short, so that no sample pays for what is done only once."""
    for arm in plan.arms:
        await solve_once(solver, arm, WARM_UP, sampling=plan.sampling, budget=Budget(WARM_UP_TOKENS))


async def run(
    solver: Solver,
    plan: Plan,
    graders: Graders,
    samples: Samples,
    *,
    traces: Path | None = None,
    on_sample: Callable[[Sample], object] = lambda sample: None,
) -> None:
    """
    Take all samples of *plan* that *samples* does not have yet; *traces* is the folder for their traces, if any.

    The first failure of an endpoint ends the run; what was measured is kept.
    """
    going = _Going(solver, plan, graders, samples, traces, on_sample)
    todo = (trial for trial in trials(plan) if trial.place not in samples.done)
    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(plan.concurrency):
                group.create_task(going.work(todo))
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from None


class _Going:
    """A run that goes on: what its workers share."""

    def __init__(
        self,
        solver: Solver,
        plan: Plan,
        graders: Graders,
        samples: Samples,
        traces: Path | None,
        on_sample: Callable[[Sample], object],
    ) -> None:
        self._solver, self._plan, self._graders, self._samples = solver, plan, graders, samples
        self._traces, self._on_sample = traces, on_sample
        self._grown = asyncio.Condition()

    async def work(self, todo: Iterator[Trial]) -> None:
        for trial in todo:  # All workers draw from the same one.
            sample = await self._take(trial)
            self._samples.add(trial.number, sample)
            self._on_sample(sample)
            async with self._grown:
                self._grown.notify_all()

    async def _take(self, trial: Trial) -> Sample:
        arm, plan = trial.arm, self._plan
        drawn = {"p": await self._rate(arm.like, trial.number), "seed": trial.seed} if arm.like else {}
        solved = await solve_once(
            self._solver,
            arm,
            trial.task.problem,
            options={**arm.options, **drawn},
            sampling=plan.sampling.model_copy(update={"seed": trial.seed}),
            budget=plan.budget,
            trace_to=self._traces / trace_name(trial.number, arm.name) if self._traces else None,
        )
        text = solved.solution.text if solved.solution else ""
        grade = await self._graders.grade(text, trial.task.answer, plan.metric)
        return solved.sample(
            arm,
            correct=grade == "right",
            graded=grade != "ungraded",
            name=trial.task.name,
            repeat=trial.repeat,
            seed=trial.seed,
            options=drawn,
        )

    async def _rate(self, name: str, number: int) -> float:
        """The accept rate of arm *name* over all samples up to *number*, which were all begun before."""
        places = [(at, name) for at in range(number + 1)]
        async with self._grown:
            await self._grown.wait_for(lambda: all(place in self._samples.done for place in places))
        return accept_rate([self._samples.done[place] for place in places])


def accept_rate(samples: Sequence[Sample]) -> float:
    """Accepted drafts over all drafts of *samples*; 0 where there were none."""
    drafts = sum(sample.ledger.drafts for sample in samples)
    return sum(sample.ledger.accepted for sample in samples) / drafts if drafts else 0.0


def trace_name(number: int, arm: str) -> str:
    """The file of a sample's trace: its number, and the *arm* in letters that any file system takes."""
    letters = "".join(sign if sign.isalnum() else "-" for sign in arm).strip("-")
    return f"{number:05}-{letters}.jsonl"


def identity(plan: Plan) -> Mapping[str, Any]:
    """What must be the same for samples to belong together, as JSON; more problems may be added at the end."""
    return {
        "arms": [_spelt(arm) for arm in plan.arms],
        "metric": plan.metric,
        "sampling": plan.sampling.model_dump(exclude={"seed"}),
        "budget": {name: getattr(plan.budget, name) for name in ("tokens", "steps", "seconds", "answer")},
        "repeats": plan.repeats,
        "seed": plan.seed,
        "concurrency": plan.concurrency,
    }


def _spelt(arm: Arm) -> Mapping[str, Any]:
    return {name: getattr(arm, name) for name in Arm.__dataclass_fields__}
