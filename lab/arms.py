"""Arms that only experiments compare, and how they take turns."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import replace

from stepspec.api import Solver
from stepspec.evals.grading.graders import Graders
from stepspec.evals.plan import turns
from stepspec.evals.sample import Arm, Sample, Task, derive_seed, graded, solve_once
from stepspec.orchestrator.endpoints import GREEDY, Sampling

SEQUENTIAL = Arm.of("SpecReason, sequential", "specreason", ahead=0)
BILD = Arm.of("BiLD, steps", "bild", {"scale": "step"})
READING = Arm.of("reading", "reading")
REFLECTIVE = Arm.of("reflective", "reflective")
THINKING = Arm.of("SpecReason, thinking only", "specreason", ending="small", answer="large")
"""
The part for which the miniature judge was trained, without answers and without steps that lack
their ends.
"""
THINKING_SEQUENTIAL = replace(
    THINKING,
    name=f"{THINKING.name}, sequential",
    run=THINKING.run.with_overrides({"ahead": 0}),
)

GRADERS = Graders()
"""Compares texts. It is never entered: algebra would need processes."""
SEED = 2026  # of the problems and samples; training never uses these problems, with any seed
GREEDILY: Mapping[str, Sampling] = {}


async def measure(
    solver: Solver,
    arms: Sequence[Arm],
    tasks: Sequence[Task],
    *,
    on_sample: Callable[[int, Sample], object] = lambda number, sample: None,
    done: Container[tuple[int, str]] = (),
    samplings: Mapping[str, Sampling] = GREEDILY,
) -> None:
    """
    Solve every task with every arm, in turns, so that drift of the machine is alike for all arms.

    Samples that are *done* are not taken again. The seed of a sample follows from the number of its
    task. It is the same for all arms. An arm without one of the *samplings* is greedy.
    """
    for number, task in enumerate(tasks):
        seed = derive_seed(SEED, number, 0)
        for arm in turns(arms, number):
            if (number, arm.name) in done:
                continue
            sampling = samplings.get(arm.name, GREEDY).with_seed(seed)
            solution = await solve_once(solver, arm, task.problem, sampling=sampling)
            on_sample(number, await graded(solution, arm, task, seed, GRADERS))
