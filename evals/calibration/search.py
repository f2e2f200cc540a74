"""
Search the loosest threshold that keeps a promise, by solving problems.

`risk_bound` decides which thresholds do.
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
    """One problem that was solved at one value of the threshold."""

    problem: int
    """The index of the problem."""
    value: float | None
    """The value; None: the large model alone."""
    right: bool
    """Whether the answer is right."""


_LINE = TypeAdapter(CalibrationRun)
SolveAt: TypeAlias = Callable[[int, float | None], Awaitable[CalibrationRun]]
"""Solves a problem, given by its index, at a value. None: by the large model alone."""


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


class RunStore(JsonlStore):
    """All runs so far, one line each."""

    remedy = (
        "one calibration makes one promise; for a new one, take problems that no calibration has"
        f" used, and {REMEDY}"
    )
    done: dict[tuple[int, float | None], CalibrationRun]
    """The runs by problem and value."""

    def add(self, run: CalibrationRun) -> None:
        """Keep *run*. It is on disk when this returns."""
        self.done[run.problem, run.value] = run
        self.write(asdict(run))

    def _read(self) -> None:
        runs = self.records(_LINE.validate_json, "trial")
        self.done = {(run.problem, run.value): run for run in runs}


def limited(solve: SolveAt, concurrency: int) -> SolveAt:
    """Return *solve* with at most *concurrency* problems at the same time."""
    slots = asyncio.Semaphore(concurrency)

    async def wait_and_solve(problem: int, value: float | None) -> CalibrationRun:
        async with slots:
            return await solve(problem, value)

    return wait_and_solve


async def search(
    solve: SolveAt,
    problems: int,
    threshold: Threshold,
    test: LossTest,
    store: RunStore,
    on_problem: Callable[[float | None], object] = lambda value: None,
) -> CalibrationResult:
    """
    Solve a number of *problems* at the values of a *threshold* and by the large model alone.

    The values are tested in their order, each at the full level, until one fails. *on_problem* is
    called for each solved problem with the value; None: the large model alone.
    """

    async def solve_one(problem: int, value: float | None) -> bool:
        if (problem, value) not in store.done:
            store.add(await solve(problem, value))
        on_problem(value)
        return store.done[problem, value].right

    async def solve_all(value: float | None) -> Sequence[bool]:
        return await at_once(solve_one(problem, value) for problem in range(problems))

    large = await solve_all(None)
    tested: list[ThresholdTest] = []
    for value in threshold.values:
        tested.append(test.at(value, Paired.of(large, await solve_all(value))))
        if not tested[-1].holds:
            break
    return CalibrationResult(test, tuple(tested))
