"""
The plots of a report as SVG: stacked bars, score histograms, ROC curves, accuracy against time. Pure.

Each function takes figures and a width in pixels, and returns a drawing with a text for screen readers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from .figures import ArmFigures
from .judging import JudgeReport, ScoredVerdict, Separation
from .labels import MARK, Box, Label, overlapping, place_labels
from .marks import author, draw_mark
from .svg import NARROW, Markup, Scale, element, join, line, svg, text

ROW, BAR, HEAD, AXIS = 42.0, 14.0, 16.0, 24.0


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a bar: its *author* gives its colour, and it is hatched if it was *wasted*."""

    name: str
    author: str
    amount: float
    wasted: bool = False


Parts: TypeAlias = Callable[[ArmFigures], Sequence[Part]]


def step_parts(f: ArmFigures) -> list[Part]:
    return [
        Part("small", "small", f.steps.small),
        Part("large", "large", f.steps.large),
        Part("rejected", "small", f.steps.rejected, wasted=True),
        Part("lost bets", "judging", f.steps.lost, wasted=True),
    ]


def token_parts(f: ArmFigures) -> list[Part]:
    small, large = f.spent.get("small"), f.spent.get("large")
    return [
        Part("small, kept", "small", small.kept if small else 0.0),
        Part("large, kept", "large", large.kept if large else 0.0),
        Part("small, discarded", "small", small.discarded if small else 0.0, wasted=True),
        Part("large, discarded", "large", large.discarded if large else 0.0, wasted=True),
    ]


Rows: TypeAlias = Sequence[tuple[str, Sequence[Part], str]]


def stacked(rows: Rows, unit: str, width: float) -> Markup:
    """Draw a stacked bar for each of the *rows*: name, parts, and a suffix of the total."""
    longest = max(sum(part.amount for part in parts) for _, parts, _ in rows) or 1.0
    x = Scale(0.0, longest, 0.0, width)
    bars = [_bar(name, parts, f"{unit}{suffix}", x, ROW * row) for row, (name, parts, suffix) in enumerate(rows)]
    label = "; ".join(f"{name}: {', '.join(_amount(part) for part in parts if part.amount)}" for name, parts, _ in rows)
    return svg(width, ROW * len(rows), f"{unit} of a problem. {label}", *bars)


def _amount(part: Part) -> str:
    return f"{part.name} {part.amount:.1f}"


def _bar(name: str, parts: Sequence[Part], unit: str, x: Scale, top: float) -> Markup:
    total = sum(part.amount for part in parts)
    head = join(text(0.0, top + 13, name, "label"), text(x.end, top + 13, f"{total:.1f} {unit}", "value", "end"))
    drawn, start = list[Markup](), 0.0
    for part in parts:
        if part.amount:
            drawn.append(_part(part, x(start), x(start + part.amount), top + HEAD + 3))
        start += part.amount
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


HEIGHT, CURVE_BOTTOM, NAMES = 190.0, 20.0, 18.0
SIDE, CURVE_LEFT, FOOT = 236.0, 40.0, 36.0


def span(judge: JudgeReport) -> tuple[float, float]:
    """Return the range of the scores: digits, probabilities, or from the lowest to the highest score."""
    scores = [verdict.score for verdict in judge.verdicts]
    low, high = min(scores), max(scores)
    if judge.policy == "specreason":
        return 0.0, 9.0
    return (0.0, 1.0) if low >= 0 and high <= 1 else (min(0.0, low), max(high, low + 1e-9))


def histogram(judge: JudgeReport, width: float = NARROW) -> Markup:
    """
    Draw a histogram of the scores: above the line those of right steps, below it those of wrong ones.

    If right and wrong are unknown, accepted steps are above the line and rejected ones below it.
    """
    verdicts = [verdict for verdict in judge.verdicts if verdict.decided]
    known = any(verdict.right is not None for verdict in verdicts)
    above = [verdict for verdict in verdicts if (verdict.right if known else verdict.accepted)]
    below = [verdict for verdict in verdicts if not (verdict.right if known else verdict.accepted)]
    names = ("right", "wrong") if known else ("accepted", "rejected")
    low, high = span(judge)
    bins = 18 if high == 9.0 else 20
    x = Scale(low, high, 0.0, width)
    middle = (HEIGHT - CURVE_BOTTOM) / 2
    room = middle - NAMES
    drawn = [
        *_columns(above, bins, x, middle, -room, names[0]),
        *_columns(below, bins, x, middle, room, names[1]),
        line(0.0, middle, width, middle, "zero"),
        text(0.0, 12.0, f"{names[0]}, n = {len(above)}", "label", data_author="small"),
        text(0.0, HEIGHT - CURVE_BOTTOM - 2, f"{names[1]}, n = {len(below)}", "label", data_author="wrong"),
        *(text(x(tick), HEIGHT - 4, f"{tick:g}", "axis", _anchor(x(tick), width)) for tick in x.ticks(9)),
    ]  # fmt: skip
    label = f"Scores of {judge.arm}: {len(above)} {names[0]}, {len(below)} {names[1]}"
    return svg(width, HEIGHT, label, *drawn)


def _anchor(x: float, width: float) -> str:
    """Return the text anchor that keeps a number at *x* within the drawing."""
    return "start" if x < 6 else "end" if x > width - 12 else "middle"


def _columns(
    verdicts: Sequence[ScoredVerdict], bins: int, x: Scale, base: float, room: float, name: str
) -> list[Markup]:
    """Draw columns from *base*, upwards if *room* is negative; the tallest column has the height *room*."""
    counts = [0] * bins
    for verdict in verdicts:
        index = int((verdict.score - x.low) / (x.high - x.low) * bins)
        counts[min(bins - 1, max(0, index))] += 1
    width, most = (x.end - x.start) / bins, max([*counts, 1])
    columns: list[Markup] = []
    for index, count in enumerate(counts):
        if count:
            height = max(1.5, abs(room) * count / most)
            low, high = x.low + index * (x.high - x.low) / bins, x.low + (index + 1) * (x.high - x.low) / bins
            title = element("title", f"{name}, {low:.3g} to {high:.3g}: {count}")
            columns.append(
                element(
                    "rect", title, x=x.start + index * width + 0.5, y=base - height if room < 0 else base,
                    width=width - 1, height=height, class_="column", data_author="small" if room < 0 else "wrong",
                )
            )  # fmt: skip
    return columns


def curve(judge: JudgeReport, separation: Separation) -> Markup:
    """Draw the ROC curve, and the point of the method's own verdicts."""
    x = Scale(0.0, 1.0, CURVE_LEFT, SIDE - 6.0)
    y = Scale(0.0, 1.0, SIDE - FOOT, 22.0)
    path = "M" + "L".join(f"{x(wrong):.1f} {y(right):.1f}" for wrong, right in separation.curve)
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
        text(x(1.0) - 6, y(0.0) - 24, f"AUROC {separation.area.value:.3f}", "label halo", "end"),
        text(x(1.0) - 6, y(0.0) - 9, f"[{separation.area.low:.3f}, {separation.area.high:.3f}]", "axis halo", "end"),
    ]
    if separation.passed:
        wrong, right = separation.passed
        title = element("title", f"the method passed {right:.1%} of the right ones and {wrong:.1%} of the wrong ones")
        drawn.append(element("circle", title, cx=x(wrong), cy=y(right), r=5.0, class_="mark", data_author="method"))
    label = f"ROC curve of {judge.arm} by {separation.level}: area {separation.area.value:.3f}"
    return svg(SIDE, SIDE, label, join(*drawn))


LEFT, RIGHT, TOP, BOTTOM = 46.0, 14.0, 50.0, 42.0
HIGHEST = 900.0  # pixels


def front(arms: Sequence[ArmFigures]) -> list[ArmFigures]:
    """Return the Pareto front of the arms that ran, the fastest first."""
    ran = sorted(
        (f for f in arms if not f.bound),
        key=lambda f: (f.standing.result.seconds, -f.standing.result.accuracy),
    )
    best, optimal = -1.0, list[ArmFigures]()
    for f in ran:
        if f.standing.result.accuracy > best:
            best = f.standing.result.accuracy
            optimal.append(f)
    return optimal


def scatter(arms: Sequence[ArmFigures], width: float) -> Markup:
    """
    Draw the accuracy of all arms against their mean seconds, with the Pareto front.

    No label covers another one or a dot: the drawing gets higher until there is room for all.
    """
    height = 370.0 if width > NARROW else 340.0
    drawn, labels = _scatter(arms, width, height)
    while overlapping(labels) and height < HIGHEST:
        height += 40.0
        drawn, labels = _scatter(arms, width, height)
    return drawn


def _scatter(arms: Sequence[ArmFigures], width: float, height: float) -> tuple[Markup, list[Label]]:
    """Draw the plot at this *height*; return it, and its labels."""
    results = [f.standing.result for f in arms]
    x = Scale(0.0, 1.12 * max(r.seconds for r in results), LEFT, width - RIGHT)
    lowest = min(r.accuracy_interval[0] for r in results)
    y = Scale(max(0.0, lowest - 0.03), 1.0, height - BOTTOM, TOP)
    dots = [(x(r.seconds), y(r.accuracy)) for r in results]
    area = Box(LEFT + 2, 0.0, width - 2, height - BOTTOM - 2)
    labels = place_labels([r.name for r in results], dots, area)
    described = "; ".join(f"{r.name}: {r.accuracy:.1%}, {r.seconds:.2f} s" for r in results)
    drawn = svg(
        width,
        height,
        f"Accuracy against seconds per problem. {described}",
        _axes(x, y, width, height),
        _front([(x(f.standing.result.seconds), y(f.standing.result.accuracy)) for f in front(arms)], width - RIGHT),
        *(_whisker(f, x, y) for f in arms),
        *(line(*start, *end, "leader") for start, end in (label.leader for label in labels if label.led)),
        *(_dot(f, *dot) for f, dot in zip(arms, dots, strict=True)),
        *(_label(f, label) for f, label in zip(arms, labels, strict=True)),
    )
    return drawn, labels


def _dot(f: ArmFigures, x: float, y: float) -> Markup:
    r = f.standing.result
    return draw_mark(f, x, y, f"{r.name}: {r.accuracy:.1%}, {r.seconds:.2f} s, n = {r.n}")


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
    name = text(width - RIGHT, height - 4, "seconds per problem", "axis", "end")
    return element("g", *across, *along, name)


def _front(points: Sequence[tuple[float, float]], end: float) -> Markup:
    """Draw the front as a stair through its *points*."""
    steps = [f"M{points[0][0]:.1f} {points[0][1]:.1f}", *(f"H{x:.1f}V{y:.1f}" for x, y in points[1:]), f"H{end:.1f}"]
    return element("path", d="".join(steps), class_="front")


def _whisker(f: ArmFigures, x: Scale, y: Scale) -> Markup:
    (low, high), seconds = f.standing.result.accuracy_interval, x(f.standing.result.seconds)
    return line(seconds, y(low), seconds, y(high), "whisker", data_author=author(f))


def _label(f: ArmFigures, label: Label) -> Markup:
    return text(label.label_x, label.label_y + 4, f.arm.name, "label", "middle", data_author=author(f))


@dataclass(frozen=True, slots=True)
class Curve:
    """An arm under several loads: problems a second, seconds to solve one, and the name of each load."""

    name: str
    dots: Sequence[tuple[float, float, str]]


CURVE_COLOURS = ("#1f5fbf", "#7a8794", "#c2410c", "#15803d", "#7e22ce", "#a16207")
CURVE_STYLE = (
    "svg{background:#fff;font-family:system-ui,sans-serif}.label{font-size:12px;font-weight:600}"
    ".axis{font-size:11px;fill:#555}.gridline{stroke:#ddd}.load-curve{fill:none;stroke-width:2}"
)


THROUGHPUT, LATENCY = "problems a second", "median seconds from a problem's arrival to its answer"


def load_curves(
    curves: Sequence[Curve], width: float, across: str = THROUGHPUT, up: str = LATENCY, what: str = ""
) -> Markup:
    """
    Draw seconds against problems a second, a curve for each arm through its loads; down and right is better.

    *across* and *up* are the captions of the axes, for other quantities, and *what* describes them in words.
    """
    height = 0.62 * width
    dots = [dot for curve in curves for dot in curve.dots]
    x = Scale(0.0, 1.15 * max(rate for rate, _, _ in dots), LEFT, width - RIGHT)
    y = Scale(0.0, 1.1 * max(seconds for _, seconds, _ in dots), height - BOTTOM, TOP)
    ends = [max(curve.dots) for curve in curves]
    area = Box(LEFT + 2, 0.0, width - 2, height - BOTTOM - 2)
    labels = place_labels([curve.name for curve in curves], [(x(rate), y(seconds)) for rate, seconds, _ in ends], area)
    drawn = [
        *(line(LEFT, y(tick), width - RIGHT, y(tick), "gridline") for tick in y.ticks(8)),
        *(text(LEFT - 8, y(tick) + 4, f"{tick:g}", "axis", "end") for tick in y.ticks(8)),
        *(text(x(tick), height - BOTTOM + 18, f"{tick:g}", "axis", "middle") for tick in x.ticks(int(width / 80))),
        text(width - RIGHT, height - 4, across, "axis", "end"),
        text(0.0, 14.0, up, "axis"),
    ]
    for number, (curve, label) in enumerate(zip(curves, labels, strict=True)):
        colour = CURVE_COLOURS[number % len(CURVE_COLOURS)]
        path = "M" + "L".join(f"{x(rate):.1f} {y(seconds):.1f}" for rate, seconds, _ in curve.dots)
        drawn.append(element("path", d=path, class_="load-curve", stroke=colour))
        for rate, seconds, load in curve.dots:
            title = element("title", f"{curve.name}, {load}: {rate:.3g} {across}, {seconds:.2f} ({up})")
            drawn.append(element("circle", title, cx=x(rate), cy=y(seconds), r=MARK - 1, fill=colour))
        drawn.append(text(label.label_x, label.label_y + 4, curve.name, "label", "middle", fill=colour))
    described = "; ".join(
        f"{curve.name}, {load}: {rate:.3g}, {seconds:.2f}" for curve in curves for rate, seconds, load in curve.dots
    )
    heading = what or f"Latency against throughput: {across}, {up}"
    return svg(width, height, f"{heading}. {described}", *drawn)
