"""Find the loosest threshold that keeps a promise, by solving problems: what `calibration` decides on is made here."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self, TypeAlias

from pydantic import TypeAdapter

from ..orchestrator.drift import Histogram
from ..orchestrator.errors import ConfigurationError
from ..policies.knobs import Knob
from .calibration import Paired, Tested, chosen, needed, p_value
from .journal import Journal


@dataclass(frozen=True, slots=True)
class Tried:
    """What one problem came to at one value (None: the large model alone), and the scores of its verdicts."""

    problem: int
    value: float | None
    right: bool
    scores: tuple[float, ...] = ()


_TRIED = TypeAdapter(Tried)
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
    """All that was tried so far, a line each in a `Journal`."""

    def __init__(self, path: Path, about: Mapping[str, Any], *, fresh: bool = False) -> None:
        """Read the file. Raise `ConfigurationError` if it holds another calibration, unless that is to be forgotten."""
        cure = "choose another file with --work, or begin anew with --fresh"
        self._journal = Journal(path, about, fresh=fresh, cure=cure)
        self.done: dict[tuple[int, float | None], Tried] = {}
        self._read()

    def __enter__(self) -> Self:
        """Begin to write. Raise `ConfigurationError` if somebody else does."""
        self._journal.__enter__()
        self._read()  # again: whoever held the file until now may have added to it
        return self

    def __exit__(self, *exc: object) -> None:
        self._journal.__exit__(*exc)

    def add(self, tried: Tried) -> None:
        """Keep *tried*; it is on disk when this returns."""
        self.done[tried.problem, tried.value] = tried
        self._journal.write(asdict(tried))

    def _read(self) -> None:
        self.done.clear()
        for number, line in self._journal.lines():
            try:
                tried = _TRIED.validate_json(line)
            except ValueError as exc:
                raise ConfigurationError(
                    f"{self._journal.path}, line {number}: no trial ({exc}); remove the line, or begin anew with "
                    "--fresh"
                ) from exc
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
