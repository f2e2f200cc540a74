"""
Search the loosest threshold that keeps a promise, by solving problems; `risk_bound` decides which
thresholds do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TypeAlias

from pydantic import TypeAdapter

from stepspec.orchestrator.concurrency import at_once
from stepspec.policies import Threshold

from ..store import REMEDY, JsonlStore
from .risk_bound import LossTest, Paired, ThresholdTest


@dataclass(frozen=True, slots=True)
class CalibrationRun:
    """
    Whether one problem was solved *right* at one value of the threshold (None: by the large model
    alone).
    """

    problem: int
    value: float | None
    right: bool


_LINE = TypeAdapter(CalibrationRun)
SolveAt: TypeAlias = Callable[[int, float | None], Awaitable[CalibrationRun]]
"""
Solves one problem, named by its index, at one value of the threshold (None: the large model alone).
"""


@dataclass(frozen=True, slots=True)
class CalibrationResult:
    """
    The result of a search.
    """

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
        The problems that the first value that failed needs at its observed rates; None if no number
        would do.
        """
        failed = next((test for test in self.tested if not test.holds), None)
        return self.test.needed(failed.paired) if failed else None


class RunMemory:
    """All runs so far, in memory, by problem and value."""

    def __init__(self) -> None:
        self.done: dict[tuple[int, float | None], CalibrationRun] = {}

    def add(self, run: CalibrationRun) -> None:
        self.done[run.problem, run.value] = run


class RunStore(JsonlStore, RunMemory):
    """All runs so far, one line each."""

    remedy = (
        "one calibration makes one promise; for a new one, take problems that no calibration has"
        f" used, and {REMEDY}"
    )

    def add(self, run: CalibrationRun) -> None:
        """Keep *run*; it is on disk when this returns."""
        super().add(run)
        self.write(asdict(run))

    def _read(self) -> None:
        runs = self.records(_LINE.validate_json, "trial")
        self.done = {(run.problem, run.value): run for run in runs}


async def search(
    solve: SolveAt, problems: int, threshold: Threshold, test: LossTest, store: RunMemory, concurrency: int = 4,
    on_problem: Callable[[float | None], object] = lambda value: None,
) -> CalibrationResult:  # fmt: skip
    """
    Solve *problems* at the values of a *threshold*, so many at the same time, and compare with the
    large model alone.

    The values are tested in their order, each at the full level, until one fails. *on_problem* is
    called with the value (None: the large model alone) for each solved problem.
    """
    slots = asyncio.Semaphore(concurrency)

    async def solve_one(problem: int, value: float | None) -> bool:
        if (problem, value) not in store.done:
            async with slots:
                store.add(await solve(problem, value))
        on_problem(value)
        return store.done[problem, value].right

    async def solve_all(value: float | None) -> Sequence[bool]:
        return await at_once(solve_one(problem, value) for problem in range(problems))

    large, tested = await solve_all(None), list[ThresholdTest]()
    for value in threshold.values:
        tested.append(test.at(value, Paired.of(large, await solve_all(value))))
        if not tested[-1].holds:
            break
    return CalibrationResult(test, tuple(tested))
