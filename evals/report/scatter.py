"""Accuracy against latency: every arm a dot with its interval, and the front of those that nothing beats. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from .drawing import GLYPH, NARROW, Scale, line, svg, text
from .figures import Figures
from .markup import Markup, element, join

LEFT, RIGHT, TOP, BOTTOM = 46.0, 14.0, 50.0, 42.0
MARK = 5.5
DIRECTIONS = (0.0, 180.0, 90.0, 270.0, 60.0, 120.0, 300.0, 240.0)  # degrees, the best place of a label first
DISTANCES = (9.0, 24.0, 40.0, 58.0, 78.0)


@dataclass(frozen=True, slots=True)
class Box:
    left: float
    top: float
    right: float
    bottom: float

    def shared(self, other: Box) -> float:
        """The area that both cover."""
        wide = min(self.right, other.right) - max(self.left, other.left)
        high = min(self.bottom, other.bottom) - max(self.top, other.top)
        return wide * high if wide > 0 and high > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Label:
    """Where the label of the dot at (*x*, *y*) goes: centred at (*at*, *height*), *distance* from the dot."""

    x: float
    y: float
    at: float
    height: float
    distance: float
    box: Box


def front(arms: Sequence[Figures]) -> list[Figures]:
    """Those that ran, and that no other one is both as fast and as accurate as, the fastest first."""
    ran = sorted(
        (f for f in arms if not f.bound),
        key=lambda f: (f.standing.result.seconds, -f.standing.result.accuracy),
    )
    best, found = -1.0, list[Figures]()
    for f in ran:
        if f.standing.result.accuracy > best:
            best = f.standing.result.accuracy
            found.append(f)
    return found


def scatter(arms: Sequence[Figures], width: float) -> Markup:
    results = [f.standing.result for f in arms]
    height = 370.0 if width > NARROW else 340.0
    x = Scale(0.0, 1.12 * max(r.seconds for r in results), LEFT, width - RIGHT)
    lowest = min(r.accuracy_interval[0] for r in results)
    y = Scale(max(0.0, lowest - 0.03), 1.0, height - BOTTOM, TOP)
    dots = [(x(r.seconds), y(r.accuracy)) for r in results]
    said = "; ".join(f"{r.name}: {r.accuracy:.1%}, {r.seconds:.2f} s" for r in results)
    area = Box(LEFT + 2, 0.0, width - 2, height - BOTTOM - 2)
    return svg(
        width,
        height,
        f"Accuracy against seconds a problem. {said}",
        _axes(x, y, width, height),
        _front([(x(f.standing.result.seconds), y(f.standing.result.accuracy)) for f in front(arms)], width - RIGHT),
        *(_whisker(f, x, y) for f in arms),
        *(_mark(f, *dot) for f, dot in zip(arms, dots, strict=True)),
        *(_named(f, place) for f, place in zip(arms, labels([r.name for r in results], dots, area), strict=True)),
    )  # fmt: skip


def _axes(x: Scale, y: Scale, width: float, height: float) -> Markup:
    across = [
        join(
            line(LEFT, y(tick), width - RIGHT, y(tick), "gridline"),
            text(LEFT - 8, y(tick) + 4, f"{tick:.0%}", "axis", "end"),
        )
        for tick in y.ticks(6)
        if tick <= 1.0
    ]  # fmt: skip
    along = [text(x(tick), height - BOTTOM + 18, f"{tick:g}", "axis", "middle") for tick in x.ticks(int(width / 60))]
    name = text(width - RIGHT, height - 4, "seconds a problem", "axis", "end")
    return element("g", *across, *along, name)


def _front(points: Sequence[tuple[float, float]], end: float) -> Markup:
    """A stair: up to the next point, nothing is better than the one before."""
    steps = [f"M{points[0][0]:.1f} {points[0][1]:.1f}", *(f"H{x:.1f}V{y:.1f}" for x, y in points[1:]), f"H{end:.1f}"]
    return element("path", d="".join(steps), class_="front")


def _whisker(f: Figures, x: Scale, y: Scale) -> Markup:
    (low, high), at = f.standing.result.accuracy_interval, x(f.standing.result.seconds)
    return line(at, y(low), at, y(high), "whisker", data_author=author(f))


def author(f: Figures) -> str:
    """Whose colour an arm has: its model's, if it is one alone."""
    return f.arm.policy if f.baseline else "critic" if f.arm.like else "method" if f.method else "bound"


def _mark(f: Figures, x: float, y: float) -> Markup:
    """The shape says it as well as the colour: a disc is the small model, a square the large one."""
    r = f.standing.result
    name = element("title", f"{r.name}: {r.accuracy:.1%}, {r.seconds:.2f} s, n = {r.n}")
    kind = {"class_": "mark", "data_author": author(f)}
    if f.arm.policy == "large" or f.bound:
        turned = f"rotate(45 {x:.1f} {y:.1f})" if f.bound else None
        side = 2 * MARK - 1.0
        return element(
            "rect", name, x=x - side / 2, y=y - side / 2, width=side, height=side, rx=1.5, transform=turned, **kind
        )
    return element("circle", name, cx=x, cy=y, r=MARK, **kind)


def _named(f: Figures, place: Label) -> Markup:
    written = text(place.at, place.height + 4, f.arm.name, "label", "middle", data_author=author(f))
    if place.distance <= DISTANCES[0]:
        return written
    edge = min(max(place.x, place.box.left), place.box.right), min(max(place.y, place.box.top), place.box.bottom)
    return join(line(place.x, place.y, *edge, "leader"), written)


def labels(names: Sequence[str], dots: Sequence[tuple[float, float]], area: Box) -> list[Label]:
    """Find a place for every name, as near to its dot as it covers no other and no dot; the crowded ones first."""
    taken = [Box(x - MARK - 1, y - MARK - 1, x + MARK + 1, y + MARK + 1) for x, y in dots]
    order = sorted(range(len(dots)), key=lambda one: sum(math.dist(dots[one], dot) for dot in dots))
    found: dict[int, Label] = {}
    for one in order:
        places = [_label(names[one], *dots[one], distance, turn) for distance in DISTANCES for turn in DIRECTIONS]
        inside = [place for place in places if place.box.shared(area) >= 0.999 * _size(place.box)] or places[:1]
        found[one] = min(inside, key=lambda place: (sum(map(place.box.shared, taken)), place.distance))
        taken.append(found[one].box)
    return [found[one] for one in range(len(dots))]


def _size(box: Box) -> float:
    return (box.right - box.left) * (box.bottom - box.top)


def _label(name: str, x: float, y: float, distance: float, degrees: float) -> Label:
    along, up = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    wide, high = GLYPH * len(name) / 2, 8.0
    at, height = x + along * (distance + wide), y - up * (distance + high)
    return Label(x, y, at, height, distance, Box(at - wide, height - high, at + wide, height + high))
