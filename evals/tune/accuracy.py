"""Answers of a method and of the large model alone to the same problems."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count

from stepspec.api import Solver
from stepspec.orchestrator.concurrency import at_once
from stepspec.orchestrator.errors import EndpointUnreachable, StepspecError

from ..arms import PLAIN
from ..calibration.risk_bound import LossTest, Paired
from ..grading.graders import Graders
from ..results import difference
from ..sample import Arm, Task, derive_seed, sample_once
from .paces import at_most

PROMISED_LOSS = 0.01  # of the problems: the promise that `stepspec calibrate` is asked for
PROMISED_LEVEL = 0.05


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Graded answers of a method and of the large model alone to the same problems."""

    right: int
    """Right answers of the large model as one ordinary request."""
    paired: Paired
    """How many problems both answered in time, and how many only one of them solved."""

    @property
    def sentence(self) -> str:
        """Say what was measured, and what a promise needs."""
        paired = self.paired
        if not paired.n:
            return "no problem was answered in time; give more --minutes."
        points = difference(paired.n, paired.gained, paired.lost).points
        text = (
            f"{self.right + paired.gained - paired.lost} of {paired.n} right, the large model alone"
            f" {self.right} ({points:+z.0f} points)."
        )
        needed = LossTest(PROMISED_LOSS, PROMISED_LEVEL).needed(paired)
        if needed is None:
            return f"{text} A promise of {PROMISED_LOSS:.0%} does not hold at this rate."
        return f"{text} `stepspec calibrate` needs {needed} for a promise of {PROMISED_LOSS:.0%}."


async def compare_answers(
    solver: Solver,
    arm: Arm,
    tasks: Sequence[Task],
    users: int,
    seconds: float,
) -> Accuracy:
    """
    Solve *tasks* with *arm* and with the large model alone, *users* at the same time.

    After so many *seconds* the measurement ends. Only problems that both have answered by then
    count. Raise `EndpointUnreachable` if a server is gone. A problem that fails for another reason
    does not count.
    """
    outcomes: list[tuple[bool, bool]] = []
    gate = asyncio.Semaphore(users)
    graders = Graders()

    async def both(number: int, task: Task) -> None:
        async with gate:
            try:
                seed = derive_seed(0, number, 0)
                alone = await sample_once(solver, PLAIN, task, seed, graders)
                method = await sample_once(solver, arm, task, seed, graders)
                outcomes.append((alone.correct, method.correct))
            except EndpointUnreachable:
                raise
            except StepspecError:
                pass

    async with at_most(seconds):
        await at_once(map(both, count(), tasks))
    alone = [large for large, _ in outcomes]
    return Accuracy(sum(alone), Paired.of(alone, [method for _, method in outcomes]))
