"""Bars: what a problem is made of, arm by arm, and the differences from the large model alone. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from .figures import Figures
from .judging import Graded, Judge, Separation
from .svg import GLYPH, NARROW, Markup, Scale, element, join, line, svg, text

ROW, BAR, HEAD, AXIS = 42.0, 14.0, 16.0, 24.0


@dataclass(frozen=True, slots=True)
class Part:
    """A stretch of a bar: whose it is, whether it was for nothing, and how long."""

    name: str
    author: str
    amount: float
    wasted: bool = False


Parts: TypeAlias = Callable[[Figures], Sequence[Part]]


def steps(f: Figures) -> list[Part]:
    return [
        Part("small", "small", f.steps.small),
        Part("large", "large", f.steps.large),
        Part("rejected", "small", f.steps.rejected, wasted=True),
        Part("lost bets", "judging", f.steps.lost, wasted=True),
    ]


def tokens(f: Figures) -> list[Part]:
    small, large = f.spent.get("small"), f.spent.get("large")
    return [
        Part("small, kept", "small", small.kept if small else 0.0),
        Part("large, kept", "large", large.kept if large else 0.0),
        Part("small, discarded", "small", small.discarded if small else 0.0, wasted=True),
        Part("large, discarded", "large", large.discarded if large else 0.0, wasted=True),
    ]


Rows: TypeAlias = Sequence[tuple[str, Sequence[Part], str]]


def stacked(rows: Rows, unit: str, width: float) -> Markup:
    """A bar of parts for each of the *rows*, its name above it and what else is to be said of it at the end."""
    longest = max(sum(part.amount for part in parts) for _, parts, _ in rows) or 1.0
    x = Scale(0.0, longest, 0.0, width)
    drawn = [_bar(name, parts, f"{unit}{more}", x, ROW * at) for at, (name, parts, more) in enumerate(rows)]
    said = "; ".join(f"{name}: {', '.join(_amount(part) for part in parts if part.amount)}" for name, parts, _ in rows)
    return svg(width, ROW * len(rows), f"{unit} of a problem. {said}", *drawn)


def _amount(part: Part) -> str:
    return f"{part.name} {part.amount:.1f}"


def _bar(name: str, parts: Sequence[Part], unit: str, x: Scale, top: float) -> Markup:
    total = sum(part.amount for part in parts)
    head = join(text(0.0, top + 13, name, "label"), text(x.end, top + 13, f"{total:.1f} {unit}", "value", "end"))
    drawn, at = list[Markup](), 0.0
    for part in parts:
        if part.amount:
            drawn.append(_part(part, x(at), x(at + part.amount), top + HEAD + 3))
        at += part.amount
    return element("g", head, *drawn)


def _part(part: Part, left: float, right: float, top: float) -> Markup:
    return element(
        "rect",
        element("title", _amount(part)),
        x=left,
        y=top,
        width=max(1.0, right - left - 1),
        height=BAR,
        rx=2,
        class_="part",
        data_author=part.author,
        data_wasted=part.wasted,
    )


def differences(arms: Sequence[Figures], width: float) -> Markup:
    """Points of accuracy won or lost against the large model alone, with their intervals."""
    shown = [f.standing for f in arms]
    low = min(0.0, *(s.difference.low for s in shown)) * 100
    high = max(0.0, *(s.difference.high for s in shown)) * 100
    x = Scale(low - 1, high + 1, 6.0, width - 6.0)
    bottom = ROW * len(shown)
    ticks = x.ticks(int(width / 70))
    axis = [text(x(tick), bottom + 16, f"{tick:+g}" if tick else "0", "axis", "middle") for tick in ticks]
    rows: list[Markup] = []
    for at, (f, s) in enumerate(zip(arms, shown, strict=True)):
        value, least, most = (100 * one for one in (s.difference.value, s.difference.low, s.difference.high))
        y = ROW * at + HEAD + 12
        rows += [line(x(tick), y - 8, x(tick), y + 10, "gridline" if tick else "zero") for tick in {*ticks, 0.0}]
        rows.append(text(0.0, ROW * at + 13, f.arm.name, "label"))
        rows.append(text(width, ROW * at + 13, f"{value:+.1f} [{least:+.1f}, {most:+.1f}]", "value", "end"))
        rows.append(line(x(least), y, x(most), y, "span-line"))
        rows.append(element("circle", cx=x(value), cy=y, r=4.5, class_="mark", data_author="method"))
    said = "; ".join(f"{s.result.name}: {100 * s.difference.value:+.1f} points" for s in shown)
    return svg(width, bottom + AXIS, f"Accuracy against large alone. {said}", *axis, *rows)


HEIGHT, CURVE_BOTTOM, NAMES = 190.0, 20.0, 18.0
SIDE, CURVE_LEFT, FOOT = 236.0, 40.0, 36.0


def span(judge: Judge) -> tuple[float, float]:
    """The range of the scores: of digits, of probabilities, or what there is."""
    scores = [one.score for one in judge.graded]
    low, high = min(scores), max(scores)
    if judge.policy == "specreason":
        return 0.0, 9.0
    return (0.0, 1.0) if low >= 0 and high <= 1 else (min(0.0, low), max(high, low + 1e-9))


def histogram(judge: Judge, width: float = NARROW) -> Markup:
    """
    Shares of the scores in equal bins: above the line those that are right, below it those that are wrong.

    Where that is not known, those that were accepted and those that were rejected.
    """
    graded = [one for one in judge.graded if one.decided]
    known = any(one.right is not None for one in graded)
    above = [one for one in graded if (one.right if known else one.accepted)]
    below = [one for one in graded if not (one.right if known else one.accepted)]
    names = ("right", "wrong") if known else ("accepted", "rejected")
    low, high = span(judge)
    bins = 18 if high == 9.0 else 20
    x = Scale(low, high, 0.0, width)
    middle = (HEIGHT - CURVE_BOTTOM) / 2
    room = middle - NAMES
    drawn = [
        *_columns(above, bins, x, middle, -room, f"{names[0]}"),
        *_columns(below, bins, x, middle, room, f"{names[1]}"),
        line(0.0, middle, width, middle, "zero"),
        text(0.0, 12.0, f"{names[0]}, n = {len(above)}", "label", data_author="small"),
        text(0.0, HEIGHT - CURVE_BOTTOM - 2, f"{names[1]}, n = {len(below)}", "label", data_author="wrong"),
        *(text(x(tick), HEIGHT - 4, f"{tick:g}", "axis", _anchor(x(tick), width)) for tick in x.ticks(9)),
    ]  # fmt: skip
    said = f"Scores of {judge.arm}: {len(above)} {names[0]}, {len(below)} {names[1]}"
    return svg(width, HEIGHT, said, *drawn)


def _anchor(x: float, width: float) -> str:
    """How a number at *x* is kept within the drawing."""
    return "start" if x < 6 else "end" if x > width - 12 else "middle"


def _columns(graded: Sequence[Graded], bins: int, x: Scale, base: float, room: float, name: str) -> list[Markup]:
    """Bars from *base*; the tallest takes all the *room*, which points up if it is negative."""
    counts = [0] * bins
    for one in graded:
        place = int((one.score - x.low) / (x.high - x.low) * bins)
        counts[min(bins - 1, max(0, place))] += 1
    wide, most = (x.end - x.start) / bins, max([*counts, 1])
    found: list[Markup] = []
    for at, count in enumerate(counts):
        if count:
            tall = max(1.5, abs(room) * count / most)
            edges = x.low + at * (x.high - x.low) / bins, x.low + (at + 1) * (x.high - x.low) / bins
            told = element("title", f"{name}, {edges[0]:.3g} to {edges[1]:.3g}: {count}")
            found.append(
                element(
                    "rect", told, x=x.start + at * wide + 0.5, y=base - tall if room < 0 else base, width=wide - 1,
                    height=tall, class_="column", data_author="small" if room < 0 else "wrong",
                )
            )  # fmt: skip
    return found


def curve(judge: Judge, found: Separation) -> Markup:
    """The receiver operating curve, and the point at which the method worked."""
    x = Scale(0.0, 1.0, CURVE_LEFT, SIDE - 6.0)
    y = Scale(0.0, 1.0, SIDE - FOOT, 22.0)
    path = "M" + "L".join(f"{x(wrong):.1f} {y(right):.1f}" for wrong, right in found.curve)
    drawn = [
        *(line(x(0.0), y(tick), x(1.0), y(tick), "gridline") for tick in (0.0, 0.5, 1.0)),
        *(line(x(tick), y(0.0), x(tick), y(1.0), "gridline") for tick in (0.0, 0.5, 1.0)),
        line(x(0.0), y(0.0), x(1.0), y(1.0), "chance"),
        element("path", d=path, class_="curve"),
        *(text(CURVE_LEFT - 6, y(tick) + 4, f"{tick:.0%}", "axis", "end") for tick in (0.0, 0.5, 1.0)),
        text(x(0.0), SIDE - FOOT + 16, "0%", "axis", "middle"),
        text(x(0.5), SIDE - FOOT + 16, "50%", "axis", "middle"),
        text(x(1.0), SIDE - FOOT + 16, "100%", "axis", "end"),
        text(x(1.0), SIDE - 4, "wrong ones passed", "axis", "end"),
        text(0.0, 11.0, "right ones passed", "axis"),
        text(x(1.0) - 6, y(0.0) - 24, f"AUROC {found.area.value:.3f}", "label halo", "end"),
        text(x(1.0) - 6, y(0.0) - 9, f"[{found.area.low:.3f}, {found.area.high:.3f}]", "axis halo", "end"),
    ]
    if found.passed:
        wrong, right = found.passed
        told = element("title", f"the method passed {right:.1%} of the right ones and {wrong:.1%} of the wrong ones")
        drawn.append(element("circle", told, cx=x(wrong), cy=y(right), r=5.0, class_="mark", data_author="method"))
    said = f"Receiver operating curve of {judge.arm} by {found.level}: area {found.area.value:.3f}"
    return svg(SIDE, SIDE, said, join(*drawn))


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
