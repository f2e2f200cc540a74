"""The labels of the dots of a plot, placed so that they cover neither each other nor a dot. Pure."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from .svg import GLYPH

MARK = 5.5  # pixels, the radius of a dot
DIRECTIONS = (0.0, 180.0, 90.0, 270.0, 60.0, 120.0, 300.0, 240.0)  # degrees, from the dot to its label, the best first
DISTANCES = (9.0, 24.0, 40.0, 58.0, 78.0)
STEP = 8.0  # pixels between the places that are tried where none of the near ones is free
CROSSING = 60.0  # pixels that a label may be further away to avoid a crossing of its leader with another label

Point: TypeAlias = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Box:
    left: float
    top: float
    right: float
    bottom: float

    @property
    def size(self) -> float:
        return (self.right - self.left) * (self.bottom - self.top)

    def overlap(self, other: Box) -> float:
        """Return the area of the overlap with *other*."""
        width = min(self.right, other.right) - max(self.left, other.left)
        height = min(self.bottom, other.bottom) - max(self.top, other.top)
        return width * height if width > 0 and height > 0 else 0.0

    def nearest(self, x: float, y: float) -> Point:
        """Return the point of the box that is nearest to (*x*, *y*)."""
        return min(max(x, self.left), self.right), min(max(y, self.top), self.bottom)

    def crossed(self, start: Point, end: Point) -> bool:
        """Whether the line from *start* to *end* passes through the box."""
        first, last = 0.0, 1.0
        for at, to, low, high in zip(start, end, (self.left, self.top), (self.right, self.bottom), strict=True):
            if at == to:
                if not low < at < high:
                    return False
                continue
            enters, leaves = sorted(((low - at) / (to - at), (high - at) / (to - at)))
            first, last = max(first, enters), min(last, leaves)
        return first < last


@dataclass(frozen=True, slots=True)
class Label:
    """The label of the dot at (*x*, *y*): centred at (*label_x*, *label_y*), *distance* from the dot."""

    x: float
    y: float
    label_x: float
    label_y: float
    distance: float
    box: Box

    @property
    def led(self) -> bool:
        """Whether the label is so far from its dot that a line has to lead to it."""
        return self.distance > DISTANCES[0]

    @property
    def leader(self) -> tuple[Point, Point]:
        return (self.x, self.y), self.box.nearest(self.x, self.y)


def dot_box(x: float, y: float) -> Box:
    """Return the box around the dot at (*x*, *y*) that labels leave free."""
    return Box(x - MARK - 1, y - MARK - 1, x + MARK + 1, y + MARK + 1)


def place_labels(names: Sequence[str], dots: Sequence[Point], area: Box) -> list[Label]:
    """
    Place a label for each of the *dots* within *area*, crowded dots first.

    A label is as near as possible without covering a dot or a label placed before it. Where there is no free place in
    *area*, it covers as little as possible.
    """
    taken = [dot_box(x, y) for x, y in dots]
    order = sorted(range(len(dots)), key=lambda index: sum(math.dist(dots[index], dot) for dot in dots))
    labels: dict[int, Label] = {}
    for index in order:
        labels[index] = _best(names[index], dots[index], area, taken, list(labels.values()))
        taken.append(labels[index].box)
    return [labels[index] for index in range(len(dots))]


def overlapping(labels: Sequence[Label]) -> bool:
    """Whether any of the *labels* covers another one or a dot."""
    dots = [dot_box(label.x, label.y) for label in labels]
    pairs = itertools.combinations([label.box for label in labels], 2)
    return any(a.overlap(b) for a, b in pairs) or any(label.box.overlap(dot) for label in labels for dot in dots)


def _best(name: str, dot: Point, area: Box, taken: Sequence[Box], placed: Sequence[Label]) -> Label:
    near = [_around(name, *dot, distance, turn) for distance in DISTANCES for turn in DIRECTIONS]
    inside = [label for label in near if label.box.overlap(area) >= 0.999 * label.box.size]
    free = [label for label in inside if not any(map(label.box.overlap, taken))]
    best = min(free, key=lambda label: _cost(label, placed), default=None)
    if best is not None and _cost(best, placed) < CROSSING:
        return best
    far = [label for label in _anywhere(name, *dot, area) if not any(map(label.box.overlap, taken))]
    if free or far:
        return min((*free, *far), key=lambda label: _cost(label, placed))
    return min(inside or near[:1], key=lambda label: (sum(map(label.box.overlap, taken)), label.distance))


def _cost(label: Label, placed: Sequence[Label]) -> float:
    """The distance of *label*, with a surcharge for each leader, of this or *placed* labels, that crosses a label."""
    ours = sum(other.box.crossed(*label.leader) for other in placed) if label.led else 0
    theirs = sum(label.box.crossed(*other.leader) for other in placed if other.led)
    return label.distance + CROSSING * (ours + theirs)


def _around(name: str, x: float, y: float, distance: float, degrees: float) -> Label:
    right, up = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    width, height = _half(name)
    return _at(name, x, y, x + right * (distance + width), y - up * (distance + height), distance)


def _anywhere(name: str, x: float, y: float, area: Box) -> Iterator[Label]:
    """Yield labels all over *area*."""
    width, height = _half(name)
    across = int((area.right - area.left - 2 * width) / STEP)
    down = int((area.bottom - area.top - 2 * height) / STEP)
    for column, row in itertools.product(range(across + 1), range(down + 1)):
        label_x, label_y = area.left + width + STEP * column, area.top + height + STEP * row
        label = _at(name, x, y, label_x, label_y, 0.0)
        distance = math.dist((x, y), label.box.nearest(x, y))
        yield replace(label, distance=max(DISTANCES[0] + 1, distance))


def _half(name: str) -> Point:
    """Half of the width and of the height of a label."""
    return GLYPH * len(name) / 2, 8.0


def _at(name: str, x: float, y: float, label_x: float, label_y: float, distance: float) -> Label:
    width, height = _half(name)
    box = Box(label_x - width, label_y - height, label_x + width, label_y + height)
    return Label(x, y, label_x, label_y, distance, box)
