"""What an evaluation measures: every arm on every problem, and in which order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from stepspec.orchestrator.budget import Budget
from stepspec.orchestrator.endpoints import Sampling

from .experiments.arms import turns
from .grading.answers import Metric
from .sample import Arm, Task, seed
from .store import Place


@dataclass(frozen=True, slots=True)
class Plan:
    """
    What is measured: all *arms* on all *tasks*, each *repeats* times, by the same rules.

    *sampling* without its seed, which every sample has its own of, derived from *seed*; the same for all arms. At most
    *concurrency* runs go on at once, at each worker.
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
