"""The command ``stepspec demo``, on the miniature pair."""

from __future__ import annotations

from collections.abc import Callable

from rich.console import Console
from rich.text import Text

from stepspec.orchestrator.events import Observer

from ..arms import PLAIN, SHIPPED, SMALL
from ..grading.graders import Graders
from ..plan import turns
from ..results import Result, compare_arms
from ..sample import Arm, Sample, derive_seed, sample_once
from ..store import Place
from . import Profile
from .solving_pair import fresh_tasks, pair_solver

SMALL_PRINT = (
    "The miniature pair: two models of 0.1 and 1.3 million parameters, trained on arithmetic,"
    " served by real vLLM on this CPU; the profile {profile!r} sets the cost of a forward pass."
    " Plain: the large model as one ordinary request. docs/evals.md explains each column."
)
"""Explains the tables of `demo`."""


ARMS = (PLAIN, SMALL, Arm.of(SHIPPED.name, "specreason", auto=True))


async def demo(
    problems: int,
    seed: int,
    profile: Profile,
    console: Console,
    printer: Callable[[Console], Observer],
) -> list[Result]:
    """
    Start the pair, solve *problems* with every arm, and return the results.

    SpecReason runs with `auto`, as by default. The observer that *printer* makes shows each of its
    runs on *console*.
    """
    graders = Graders()
    async with pair_solver(profile, console) as solver:
        for arm in ARMS:  # Warm up.
            await sample_once(solver, arm, fresh_tasks(1, seed + 1)[0], 0, graders)
        samples: dict[Place, Sample] = {}
        for number, task in enumerate(fresh_tasks(problems, seed)):
            console.print()
            console.print(Text(task.problem, "bold"), soft_wrap=True)
            for arm in turns(ARMS, number):
                is_shown = arm.name == SHIPPED.name
                observe: Observer = printer(console) if is_shown else lambda event: None
                sample = await sample_once(
                    solver,
                    arm,
                    task,
                    derive_seed(0, number, 0),
                    graders,
                    observe,
                )
                mark = ("right", "green") if sample.correct else ("wrong", "red")
                seconds = (f"{sample.seconds:6.2f} s  {arm.name}: ", "dim")
                console.print(Text.assemble(seconds, mark))
                samples[number, arm.name] = sample
    results = compare_arms(samples, [arm.name for arm in ARMS])
    return [result for result in results if result.kind != "bound"]
