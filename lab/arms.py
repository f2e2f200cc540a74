"""Arms that only experiments compare, and how they take turns."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import replace

from stepspec.api import Solver
from stepspec.evals.grading.graders import Graders
from stepspec.evals.plan import turns
from stepspec.evals.sample import Arm, Sample, Task, derive_seed, sample_once

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


async def measure(
    solver: Solver,
    arms: Sequence[Arm],
    tasks: Sequence[Task],
    *,
    on_sample: Callable[[int, Sample], object] = lambda number, sample: None,
    done: Container[tuple[int, str]] = (),
    base: int = 0,
) -> None:
    """
    Solve every task with every arm, in turns, so that drift of the machine is alike for all arms.

    Samples that are *done* are not taken again. The seed of a sample follows from *base* and the
    number of its task. It is the same for all arms.
    """
    for number, task in enumerate(tasks):
        seed = derive_seed(base, number, 0)
        for arm in turns(arms, number):
            if (number, arm.name) in done:
                continue
            sample = await sample_once(solver, arm, task, seed, GRADERS)
            on_sample(number, sample)
