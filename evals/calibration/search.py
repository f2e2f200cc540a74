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
from stepspec.orchestrator.errors import ConfigurationError
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


@dataclass(frozen=True, slots=True)
class AttemptStart:
    """The start of an attempt on the first *problems*, whose digest this is."""

    problems: int
    digest: str


@dataclass(frozen=True, slots=True)
class AttemptEnd:
    """
    The end of an attempt on the first *problems*, with a promise or without, for these *values*.
    """

    problems: int
    limit: float
    level: float
    values: tuple[float, ...]


_LINE: TypeAdapter[CalibrationRun | AttemptEnd | AttemptStart] = TypeAdapter(
    CalibrationRun | AttemptEnd | AttemptStart
)
SolveAt: TypeAlias = Callable[[int, float | None], Awaitable[CalibrationRun]]
"""
Solves one problem, named by its index, at one value of the threshold (None: the large model alone).
"""


@dataclass(frozen=True, slots=True)
class CalibrationResult:
    """
    The result of a search: the *tested* values in order.

    *attempt* numbers the attempts that share their runs; *limit* and *level* are those of all
    attempts together.
    """

    limit: float
    level: float
    tested: tuple[ThresholdTest, ...]
    attempt: int = 1

    @property
    def loosest(self) -> ThresholdTest | None:
        """The loosest value that holds; None if no promise can be made."""
        return next((test for test in reversed(self.tested) if test.holds), None)

    @property
    def problems_needed(self) -> int | None:
        """
        The problems that another attempt needs for the first value that failed; None if no number
        would do.
        """
        failed = next((test for test in self.tested if not test.holds), None)
        return self.next_test.needed(failed.paired) if failed else None

    @property
    def next_test(self) -> LossTest:
        return LossTest(self.limit, self.level, again=True)


class RunMemory:
    """All runs so far, in memory, by problem and value."""

    def __init__(self) -> None:
        self.done: dict[tuple[int, float | None], CalibrationRun] = {}

    def add(self, run: CalibrationRun) -> None:
        self.done[run.problem, run.value] = run


class RunStore(JsonlStore, RunMemory):
    """All runs and attempts so far, one line each."""

    started: list[AttemptStart]
    ended: list[AttemptEnd]

    def add(self, run: CalibrationRun) -> None:
        """Keep *run*; it is on disk when this returns."""
        super().add(run)
        self.write(asdict(run))

    def start_attempt(self, digests: Sequence[str]) -> None:
        """
        Start an attempt on problems with these *digests*: of no problem, of the first one, and so
        on to all of them.

        Raise `ConfigurationError` if the file holds runs on other problems, or on more.
        """
        start = AttemptStart(len(digests) - 1, digests[-1])
        for earlier in self.started:
            if earlier.problems > start.problems:
                raise ConfigurationError(
                    f"{self.path} holds runs on {earlier.problems:,} problems, and these are "
                    f"{start.problems:,}: take as many or more, {REMEDY}"
                )
            if digests[earlier.problems] != earlier.digest:
                raise ConfigurationError(f"{self.path} holds runs on other problems: {REMEDY}")
        if start not in self.started:
            self.started.append(start)
            self.write(asdict(start))

    def attempt_number(self, end: AttemptEnd) -> int:
        """
        The number of the attempt that ends with *end*, which may have been recorded already,
        whatever its limit.
        """
        return (*self.ended, end).index(end) + 1

    def end_attempt(self, end: AttemptEnd) -> None:
        if end not in self.ended:
            self.ended.append(end)
            self.write(asdict(end))

    def _read(self) -> None:
        self.done, self.started, self.ended = {}, [], []
        for record in self.records(_LINE.validate_json, "trial"):
            match record:
                case CalibrationRun():
                    self.done[record.problem, record.value] = record
                case AttemptStart():
                    self.started.append(record)
                case AttemptEnd():
                    self.ended.append(record)


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
    return CalibrationResult(test.limit, test.level, tuple(tested))
