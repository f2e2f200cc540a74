"""The plan of an evaluation: every arm on every problem, and the order of the trials."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from stepspec import settings as configuration
from stepspec.orchestrator.budget import Budget
from stepspec.orchestrator.endpoints import GREEDY, Sampling
from stepspec.orchestrator.errors import ConfigurationError
from stepspec.orchestrator.run_options import ARM_OPTIONS
from stepspec.run_parts import check_policies
from stepspec.settings import Settings

from .plain import PLAIN
from .sample import Arm, Task, derive_seed
from .store import Place


@dataclass(frozen=True, slots=True)
class Plan:
    """
    All arms solve all tasks with the same sampling and budget.

    The arms take turns on every problem.
    """

    tasks: tuple[Task, ...]
    """The problems."""
    arms: tuple[Arm, ...]
    """The arms. All figures compare with the first one."""
    sampling: Sampling
    """The sampling. Its seed is not used: every sample has its own."""
    budget: Budget
    """The budget of each run."""
    repeats: int = 1
    """Samples of each problem by each arm."""
    seed: int = 0
    """The seed that those of the samples are derived from, equal for all arms."""
    concurrency: int = 1
    """The most runs of a worker at the same time."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One sample to be taken."""

    number: int
    """The number of the sample among those of the arm."""
    seed: int
    """The sampling seed."""
    task: Task
    """The problem."""
    arm: Arm
    """The arm."""

    @property
    def place(self) -> Place:
        return self.number, self.arm.name


def trials(plan: Plan) -> Iterator[Trial]:
    """Every trial in starting order."""
    for index, task in enumerate(plan.tasks):
        for repeat in range(plan.repeats):
            number = index * plan.repeats + repeat
            for arm in turns(plan.arms, number):
                yield Trial(
                    number,
                    derive_seed(plan.seed, index, repeat),
                    task,
                    arm,
                )


def identity(plan: Plan) -> Mapping[str, Any]:
    """
    The values that have to agree for samples to belong to one run, as JSON; problems may be added
    at the end.
    """
    return {
        "arms": [arm.record() for arm in plan.arms],
        "sampling": plan.sampling.model_dump(exclude={"seed"}),
        "budget": asdict(plan.budget),
        "repeats": plan.repeats,
        "seed": plan.seed,
        "concurrency": plan.concurrency,
    }


def turns(arms: Sequence[Arm], number: int) -> Sequence[Arm]:
    """
    Return *arms* in the order in which they solve problem *number*: each arm is first equally
    often.
    """
    turn = number % len(arms)
    return (*arms[turn:], *arms[:turn])


def testbed_settings() -> Settings:
    """The settings of the solver over the miniature pair, without its endpoints."""
    return configuration.load(sampling=GREEDY)


def configured_arm(settings: Settings, options: Mapping[str, Any] | None = None) -> Arm:
    """
    Return the arm that solves as a solver with these *settings* does; *options* replace those of
    its method.
    """
    overrides: Any = {name: getattr(settings, name) for name in ARM_OPTIONS}
    choices = {**settings.options, **(options or {})}
    return Arm.of(settings.policy, settings.policy, choices, **overrides)


def check_arm(arm: Arm, settings: Settings) -> None:
    """Raise `ConfigurationError` if no solver with these *settings* could run *arm*."""
    if arm.policy == PLAIN:
        return
    try:
        check_policies(arm.resolve(settings))
    except ConfigurationError as exc:
        raise ConfigurationError(f"{arm.name!r}: {exc}") from exc
