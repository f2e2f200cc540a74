"""What the readings of judged steps say: how far they separate right from wrong, and which method fits. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from statistics import median
from typing import Any

from stepspec.orchestrator.stats import wilson

from ..report.judging import ScoredVerdict, separate
from ..results import Interval
from .readings import READINGS, JudgeReading, Request

ACCEPTED = 0.9  # of the right steps, at the threshold of a reading
MOST_PASSED = 0.5  # of the slips: a judge that lets more through is worth little
CLOSE = 0.02  # of AUROC, within which the cheaper request counts


@dataclass(frozen=True, slots=True)
class JudgedStep:
    """A step of the problem with this number that is *right* or has a slip of the kind *of*, with all its readings."""

    problem: int
    right: bool
    of: str
    values: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class ReadingFigures:
    """
    What one *reading* is worth: the *area* is its AUROC.

    At the *threshold*, which accepts a share *accepted* of the right steps, it lets the share *passed* of the slips
    through; *passed_of* has that share by kind of slip. *seconds* are the median of its request, with nothing beside
    it.
    """

    reading: JudgeReading
    area: Interval
    seconds: float
    threshold: float
    accepted: float
    passed: Interval
    passed_of: Mapping[str, float]

    @property
    def fits(self) -> bool:
        """Whether the method of this reading may be used with this pair."""
        settable = self.reading.options is not None
        return settable and self.area.low > 0.5 and self.passed.value <= MOST_PASSED

    @property
    def options(self) -> Mapping[str, Any]:
        """The options of the method at the threshold."""
        return self.reading.options(self.threshold) if self.reading.options else {}


@dataclass(frozen=True, slots=True)
class DraftFigures:
    """Of the small model's own *drafts*, the share that the method with its options *accepted*, and the seconds."""

    drafts: int
    accepted: Interval
    draft_seconds: float
    verdict_seconds: float


def figures(steps: Sequence[JudgedStep], seconds: Mapping[Request, Sequence[float]]) -> list[ReadingFigures]:
    """The figures of every reading that all *steps* have, the best first."""
    known = [reading for reading in READINGS if all(reading.name in step.values for step in steps)]
    made = [_figures(reading, steps, median(seconds[reading.request])) for reading in known]
    return sorted((each for each in made if each is not None), key=lambda each: -each.area.value)


def _figures(reading: JudgeReading, steps: Sequence[JudgedStep], seconds: float) -> ReadingFigures | None:
    verdicts = [ScoredVerdict(step.values[reading.name], True, step.right, step.problem) for step in steps]
    separation = separate(verdicts, "step", doubt=False)
    if separation is None:
        return None
    right = sorted(step.values[reading.name] for step in steps if step.right)
    threshold = right[len(right) - ceil(ACCEPTED * len(right))]
    passed = [(step.of, step.values[reading.name] >= threshold) for step in steps if not step.right]
    share = sum(through for _, through in passed) / len(passed)
    return ReadingFigures(
        reading,
        separation.area,
        seconds,
        threshold,
        sum(value >= threshold for value in right) / len(right),
        Interval(share, *wilson(share * len(passed), len(passed))),
        {of: _share([through for kind, through in passed if kind == of]) for of in sorted({of for of, _ in passed})},
    )


def _share(these: Sequence[bool]) -> float:
    return sum(these) / len(these)


def best(rows: Sequence[ReadingFigures]) -> ReadingFigures | None:
    """The row whose method fits the pair: the one that separates best, and of close ones the cheapest. None: none."""
    fitting = [row for row in rows if row.fits]
    if not fitting:
        return None
    top = max(row.area.value for row in fitting)
    return min(
        (row for row in fitting if row.area.value >= top - CLOSE), key=lambda row: (row.seconds, -row.area.value)
    )
