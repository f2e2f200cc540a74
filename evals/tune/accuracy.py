"""Answers of a method and of the large model alone to the same problems."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count

from stepspec.api import Solver
from stepspec.orchestrator.concurrency import at_once
from stepspec.orchestrator.errors import EndpointUnreachable, StepspecError

from ..arms import PLAIN
from ..calibration.risk_bound import LossTest, Paired
from ..grading.graders import Graders
from ..results import difference
from ..sample import Arm, Task, derive_seed, solve_once

PROMISED_LOSS = 0.01  # of the problems: the promise that `stepspec calibrate` is asked for
PROMISED_LEVEL = 0.05


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Graded answers to the same problems."""

    method: int
    """Right answers of the method."""
    large: int
    """Right answers of the large model as one ordinary request."""
    lost: int
    """Problems that only the large model solved."""
    gained: int
    """Problems that only the method solved."""
    problems: int
    """Problems that both answered in time."""

    @property
    def sentence(self) -> str:
        """Say what was measured, and what a promise needs."""
        if not self.problems:
            return "no problem was answered in time; give more --minutes."
        paired = Paired(self.problems, self.lost, self.gained)
        points = difference(self.problems, self.gained, self.lost).points
        text = (
            f"{self.method} of {self.problems} right, the large model alone {self.large}"
            f" ({points:+.0f} points)."
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
    step: Callable[[], object] = lambda: None,
) -> Accuracy:
    """
    Solve *tasks* with *arm* and with the large model alone, *users* at the same time.

    After so many *seconds* those count that both have answered. *step* is called after each. Raise
    `EndpointUnreachable` if a server is gone; a problem that fails otherwise does not count.
    """
    outcomes: list[tuple[bool, bool]] = []
    gate = asyncio.Semaphore(users)
    async with Graders() as graders:

        async def right(which: Arm, task: Task, number: int) -> bool:
            sampling = solver.settings.run.sampling.with_seed(derive_seed(0, number, 0))
            solved = await solve_once(solver, which, task.problem, sampling=sampling)
            text = solved.solution.text if solved.solution else ""
            return bool(text) and await task.gold.grade(text, graders) == "right"

        async def both(number: int, task: Task) -> None:
            async with gate:
                try:
                    alone = await right(PLAIN, task, number)
                    outcomes.append((alone, await right(arm, task, number)))
                except EndpointUnreachable:
                    raise
                except StepspecError:
                    pass
            step()

        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await at_once(map(both, count(), tasks))
    return Accuracy(
        method=sum(ours for _, ours in outcomes),
        large=sum(alone for alone, _ in outcomes),
        lost=sum(alone and not ours for alone, ours in outcomes),
        gained=sum(ours and not alone for alone, ours in outcomes),
        problems=len(outcomes),
    )
