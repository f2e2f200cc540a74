"""Find the loosest threshold that keeps a promise, by solving problems: what `calibration` decides on is made here."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, TypeAlias

import orjson
from pydantic import TypeAdapter

from ..orchestrator.drift import Histogram
from .calibration import Paired, Tested, chosen, needed, p_value


@dataclass(frozen=True, slots=True)
class Knob:
    """
    The option of a policy that says how loose it is, and its *values*, the strictest first.

    With *compared*, the policy does nothing with it but compare a verdict's score: at least the value is accepted. Then
    a run none of whose scores lies between two values is the same run for both, and is not run again.
    """

    option: str
    values: tuple[float, ...]
    compared: bool = False


KNOBS: Mapping[str, Knob] = {
    "specreason": Knob("threshold", (9, 8.5, 8, 7.5, 7, 6, 5, 4, 3, 2, 1, 0), compared=True),
    "reward": Knob("threshold", (1, 0.95, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0), compared=True),
    "cascade": Knob("sure", (1, 0.99, 0.97, 0.95, 0.9, 0.85, 0.8, 0.7, 0.6, 0.5)),
    "bild": Knob("rollback", (0, 0.5, 1, 1.5, 2, 3, 4, 5, 6, 8, 10)),
    "glimpse": Knob("threshold", (0, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9, 1, 1.5, 2, 3)),
    "random": Knob("p", (0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1)),
}


@dataclass(frozen=True, slots=True)
class Tried:
    """What one problem came to at one value (None: the large model alone), and the scores of its verdicts."""

    problem: int
    value: float | None
    right: bool
    scores: tuple[float, ...] = ()


Attempt: TypeAlias = Callable[[int, float | None], Awaitable[Tried]]


@dataclass(frozen=True, slots=True)
class Calibrated:
    """The promise: *tested* values in order, of which the last that holds is *found*; *grades* are those seen there."""

    limit: float
    level: float
    tested: tuple[Tested, ...]
    grades: Histogram

    @property
    def found(self) -> Tested | None:
        return chosen(self.tested)

    @property
    def enough(self) -> int | None:
        """How many problems would do for the first value that failed, at the rates seen; None if no number would."""
        failed = next((each for each in self.tested if not each.holds), None)
        return needed(self.limit, self.level, failed.paired) if failed else None


class Trials:
    """All that was tried so far, a line of JSON each on disk, so that a calibration goes on where it was cut short."""

    def __init__(self, path: Path, about: Mapping[str, Any], *, fresh: bool = False) -> None:
        self._path, self._head = path, orjson.dumps(dict(about), option=orjson.OPT_SORT_KEYS)
        self.done: dict[tuple[int, float | None], Tried] = {}
        lines = path.read_bytes().splitlines(keepends=True) if path.is_file() and not fresh else []
        if lines and lines[0].strip() == self._head:
            for line in lines[1:]:
                if line.endswith(b"\n"):  # else it was cut
                    self._take(TypeAdapter(Tried).validate_json(line))

    def __enter__(self) -> Self:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self._path.open("wb")
        self._file.write(self._head + b"\n" + b"".join(orjson.dumps(each) + b"\n" for each in self.done.values()))
        self._file.flush()
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def add(self, tried: Tried) -> None:
        self._take(tried)
        self._file.write(orjson.dumps(tried) + b"\n")
        self._file.flush()

    def _take(self, tried: Tried) -> None:
        self.done[tried.problem, tried.value] = tried


@dataclass
class Calibration:
    """
    Tries a *knob* on so many *problems*, *at_once* of them at the same time, against the large model alone.

    *tell* hears of every problem that is done with: the value (None: the large model alone) and whether it was run.
    """

    attempt: Attempt
    problems: int
    knob: Knob
    limit: float
    level: float
    trials: Trials
    at_once: int = 4
    tell: Callable[[float | None, bool], object] = lambda value, ran: None
    _before: dict[int, Tried] = field(default_factory=dict[int, Tried])

    async def run(self) -> Calibrated:
        large = [tried.right for tried in await self._all(None)]
        tested: list[Tested] = []
        scores: list[float] = []
        for value in self.knob.values:
            tried = await self._all(value)
            paired = Paired.of(large, [each.right for each in tried])
            p = p_value(paired, self.limit, self.level)
            tested.append(Tested(value, paired, p, p <= self.level))
            if not tested[-1].holds:
                break
            scores = [score for each in tried for score in each.scores]
        return Calibrated(self.limit, self.level, tuple(tested), Histogram.of(scores))

    async def _all(self, value: float | None) -> Sequence[Tried]:
        places = asyncio.Semaphore(self.at_once)
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._one(problem, value, places)) for problem in range(self.problems)]
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None
        tried = [task.result() for task in tasks]
        if value is not None:
            self._before = {each.problem: each for each in tried}
        return tried

    async def _one(self, problem: int, value: float | None, places: asyncio.Semaphore) -> Tried:
        known = self.trials.done.get((problem, value)) or self._same_run(problem, value)
        if known is not None:
            self.tell(value, False)
            return known
        async with places:
            tried = await self.attempt(problem, value)
        self.trials.add(tried)
        self.tell(value, True)
        return tried

    def _same_run(self, problem: int, value: float | None) -> Tried | None:
        """What the problem came to at the last value, if this one would have decided all of it the same way."""
        before = self._before.get(problem)
        if value is None or before is None or before.value is None or not self.knob.compared:
            return None
        same = all((score >= value) == (score >= before.value) for score in before.scores)
        return Tried(problem, value, before.right, before.scores) if same else None
