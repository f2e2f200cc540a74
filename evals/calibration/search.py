"""
Search the loosest threshold that keeps a promise, by solving problems.

`risk_bound` decides which thresholds do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from stepspec.api import Solver
from stepspec.policies import Threshold

from ..grading.graders import Graders
from ..plan import Plan
from ..runner import local_worker, run
from ..sample import Arm, Sample
from ..store import REMEDY, SampleStore
from .risk_bound import LossTest, Paired, ThresholdTest


@dataclass(frozen=True, slots=True)
class CalibrationResult:
    """The result of a search."""

    test: LossTest
    """The test that every value had to pass."""
    tested: tuple[ThresholdTest, ...]
    """The tested values, the strictest first."""

    @property
    def loosest(self) -> ThresholdTest | None:
        """The loosest value that holds; None if no promise can be made."""
        return next((test for test in reversed(self.tested) if test.holds), None)

    @property
    def problems_needed(self) -> int | None:
        """
        The number of problems that the first value that failed needs at its observed rates.

        None if no number would do.
        """
        failed = next((test for test in self.tested if not test.holds), None)
        return self.test.needed(failed.paired) if failed else None


class TrialStore(SampleStore):
    """The samples of one calibration, one line each."""

    remedy = (
        "one calibration makes one promise; for a new one, take problems that no calibration has"
        f" used, and {REMEDY}"
    )


async def search(
    solver: Solver,
    plan: Plan,
    threshold: Threshold,
    test: LossTest,
    samples: SampleStore,
    on_sample: Callable[[Sample], object] = lambda sample: None,
) -> CalibrationResult:
    """
    Solve the problems of *plan*. Its arms are the large model alone and the values of *threshold*.

    The values are tested in their order, each at the full level, until one fails. *samples* has
    those of an earlier search. *on_sample* is called for each new sample. A sample without an
    answer that could be graded is not right.
    """
    graders = Graders()

    async def solve_all(arm: Arm) -> list[bool]:
        alone = replace(plan, arms=(arm,))
        slot = partial(local_worker, solver, alone)
        await run([slot], alone, graders, samples, on_sample=on_sample)
        return [samples.done[number, arm.name].correct for number in range(len(plan.tasks))]

    large, *methods = plan.arms
    right = await solve_all(large)
    tested: list[ThresholdTest] = []
    for value, arm in zip(threshold.values, methods, strict=True):
        tested.append(test.at(value, Paired.of(right, await solve_all(arm))))
        if not tested[-1].holds:
            break
    return CalibrationResult(test, tuple(tested))
