"""Search the loosest threshold that keeps a promise, by solving problems; `risk_bound` decides which thresholds do."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any, Self, TypeAlias

from pydantic import TypeAdapter

from stepspec.orchestrator.errors import ConfigurationError
from stepspec.policies import Threshold

from ..store import JsonlStore
from .risk_bound import FixedSequence, LossTest, Paired, ThresholdTest, loosest_holding

REMEDY = "choose another file with --work, or begin anew with --fresh"
REPEATED = 10  # reusable runs that are run all the same, at every value: a difference in a tenth of all soon shows


@dataclass(frozen=True, slots=True)
class Decision:
    """One verdict that decided a run's course: its *score* (None: no score), and a digest of the chain and draft."""

    score: float | None
    chain: str


@dataclass(frozen=True, slots=True)
class CalibrationRun:
    """
    The run of one problem at one value of the threshold (None: the large model alone).

    *decisions* are the verdicts on steps that were committed or repaired, in the order of the steps. *text* is a digest
    of everything that was written.
    """

    problem: int
    value: float | None
    right: bool
    decisions: tuple[Decision, ...] = ()
    text: str = ""

    def first_change(self, value: float) -> int | None:
        """The index of the first decision that *value* would have changed; None if it would have changed none."""
        if self.value is None:
            raise ValueError("the large model alone decides nothing")
        for index, decision in enumerate(self.decisions):
            score = decision.score
            if score is not None and (score >= value) != (score >= self.value):
                return index
        return None


class _RunDiffers(Exception):
    """The *run* differs from an earlier run of its problem that it should have repeated."""

    def __init__(self, run: CalibrationRun) -> None:
        self.run = run


@dataclass(frozen=True, slots=True)
class AttemptStart:
    """The start of an attempt on the first *problems*, whose digest this is."""

    problems: int
    digest: str


@dataclass(frozen=True, slots=True)
class AttemptEnd:
    """The end of an attempt on the first *problems*, with a promise or without, for these *values*."""

    problems: int
    limit: float
    level: float
    values: tuple[float, ...]


_LINE: TypeAdapter[CalibrationRun | AttemptEnd | AttemptStart] = TypeAdapter(CalibrationRun | AttemptEnd | AttemptStart)
SolveAt: TypeAlias = Callable[[int, float | None], Awaitable[CalibrationRun]]
"""Solves one problem, named by its index, at one value of the threshold (None: the large model alone)."""


def repeats(earlier: CalibrationRun, later: CalibrationRun, values: Sequence[float]) -> bool:
    """
    Whether *later*, a run of the same problem at another value, repeats *earlier* as far as it should.

    Both have to agree up to the first decision that their values make differently; if there is none, to the end. Two
    scores agree if none of *values* lies between them.
    """
    if later.value is None:
        raise ValueError("the large model alone is run once")
    rising = sorted(values)

    def comparable(decisions: Sequence[Decision]) -> list[tuple[str, int]]:
        return [(d.chain, -1 if d.score is None else bisect_right(rising, d.score)) for d in decisions]

    change = earlier.first_change(later.value)
    if change is None:
        same_end = (earlier.right, earlier.text) == (later.right, later.text)
        return same_end and comparable(earlier.decisions) == comparable(later.decisions)
    return comparable(earlier.decisions[: change + 1]) == comparable(later.decisions[: change + 1])


@dataclass(frozen=True, slots=True)
class CalibrationResult:
    """
    The result of a search: the *tested* values in order.

    *reused* counts runs that were not made, because a run at a stricter value was the same run. *attempt* numbers the
    attempts that share their runs; *limit* and *level* are those of all attempts together. An attempt on so few
    problems that it could not have promised anything does not *count*.
    """

    limit: float
    level: float
    tested: tuple[ThresholdTest, ...]
    reused: int = 0
    attempt: int = 1
    counts: bool = True

    @property
    def loosest(self) -> ThresholdTest | None:
        """The loosest value that holds; None if no promise can be made."""
        return loosest_holding(self.tested)

    @property
    def problems_needed(self) -> int | None:
        """The problems that another attempt needs for the first value that failed; None if no number would do."""
        failed = next((test for test in self.tested if not test.holds), None)
        return self.next_test.needed(failed.paired) if failed else None

    @property
    def next_test(self) -> LossTest:
        """The test of the next attempt."""
        return LossTest(self.limit, self.level, again=self.counts or self.attempt > 1)


class RunMemory:
    """All runs so far, in memory, by problem and value."""

    def __init__(self) -> None:
        self.done: dict[tuple[int, float | None], CalibrationRun] = {}

    def add(self, run: CalibrationRun) -> None:
        """Keep *run*."""
        self.done[run.problem, run.value] = run


class RunStore(RunMemory):
    """All runs and attempts so far, one line each in a `JsonlStore`."""

    def __init__(self, path: Path, about: Mapping[str, Any], *, fresh: bool = False) -> None:
        """Read the file. Raise `ConfigurationError` if it holds another calibration and *fresh* is false."""
        super().__init__()
        self.started: list[AttemptStart] = []
        self.ended: list[AttemptEnd] = []
        self._file = JsonlStore(path, about, fresh=fresh, remedy=REMEDY)
        self._read()

    def __enter__(self) -> Self:
        """Begin to write. Raise `ConfigurationError` if another process is writing."""
        self._file.__enter__()
        self._read()  # again: another process may have added lines until now
        return self

    def __exit__(self, *exc: object) -> None:
        self._file.__exit__(*exc)

    def add(self, run: CalibrationRun) -> None:
        """Keep *run*; it is on disk when this returns."""
        super().add(run)
        self._file.write(asdict(run))

    def start_attempt(self, digests: Sequence[str]) -> None:
        """
        Start an attempt on problems with these *digests*: of no problem, of the first one, and so on to all of them.

        Raise `ConfigurationError` if the file holds runs on other problems, or on more.
        """
        start = AttemptStart(len(digests) - 1, digests[-1])
        for earlier in self.started:
            if earlier.problems > start.problems:
                raise ConfigurationError(
                    f"{self._file.path} holds runs on {earlier.problems:,} problems, and these are "
                    f"{start.problems:,}: take as many or more, {REMEDY}"
                )
            if digests[earlier.problems] != earlier.digest:
                raise ConfigurationError(f"{self._file.path} holds runs on other problems: {REMEDY}")
        if start not in self.started:
            self.started.append(start)
            self._file.write(asdict(start))

    def attempt_number(self, end: AttemptEnd) -> int:
        """The number of the attempt that ends with *end*, which may have been recorded already."""
        alike = [earlier for earlier in self.ended if replace(earlier, problems=end.problems) == end]
        return (*alike, end).index(end) + 1

    def end_attempt(self, end: AttemptEnd) -> None:
        """Record the end of an attempt."""
        if end not in self.ended:
            self.ended.append(end)
            self._file.write(asdict(end))

    def _read(self) -> None:
        self.done.clear()
        self.started.clear()
        self.ended.clear()
        for number, line in self._file.lines():
            try:
                record = _LINE.validate_json(line)
            except ValueError as exc:
                raise ConfigurationError(
                    f"{self._file.path}, line {number}: no trial ({exc}); remove the line, or begin anew with --fresh"
                ) from exc
            match record:
                case CalibrationRun():
                    self.done[record.problem, record.value] = record
                case AttemptStart():
                    self.started.append(record)
                case AttemptEnd():
                    self.ended.append(record)


@dataclass
class CalibrationSearch:
    """
    Solve *problems* at the values of a *threshold*, *at_once* at the same time, and compare with the large model alone.

    Every run is greedy or has the seed of its problem. So where the threshold's scores are only compared, a run that a
    looser value would not have changed is reused for that value. That runs repeat is checked: every run is compared
    with the run of its problem at the value before, and at every value some reusable runs are made all the same. At the
    first difference *on_difference* is called, and the search begins again without any reuse: then every outcome is
    that of a run made at its value.

    *on_problem* is called for every problem and value (None: the large model alone), with whether it was solved now.
    """

    solve: SolveAt
    problems: int
    threshold: Threshold
    test: LossTest
    store: RunMemory
    at_once: int = 4
    on_problem: Callable[[float | None, bool], object] = lambda value, solved: None
    on_difference: Callable[[CalibrationRun], object] = lambda run: None

    async def run(self) -> CalibrationResult:
        large = [run.right for run in await self._solve_all(None, {})]
        try:
            return await self._search(large, reuse=self.threshold.compared)
        except _RunDiffers as difference:
            self.on_difference(difference.run)
            return await self._search(large, reuse=False)

    async def _search(self, large: Sequence[bool], *, reuse: bool) -> CalibrationResult:
        """Test the values in their order. Raise `_RunDiffers` for a run that does not repeat the one before."""
        sequence = FixedSequence(self.threshold.values, self.test)
        runs: dict[float, Sequence[CalibrationRun]] = {}
        reused, before = 0, dict[int, CalibrationRun]()
        for value in sequence:
            reusable = self._reusable(value, before)
            runs[value] = await self._solve_all(value, reusable)
            self._check(runs[value], before)
            if reuse:
                reused, before = reused + len(reusable), dict(enumerate(runs[value]))
            sequence.record(Paired.of(large, [run.right for run in runs[value]]))
        return CalibrationResult(self.test.limit, self.test.level, tuple(sequence.tested), reused)

    def _reusable(self, value: float, before: Mapping[int, CalibrationRun]) -> dict[int, CalibrationRun]:
        """The runs at the value *before* that *value* would not change, but for `REPEATED`, which check the others."""
        unchanged = [problem for problem, run in before.items() if run.first_change(value) is None]
        checked = sorted(unchanged, key=lambda problem: _check_order(problem, value))[:REPEATED]
        skipped = {*unchanged} - {*checked} - {problem for problem, at in self.store.done if at == value}
        return {problem: replace(before[problem], value=value) for problem in skipped}

    def _check(self, runs: Sequence[CalibrationRun], before: Mapping[int, CalibrationRun]) -> None:
        for later in runs:
            earlier = before.get(later.problem)
            if earlier is not None and not repeats(earlier, later, self.threshold.values):
                raise _RunDiffers(later)

    async def _solve_all(self, value: float | None, reusable: Mapping[int, CalibrationRun]) -> Sequence[CalibrationRun]:
        runs = {problem: run for (problem, at), run in self.store.done.items() if at == value} | {**reusable}
        missing = [problem for problem in range(self.problems) if problem not in runs]
        for _ in range(self.problems - len(missing)):
            self.on_problem(value, False)
        slots = asyncio.Semaphore(self.at_once)
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._solve_one(problem, value, slots)) for problem in missing]
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None
        runs |= {task.result().problem: task.result() for task in tasks}
        return [runs[problem] for problem in range(self.problems)]

    async def _solve_one(self, problem: int, value: float | None, slots: asyncio.Semaphore) -> CalibrationRun:
        async with slots:
            run = await self.solve(problem, value)
        self.store.add(run)
        self.on_problem(value, True)
        return run


def _check_order(problem: int, value: float) -> bytes:
    """A pseudo-random sort key that depends on nothing else, so that a resumed calibration checks the same runs."""
    return blake2b(f"{problem} {value!r}".encode(), digest_size=8).digest()
