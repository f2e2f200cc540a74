"""
The charts of a report: times, and accuracy against time.

This module computes what the template draws. Arms differ in their marks, not only in their colours.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle

from ..results import Result, by_time

SHAPES = {
    "circle": "M-5 0a5 5 0 1 0 10 0a5 5 0 1 0-10 0z",
    "square": "M-4.5-4.5h9v9h-9z",
    "diamond": "M0-6.5L6.5 0L0 6.5L-6.5 0z",
    "up": "M0-6L6 5H-6z",
    "down": "M0 6L6-5H-6z",
    "left": "M-6 0L5-6V6z",
    "right": "M6 0L-5-6V6z",
    "plus": "M-2-6h4v4h4v4h-4v4h-4v-4h-4v-4h4z",
    "cross": "M-6-3L-3-6L0-3L3-6L6-3L3 0L6 3L3 6L0 3L-3 6L-6 3L-3 0z",
    "pentagon": "M0-6L6-1.5L3.5 5.5H-3.5L-6-1.5z",
    "hexagon": "M-3-5.5H3L6 0L3 5.5H-3L-6 0z",
    "tall": "M0-7L4 0L0 7L-4 0z",
    "wide": "M-7 0L0-4L7 0L0 4z",
}
"""The outlines of the marks around the point 0, by name, in pixels."""
KIND_SHAPES = {"small": "circle", "large": "square", "bound": "diamond"}
METHOD_SHAPES = [name for name in SHAPES if name not in KIND_SHAPES.values()]
TICK_STEPS = (0.2, 0.5, 1, 2)
"""Steps between two ticks, as shares of the power of ten below the length of the axis."""
MAX_STEPS = 6


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis of a chart."""

    low: float
    """The value at its beginning."""
    high: float
    """The value at its end."""

    def share(self, value: float) -> float:
        """Return the place of *value* as a share of the axis, from its beginning."""
        return (value - self.low) / (self.high - self.low)

    def from_left(self, value: float) -> str:
        return f"{self.share(value):.2%}"

    def from_top(self, value: float) -> str:
        return f"{1 - self.share(value):.2%}"

    @property
    def ticks(self) -> list[float]:
        """Round values on the axis."""
        length = self.high - self.low
        power = 10 ** math.floor(math.log10(length))
        step = next(part * power for part in TICK_STEPS if length <= MAX_STEPS * part * power)
        numbers = range(math.ceil(self.low / step), math.floor(self.high / step) + 1)
        return [number * step for number in numbers]


def front(arms: Sequence[Result]) -> list[Result]:
    """Return the Pareto front of the arms that ran, the fastest first."""
    best = -1.0
    optimal: list[Result] = []
    for arm in sorted(by_time(arms), key=lambda arm: (arm.seconds, -arm.accuracy.value)):
        if arm.accuracy.value > best:
            best = arm.accuracy.value
            optimal.append(arm)
    return optimal


def shapes(arms: Sequence[Result]) -> dict[str, str]:
    """Return the shape of each arm's mark by the arm's name. Ten methods have different shapes."""
    own = cycle(METHOD_SHAPES)
    return {arm.name: KIND_SHAPES.get(arm.kind) or next(own) for arm in arms}


def ratio_axis(arms: Sequence[Result]) -> Axis:
    """Return the axis of the times over those of the baseline."""
    return Axis(0.0, 1.04 * max(1.0, *(arm.ratio.high for arm in by_time(arms))))


def seconds_axis(arms: Sequence[Result]) -> Axis:
    """Return the axis of the mean seconds."""
    return Axis(0.0, 1.12 * max(arm.seconds for arm in arms))


def accuracy_axis(arms: Sequence[Result]) -> Axis:
    """Return the axis of the accuracy."""
    lowest = min(arm.accuracy.low for arm in arms)
    return Axis(max(0.0, lowest - 0.03), 1.04)
