"""The labels of the dots of a plot, placed so that they cover neither each other nor a dot. Pure."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

MARK = 5.5  # pixels, the radius of a dot
DIRECTIONS = (0.0, 180.0, 90.0, 270.0, 60.0, 120.0, 300.0, 240.0)  # degrees, from the dot to its label, the best first
DISTANCES = (9.0, 24.0, 40.0, 58.0, 78.0)
PASSES = 3
ACROSS, DOWN = 20.0, 16.0  # pixels between the places that are tried where none of the near ones is free
LETTER = 7.2  # pixels, a character of a label in a wide font, so that labels keep apart in any
SURCHARGE = 14.0  # pixels that a label may be further away to avoid being next to another dot
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
    """
    The label of the dot at (*x*, *y*): centred at (*label_x*, *label_y*), *distance* from the dot.

    *led*: it is so far from its dot, or so near to another one, that a line has to lead to it.
    """

    x: float
    y: float
    label_x: float
    label_y: float
    distance: float
    box: Box
    led: bool

    @property
    def leader(self) -> tuple[Point, Point]:
        return (self.x, self.y), self.box.nearest(self.x, self.y)


def dot_box(x: float, y: float) -> Box:
    """Return the box around the dot at (*x*, *y*) that labels leave free."""
    return Box(x - MARK - 1, y - MARK - 1, x + MARK + 1, y + MARK + 1)


def place_labels(names: Sequence[str], dots: Sequence[Point], area: Box) -> list[Label]:
    """
    Place a label for each of the *dots* within *area*, crowded dots first; then move each label once more or twice.

    A label is as near as possible without covering a dot or another label. Where there is no free place in *area*, it
    covers as little as possible.
    """
    order = sorted(range(len(dots)), key=lambda index: sum(math.dist(dots[index], dot) for dot in dots))
    labels: dict[int, Label] = {}
    for index in order * PASSES:
        placed = [label for other, label in labels.items() if other != index]
        labels[index] = _best(names[index], dots[index], area, dots, placed)
    return [labels[index] for index in range(len(dots))]


def overlapping(labels: Sequence[Label]) -> bool:
    """Whether any of the *labels* covers another one or a dot."""
    dots = [dot_box(label.x, label.y) for label in labels]
    pairs = itertools.combinations([label.box for label in labels], 2)
    return any(a.overlap(b) for a, b in pairs) or any(label.box.overlap(dot) for label in labels for dot in dots)


def _best(name: str, dot: Point, area: Box, dots: Sequence[Point], placed: Sequence[Label]) -> Label:
    """Return the best label of *dot*, given all *dots* and the labels that are *placed*."""
    others = [other for other in dots if other != dot]
    around = [dot_box(*other) for other in others]
    taken = [dot_box(*dot), *around, *(label.box for label in placed)]

    def cost(label: Label) -> float:
        own = _distance(label.box, dot)
        crowded = sum(_distance(label.box, other) <= own for other in others)
        ours = sum(box.crossed(*label.leader) for box in taken[1:]) if label.led else 0
        theirs = sum(label.box.crossed(*other.leader) for other in placed if other.led)
        return label.distance + SURCHARGE * crowded + CROSSING * (ours + theirs)

    near = [_around(name, *dot, distance, turn, others) for distance in DISTANCES for turn in DIRECTIONS]
    inside = [label for label in near if label.box.overlap(area) >= 0.999 * label.box.size]
    best, least = _cheapest(inside, taken, cost)
    if best is None or least >= CROSSING:
        far, farther = _cheapest(sorted(_anywhere(name, *dot, area, others), key=_distance_of), taken, cost)
        best = far if farther < least else best
    return best or min(inside or near[:1], key=lambda label: (sum(map(label.box.overlap, taken)), label.distance))


def _distance_of(label: Label) -> float:
    return label.distance


def _cheapest(
    options: Iterable[Label], taken: Sequence[Box], cost: Callable[[Label], float]
) -> tuple[Label | None, float]:
    """Return the label with the least *cost* that covers nothing *taken*, and its cost; *options* are by distance."""
    best, least = None, math.inf
    for label in options:
        if label.distance >= least:  # a cost is at least the distance
            break
        if not any(map(label.box.overlap, taken)) and (price := cost(label)) < least:
            best, least = label, price
    return best, least


def _distance(box: Box, dot: Point) -> float:
    return math.dist(dot, box.nearest(*dot))


def _around(name: str, x: float, y: float, distance: float, degrees: float, others: Sequence[Point]) -> Label:
    right, up = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    width, height = _half(name)
    centre = x + right * (distance + width), y - up * (distance + height)
    return _at(name, (x, y), centre, distance, others)


def _anywhere(name: str, x: float, y: float, area: Box, others: Sequence[Point]) -> Iterator[Label]:
    """Yield labels all over *area*."""
    width, height = _half(name)
    across = int((area.right - area.left - 2 * width) / ACROSS)
    down = int((area.bottom - area.top - 2 * height) / DOWN)
    for column, row in itertools.product(range(across + 1), range(down + 1)):
        centre = area.left + width + ACROSS * column, area.top + height + DOWN * row
        yield _at(name, (x, y), centre, None, others)


def _half(name: str) -> Point:
    """Half of the width and of the height of a label."""
    return LETTER * len(name) / 2, 8.0


def _at(name: str, dot: Point, centre: Point, distance: float | None, others: Sequence[Point]) -> Label:
    """Return the label at *centre*; by default, *distance* is that of its box."""
    (width, height), (x, y) = _half(name), centre
    box = Box(x - width, y - height, x + width, y + height)
    own = _distance(box, dot)
    led = distance is None or distance > DISTANCES[0] or any(_distance(box, other) <= own for other in others)
    return Label(*dot, x, y, own if distance is None else distance, box, led)
