# pyright: reportUnknownMemberType=false
"""
The charts of a report, drawn by matplotlib: intervals, accuracy against time.

Each function returns a drawing with a text for screen readers. Arms differ in their marks, not only
in their colours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from ..arms import LARGE, SMALL
from ..results import Interval
from .canvas import CARD, EDGE, INK, PLACEHOLDERS, WIDTH, Markup, plot, styled, svg
from .figures import ArmFigures, by_time

METHOD_MARKERS = "oD^vP*Xph<>"
"""Markers of methods and controls. The large model alone has a square, the small one a disc."""


def front(arms: Sequence[ArmFigures]) -> list[ArmFigures]:
    """Return the Pareto front of the arms that ran, the fastest first."""
    ran = [f for f in arms if not f.bound]
    best = -1.0
    optimal: list[ArmFigures] = []
    for f in sorted(ran, key=lambda f: (f.result.seconds, -f.result.accuracy)):
        if f.result.accuracy > best:
            best = f.result.accuracy
            optimal.append(f)
    return optimal


def colour_of(f: ArmFigures) -> str:
    """Return the colour of an arm: a model alone has its own, and so have all controls."""
    if f.bound:
        return EDGE
    if f.method:
        return INK
    if f.arm.like:
        return PLACEHOLDERS["critic"]
    return PLACEHOLDERS["small" if f.arm.name == SMALL.name else "large"]


def shapes(arms: Sequence[ArmFigures]) -> dict[str, str]:
    """Return the marker of each arm by its name: no two methods have the same one, up to eleven."""
    own = cycle(METHOD_MARKERS)
    markers: dict[str, str] = {}
    for f in arms:
        if f.bound:
            markers[f.arm.name] = "d"
        elif f.alone:
            markers[f.arm.name] = "o" if f.arm.name == SMALL.name else "s"
        else:
            markers[f.arm.name] = next(own)
    return markers


@styled
def scatter(arms: Sequence[ArmFigures]) -> Markup:
    """Draw the accuracy of all arms against their mean seconds, with the front and a legend."""
    figure, axes = plot(WIDTH, 260 + 17 * -(-len(arms) // 2))
    longest = 1.12 * max(f.result.seconds for f in arms)
    optimal = [f.result for f in front(arms)]
    axes.step(
        [*(r.seconds for r in optimal), longest],
        [*(r.accuracy for r in optimal), optimal[-1].accuracy],
        where="post",
        color=EDGE,
        linewidth=1.5,
    )
    markers = shapes(arms)
    for f in arms:
        _point(axes, f, markers[f.arm.name])
    lowest = min(f.result.accuracy_interval[0] for f in arms)
    axes.set(xlim=(0, longest), ylim=(max(0.0, lowest - 0.03), 1.04), xlabel="seconds per problem")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    axes.grid(visible=True, axis="y")
    figure.legend(
        loc="outside lower left", ncols=2, labelcolor=INK, handlelength=1.0, labelspacing=0.35
    )
    described = "; ".join(
        f"{f.arm.name}: {f.result.accuracy:.1%}, {f.result.seconds:.2f} s" for f in arms
    )
    return svg(figure, f"Accuracy against seconds per problem. {described}")


def _point(axes: Axes, f: ArmFigures, marker: str) -> None:
    """Draw one arm with the interval of its accuracy. A bound has a hollow mark."""
    r = f.result
    colour = colour_of(f)
    face, edge = (CARD, EDGE) if f.bound else (colour, CARD)
    axes.plot([r.seconds] * 2, r.accuracy_interval, color=colour, linewidth=1.5, alpha=0.45)
    axes.plot(r.seconds, r.accuracy, marker, color=face, mec=edge, ms=11, gid="mark", label=r.name)


@dataclass(frozen=True, slots=True)
class IntervalRow:
    """One row of a chart of intervals."""

    arm: ArmFigures
    """The arm that the row is about."""
    interval: Interval
    """What is drawn."""
    figures: str
    """The interval in figures, at the right of the row."""


def speed_chart(arms: Sequence[ArmFigures], baseline: str = LARGE.name) -> Markup:
    """Draw the time of every arm that ran, divided by that of the *baseline*, the fastest first."""
    rows = [IntervalRow(f, f.result.ratio_estimate, _ratio(f, baseline)) for f in by_time(arms)]
    longest = max(1.0, *(row.interval.high for row in rows))
    about = f"Time of a problem, divided by that of {baseline}."
    return _intervals(rows, (0.0, 1.04 * longest), {1.0: baseline}, about)


def _ratio(f: ArmFigures, baseline: str) -> str:
    return "1.00" if f.arm.name == baseline else f"{f.result.ratio_estimate:.2f}"


def differences(arms: Sequence[ArmFigures], max_loss: float, baseline: str = LARGE.name) -> Markup:
    """
    Draw the differences in accuracy from the *baseline* in percentage points.

    A dashed line marks the acceptable loss, *max_loss*. The scale is that of the methods. An arrow
    marks another arm that is outside of the scale.
    """
    compared = [(f, f.standing.difference.points) for f in by_time(arms) if f.arm.name != baseline]
    rows = [IntervalRow(f, interval, f"{interval:+.1f}") for f, interval in compared]
    scaled = [row.interval for row in rows if row.arm.method] or [row.interval for row in rows]
    low = min(-150 * max_loss, *(interval.low for interval in scaled))
    high = max(100 * max_loss, *(interval.high for interval in scaled))
    pad = 0.04 * (high - low)
    references = {-100 * max_loss: f"-{100 * max_loss:g}", 0.0: "0"}
    about = f"Difference in accuracy from {baseline}, in points."
    return _intervals(rows, (low - pad, high + pad), references, about)


@styled
def _intervals(
    rows: Sequence[IntervalRow],
    scale: tuple[float, float],
    references: Mapping[float, str],
    about: str,
) -> Markup:
    """
    Draw a row for each arm: its name, its mark with the interval, and both in figures.

    *references* are vertical lines with their names. A line at a negative value is a limit.
    """
    figure, axes = plot(WIDTH, 28 * len(rows) + 44)
    names = [row.arm.arm.name for row in rows]
    markers = shapes([row.arm for row in rows])
    for place, row in enumerate(rows):
        _interval(axes, place, row, scale, markers[names[place]])
    for value, name in references.items():
        style, side = ("--", "right") if value < 0 else ("-", "left")
        colour = PLACEHOLDERS["wrong"] if value < 0 else EDGE
        axes.axvline(value, color=colour, linestyle=style, linewidth=1.5, zorder=0)
        above = ("data", "axes fraction")
        axes.annotate(name, (value, 1), (0, 3), above, "offset points", ha=side)
    axes.set(xlim=scale, ylim=(len(rows) - 0.5, -0.5))
    axes.set_yticks(range(len(rows)), names)
    for tick in axes.get_yticklabels():
        tick.set(color=INK, gid="label")
    figures = axes.secondary_yaxis("right")
    figures.set_yticks(range(len(rows)), [row.figures for row in rows])
    figures.spines[:].set_visible(False)
    axes.spines["left"].set_visible(False)
    axes.xaxis.set_major_locator(MaxNLocator(7))
    axes.grid(visible=True, axis="x")
    described = "; ".join(f"{row.arm.arm.name}: {row.figures}" for row in rows)
    return svg(figure, f"{about} {described}")


def _interval(
    axes: Axes, place: int, row: IntervalRow, scale: tuple[float, float], marker: str
) -> None:
    interval = row.interval
    colour = colour_of(row.arm)
    axes.plot((interval.low, interval.high), (place, place), color=colour, linewidth=2)
    if interval.low < scale[0]:
        axes.plot(scale[0], place, "<", color=colour, clip_on=False)
    if interval.high > scale[1]:
        axes.plot(scale[1], place, ">", color=colour, clip_on=False)
    axes.plot(interval.value, place, marker, color=colour, mec=CARD, ms=9, gid="mark")
