"""
What the readings of judged steps say: how far they separate right from wrong, and which method
fits. No I/O.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import ceil
from statistics import fmean, median
from typing import Any

from ..results import Interval, wilson
from .readings import READINGS, JudgeReading, Request

ACCEPTED = 0.9  # of the right steps, at the threshold of a reading
# of the right steps, which words alone may not reject: beside the threshold, `reading` has one for
# them
WORDS = 0.95
GAP = "largest gap, all"
MEAN = "mean gap, all"
STRICTEST = 0.5  # nats: a threshold below would reject what the model itself samples
MOST_PASSED = 0.5  # of the slips, at 95%: a judge that lets more through is worth little
# right steps, and steps with a slip, that an area needs: three cannot show that it is above a half
MIN_EACH = 4
RESAMPLES = 200
CLOSE = 0.02  # of AUROC, within which the cheaper request counts


@dataclass(frozen=True, slots=True)
class JudgedStep:
    """
    A step of the problem with this number that is *right* or has a slip, with all its readings.

    The large model wrote one that is *own*, or that a slip was made in; others were written for
    this purpose.
    """

    problem: int
    right: bool
    values: Mapping[str, float]
    own: bool = False


@dataclass(frozen=True, slots=True)
class ReadingFigures:
    """
    What one *reading* is worth: the *areas* are its AUROC on written steps and on own ones, where
    there are enough.

    At the *threshold*, which accepts a share *accepted* of the right steps, it lets the share
    *passed* of the slips through. These are of own steps, if there are any: how a text is written
    moves a threshold. *words* is the gap of words for `reading`. *seconds* are the median of the
    request, alone.
    """

    reading: JudgeReading
    areas: tuple[Interval, ...]
    seconds: float
    threshold: float
    accepted: float
    passed: Interval
    words: float

    @property
    def area(self) -> float:
        """The mean of the areas."""
        return fmean(area.value for area in self.areas)

    @property
    def fits(self) -> bool:
        """Whether the method of this reading may be used with this pair."""
        better = all(area.low > 0.5 for area in self.areas)
        return self.reading.options is not None and better and self.passed.high <= MOST_PASSED

    @property
    def options(self) -> Mapping[str, Any]:
        """The options of the method at the threshold."""
        return self.reading.options(self.threshold, self.words) if self.reading.options else {}


@dataclass(frozen=True, slots=True)
class DraftFigures:
    """
    Of so many *drafts*, the share that the method *accepted*; *pace*: small seconds a token over
    large ones.
    """

    drafts: int
    accepted: Interval
    verdict_seconds: float
    pace: float


def figures(
    steps: Sequence[JudgedStep], seconds: Mapping[Request, Sequence[float]]
) -> list[ReadingFigures]:
    """The figures of every reading that all *steps* have, the best first."""
    known = [reading for reading in READINGS if all(reading.name in step.values for step in steps)]
    made = [_figures(reading, steps, median(seconds[reading.request])) for reading in known]
    return sorted((each for each in made if each is not None), key=lambda each: -each.area)


def _figures(
    reading: JudgeReading, steps: Sequence[JudgedStep], seconds: float
) -> ReadingFigures | None:
    groups = [[step for step in steps if step.own is own] for own in (False, True)]
    known = [(area, group) for group in groups if (area := _area(reading.name, group)) is not None]
    if not known:
        return None
    own = known[-1][1]
    threshold, right = (
        _threshold(reading.name, own, ACCEPTED),
        [s.values[reading.name] for s in own if s.right],
    )
    if reading.policy == "reading":
        threshold = min(threshold, -STRICTEST) if reading.name != MEAN else threshold
    passed = [step.values[reading.name] >= threshold for step in own if not step.right]
    return ReadingFigures(
        reading,
        tuple(area for area, _ in known),
        seconds,
        threshold,
        sum(value >= threshold for value in right) / len(right),
        wilson(sum(passed), len(passed)),
        -min(_threshold(GAP, own, WORDS), -STRICTEST) if GAP in own[0].values else 0.0,
    )


def _area(name: str, steps: Sequence[JudgedStep]) -> Interval | None:
    """
    Return the AUROC of the reading: the probability that a right step has a higher value than one
    with a slip.

    Ties count half. The interval is that of a percentile bootstrap over the problems, which is too
    narrow for few of them and close to 1, joined with Wilson's of as many trials as there are steps
    of the rarer kind: no area of independent steps varies more (Birnbaum and Klose 1957). None for
    fewer than `MIN_EACH`.
    """
    fewer = min(sum(step.right is kind for step in steps) for kind in (True, False))
    if fewer < MIN_EACH:
        return None
    ranked = sorted(steps, key=lambda step: step.values[name])
    problems, rng = sorted({step.problem for step in steps}), random.Random(0)
    resamples = (Counter(rng.choices(problems, k=len(problems))) for _ in range(RESAMPLES))
    areas = sorted(
        area for weights in resamples if (area := _auroc(name, ranked, weights)) is not None
    )
    value = _auroc(name, ranked, Counter(problems)) or 0.0
    low, high = (areas[int(share * len(areas))] if areas else value for share in (0.025, 0.975))
    most = wilson(value * fewer, fewer)
    return Interval(value, min(low, most.low), max(high, most.high))


def _auroc(name: str, ranked: Sequence[JudgedStep], weights: Mapping[int, int]) -> float | None:
    """
    Return the AUROC of steps *ranked* by value, with *weights* by problem; None if no step of one
    kind counts.
    """
    pairs, above, below = 0.0, 0, 0
    for _, ties in groupby(ranked, key=lambda step: step.values[name]):
        right, wrong = 0, 0
        for step in ties:
            weight = weights.get(step.problem, 0)
            right, wrong = right + weight * step.right, wrong + weight * (not step.right)
        pairs += right * (below + wrong / 2)
        above, below = above + right, below + wrong
    return pairs / (above * below) if above and below else None


def _threshold(name: str, steps: Sequence[JudgedStep], accepted: float) -> float:
    """The reading that a share *accepted* of the right *steps* reaches."""
    right = sorted(step.values[name] for step in steps if step.right)
    return right[len(right) - ceil(accepted * len(right))]


def best(rows: Sequence[ReadingFigures]) -> ReadingFigures | None:
    """
    The row whose method fits the pair: the one that separates best, and of close ones the cheapest.
    None: none.
    """
    fitting = [row for row in rows if row.fits]
    if not fitting:
        return None
    top = max(row.area for row in fitting)
    return min(
        (row for row in fitting if row.area >= top - CLOSE),
        key=lambda row: (row.seconds, -row.area),
    )
