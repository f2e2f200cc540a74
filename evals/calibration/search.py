"""Find the loosest threshold that keeps a promise, by solving problems: what `calibration` decides on is made here."""

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
from stepspec.orchestrator.feedback.drift import Histogram
from stepspec.policies.option_types import Threshold

from ..store import JsonlStore
from .risk_bound import LossTest, Paired, ThresholdTest, chosen, fixed_sequence

CURE = "choose another file with --work, or begin anew with --fresh"
REPEATED = 10  # reusable runs that are run all the same, at every value: a difference in a tenth of all is soon seen


@dataclass(frozen=True, slots=True)
class Decision:
    """One verdict that a run went by: its *score* (None: it had none), and a digest of the chain up to its draft."""

    score: float | None
    chain: str


@dataclass(frozen=True, slots=True)
class Trial:
    """
    What one problem came to at one value (None: the large model alone).

    *scores* are those of all verdicts, also on lost bets. *decisions* are the verdicts on what was committed or
    repaired, in the order of the steps. *text* is a digest of everything that was written.
    """

    problem: int
    value: float | None
    right: bool
    scores: tuple[float, ...] = ()
    decisions: tuple[Decision, ...] = ()
    text: str = ""

    def revealing(self, value: float) -> int | None:
        """The place of the first decision that *value* would have made otherwise; None if it would have made none."""
        if self.value is None:
            raise ValueError("the large model alone decides nothing")
        for place, decision in enumerate(self.decisions):
            score = decision.score
            if score is not None and (score >= value) != (score >= self.value):
                return place
        return None


class _Difference(Exception):
    """The run *tried* is not the one that it has to be if runs repeat."""

    def __init__(self, tried: Trial) -> None:
        self.tried = tried


@dataclass(frozen=True, slots=True)
class Begun:
    """An attempt was begun on the first *problems*, whose digest this is."""

    problems: int
    digest: str


@dataclass(frozen=True, slots=True)
class Concluded:
    """An attempt on the first *problems* came to its end, with a promise or without, for these *values*."""

    problems: int
    limit: float
    level: float
    values: tuple[float, ...]


_LINE: TypeAdapter[Trial | Concluded | Begun] = TypeAdapter(Trial | Concluded | Begun)
Attempt: TypeAlias = Callable[[int, float | None], Awaitable[Trial]]


def repeats(earlier: Trial, later: Trial, values: Sequence[float]) -> bool:
    """
    Whether *later*, a run of the same problem at another value, is the run that *earlier* says it has to be.

    Both have to agree up to the first decision that their values make differently; if there is none, to the end. Scores
    agree where no one of *values* tells them apart.
    """
    if later.value is None:
        raise ValueError("the large model alone is run once")
    rising = sorted(values)

    def seen(decisions: Sequence[Decision]) -> list[tuple[str, int]]:
        return [(d.chain, -1 if d.score is None else bisect_right(rising, d.score)) for d in decisions]

    place = earlier.revealing(later.value)
    if place is None:
        same = (earlier.right, earlier.text) == (later.right, later.text)
        return same and seen(earlier.decisions) == seen(later.decisions)
    return seen(earlier.decisions[: place + 1]) == seen(later.decisions[: place + 1])


@dataclass(frozen=True, slots=True)
class CalibrationResult:
    """
    The promise: *tested* values in order, of which the last that holds is *found*; *grades* are those seen there.

    *reused* runs were not made, because a run at a stricter value was the same run. It is the *attempt* of this number
    with the same trials; *limit* and *level* are those of all attempts together. One that could not have promised
    anything, with so few problems, does not *count*.
    """

    limit: float
    level: float
    tested: tuple[ThresholdTest, ...]
    grades: Histogram
    reused: int = 0
    attempt: int = 1
    counts: bool = True

    @property
    def found(self) -> ThresholdTest | None:
        return chosen(self.tested)

    @property
    def enough(self) -> int | None:
        """How many problems would do in another attempt for the first value that failed; None if no number would."""
        failed = next((each for each in self.tested if not each.holds), None)
        return self.next_attempt.needed(failed.paired) if failed else None

    @property
    def next_attempt(self) -> LossTest:
        return LossTest(self.limit, self.level, again=self.counts or self.attempt > 1)


class Known:
    """All runs that were made so far, in memory."""

    def __init__(self) -> None:
        self.done: dict[tuple[int, float | None], Trial] = {}

    def add(self, tried: Trial) -> None:
        """Keep *tried*."""
        self.done[tried.problem, tried.value] = tried


class TrialStore(Known):
    """All that was tried so far, a line each in a `Journal`."""

    def __init__(self, path: Path, about: Mapping[str, Any], *, fresh: bool = False) -> None:
        """Read the file. Raise `ConfigurationError` if it holds another calibration, unless that is to be forgotten."""
        super().__init__()
        self.begun: list[Begun] = []
        self.concluded: list[Concluded] = []
        self._journal = JsonlStore(path, about, fresh=fresh, cure=CURE)
        self._read()

    def __enter__(self) -> Self:
        """Begin to write. Raise `ConfigurationError` if somebody else does."""
        self._journal.__enter__()
        self._read()  # again: whoever held the file until now may have added to it
        return self

    def __exit__(self, *exc: object) -> None:
        self._journal.__exit__(*exc)

    def add(self, tried: Trial) -> None:
        """Keep *tried*; it is on disk when this returns."""
        super().add(tried)
        self._journal.write(asdict(tried))

    def begin(self, digests: Sequence[str]) -> None:
        """
        Begin an attempt on problems with these *digests*: of none of them, of the first one, and so on to all.

        Raise `ConfigurationError` if the file holds runs on other problems, or on more.
        """
        begun = Begun(len(digests) - 1, digests[-1])
        for earlier in self.begun:
            if earlier.problems > begun.problems:
                raise ConfigurationError(
                    f"{self._journal.path} holds runs on {earlier.problems:,} problems, and these are "
                    f"{begun.problems:,}: take as many or more, {CURE}"
                )
            if digests[earlier.problems] != earlier.digest:
                raise ConfigurationError(f"{self._journal.path} holds runs on other problems: {CURE}")
        if begun not in self.begun:
            self.begun.append(begun)
            self._journal.write(asdict(begun))

    def attempt(self, concluded: Concluded) -> int:
        """The number of the attempt that *concluded* is to be the end of; the same again, if it has come to it."""
        return (*self._alike(concluded), concluded).index(concluded) + 1

    def conclude(self, concluded: Concluded) -> None:
        """Keep that an attempt came to its end."""
        if concluded not in self.concluded:
            self.concluded.append(concluded)
            self._journal.write(asdict(concluded))

    def _alike(self, concluded: Concluded) -> list[Concluded]:
        return [each for each in self.concluded if replace(each, problems=concluded.problems) == concluded]

    def _read(self) -> None:
        self.done.clear()
        self.begun.clear()
        self.concluded.clear()
        for number, line in self._journal.lines():
            try:
                kept = _LINE.validate_json(line)
            except ValueError as exc:
                raise ConfigurationError(
                    f"{self._journal.path}, line {number}: no trial ({exc}); remove the line, or begin anew with "
                    "--fresh"
                ) from exc
            match kept:
                case Trial():
                    self.done[kept.problem, kept.value] = kept
                case Begun():
                    self.begun.append(kept)
                case Concluded():
                    self.concluded.append(kept)


@dataclass
class CalibrationSearch:
    """
    Tries a *knob* on so many *problems*, *at_once* of them at the same time, against the large model alone.

    A run that a looser value would not have changed is reused for that value, if runs are *repeatable* (greedy, or with
    a seed for each problem) and the knob's scores are only compared. Both are checked: every run is compared with the
    run of the same problem at the value before, and at every value some runs are made that could be reused. At the
    first difference *differing* is called, and the search begins again without any reuse: then every outcome is that of
    a run made at its value.

    *tell* hears of every problem that is done with: the value (None: the large model alone) and whether it was run.
    """

    attempt: Attempt
    problems: int
    knob: Threshold
    test: LossTest
    trials: Known
    at_once: int = 4
    tell: Callable[[float | None, bool], object] = lambda value, ran: None
    repeatable: bool = False
    differing: Callable[[Trial], object] = lambda tried: None

    async def run(self) -> CalibrationResult:
        large = [tried.right for tried in await self._all(None, {})]
        try:
            return await self._search(large, reuse=self.repeatable and self.knob.compared)
        except _Difference as difference:
            self.differing(difference.tried)
            return await self._search(large, reuse=False)

    async def _search(self, large: Sequence[bool], *, reuse: bool) -> CalibrationResult:
        """Test the values in their order. Raise `_Difference` for a run that does not repeat the one before."""
        sequence = fixed_sequence(self.knob.values, self.test)
        runs: dict[float, Sequence[Trial]] = {}
        reused, before = 0, dict[int, Trial]()
        try:
            value = next(sequence)
            while True:
                reusable = self._reusable(value, before)
                runs[value] = await self._all(value, reusable)
                self._check(runs[value], before)
                if reuse:
                    reused, before = reused + len(reusable), dict(enumerate(runs[value]))
                value = sequence.send(Paired.of(large, [tried.right for tried in runs[value]]))
        except StopIteration as end:
            tested: tuple[ThresholdTest, ...] = end.value
        best = chosen(tested)
        scores = [score for tried in runs[best.threshold] for score in tried.scores] if best else []
        return CalibrationResult(self.test.limit, self.test.level, tested, Histogram.of(scores), reused)

    def _reusable(self, value: float, before: Mapping[int, Trial]) -> dict[int, Trial]:
        """What problems came to *before* and are not run at this *value*: all but some that check on the rest."""
        same = [problem for problem, tried in before.items() if tried.revealing(value) is None]
        checked = sorted(same, key=lambda problem: _drawn(problem, value))[:REPEATED]
        skipped = {*same} - {*checked} - {problem for problem, at in self.trials.done if at == value}
        return {problem: replace(before[problem], value=value) for problem in skipped}

    def _check(self, runs: Sequence[Trial], before: Mapping[int, Trial]) -> None:
        for later in runs:
            earlier = before.get(later.problem)
            if earlier is not None and not repeats(earlier, later, self.knob.values):
                raise _Difference(later)

    async def _all(self, value: float | None, reusable: Mapping[int, Trial]) -> Sequence[Trial]:
        runs = {problem: tried for (problem, at), tried in self.trials.done.items() if at == value} | {**reusable}
        missing = [problem for problem in range(self.problems) if problem not in runs]
        for _ in range(self.problems - len(missing)):
            self.tell(value, False)
        places = asyncio.Semaphore(self.at_once)
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._one(problem, value, places)) for problem in missing]
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None
        runs |= {task.result().problem: task.result() for task in tasks}
        return [runs[problem] for problem in range(self.problems)]

    async def _one(self, problem: int, value: float | None, places: asyncio.Semaphore) -> Trial:
        async with places:
            tried = await self.attempt(problem, value)
        self.trials.add(tried)
        self.tell(value, True)
        return tried


def _drawn(problem: int, value: float) -> bytes:
    """What runs are drawn by to be repeated: always the same ones, so that an interrupted calibration goes on."""
    return blake2b(f"{problem} {value!r}".encode(), digest_size=8).digest()
