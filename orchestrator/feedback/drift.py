"""Detect that live grades no longer look like those that a threshold was calibrated on. No I/O."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ..errors import ConfigurationError
from ..events import Event, Judged

BINS = 10
LEAST = 200  # grades before a drift can be reported
LEVEL_Z = 3.09  # one false alarm in a thousand checks


@dataclass(frozen=True, slots=True)
class Histogram:
    """The number of grades in each bin: up to the first of *edges*, up to the second, ..., above the last."""

    edges: tuple[float, ...]
    counts: tuple[int, ...]

    def __post_init__(self) -> None:
        rising = all(low < high for low, high in pairwise(self.edges))
        if not rising or len(self.counts) != len(self.edges) + 1 or min(self.counts) < 0:
            raise ConfigurationError(f"a histogram of grades needs rising edges and a count more: {self}")

    @property
    def n(self) -> int:
        return sum(self.counts)

    @classmethod
    def of(cls, grades: Sequence[float], edges: Sequence[float] | None = None) -> Histogram:
        """Count *grades*; without *edges*, the bins hold about equally many grades."""
        if edges is None:
            ranked = sorted(grades)
            edges = sorted({ranked[place * len(ranked) // BINS] for place in range(1, BINS)} if ranked else ())
        counter = Counter(bisect_left(edges, grade) for grade in grades)
        return cls(tuple(edges), tuple(counter[place] for place in range(len(edges) + 1)))


def surprise(one: Histogram, other: Histogram) -> float:
    """
    How unlikely it is that both histograms come from the same source, in standard deviations.

    This is the chi-squared statistic of two samples, transformed to a normal one (Wilson and Hilferty, 1931). Both need
    the same edges.
    """
    if one.edges != other.edges:
        raise ConfigurationError("histograms of different bins cannot be compared")
    if not (one.n and other.n):
        return 0.0
    a, b = math.sqrt(other.n / one.n), math.sqrt(one.n / other.n)
    pairs = [(x, y) for x, y in zip(one.counts, other.counts, strict=True) if x + y]
    statistic = sum((a * x - b * y) ** 2 / (x + y) for x, y in pairs)
    freedom = len(pairs) - 1
    if freedom < 1:
        return 0.0
    spread = 2 / (9 * freedom)
    return (math.cbrt(statistic / freedom) - (1 - spread)) / math.sqrt(spread)


@dataclass(frozen=True, slots=True)
class Drift:
    """
    The *live* grades compared with the *calibrated* ones.

    They have drifted if both are unlikely to come from one source and the difference is large enough to matter: *moved*
    is the share of the grades that fell into other bins, 0 while there are none on either side.
    """

    calibrated: Histogram
    live: Histogram

    @property
    def moved(self) -> float:
        before, now = self.calibrated.n, self.live.n
        if not (before and now):
            return 0.0
        return sum(abs(x / before - y / now) for x, y in zip(self.calibrated.counts, self.live.counts, strict=True)) / 2

    @property
    def drifted(self) -> bool:
        return self.live.n >= LEAST and self.moved >= 0.1 and surprise(self.calibrated, self.live) > LEVEL_Z


class GradeWatch:
    """An observer that counts the grades of runs, to compare them with the *calibrated* ones."""

    def __init__(self, calibrated: Histogram) -> None:
        self._calibrated = calibrated
        self._counts = [0] * len(calibrated.counts)

    def __call__(self, event: Event) -> None:
        for grade in grades((event,)):
            self._counts[bisect_left(self._calibrated.edges, grade)] += 1

    @property
    def drift(self) -> Drift:
        return Drift(self._calibrated, Histogram(self._calibrated.edges, tuple(self._counts)))


def grades(events: Iterable[Event]) -> list[float]:
    """The scores of all verdicts among *events*."""
    return [event.verdict.score for event in events if isinstance(event, Judged) and event.verdict.score is not None]
