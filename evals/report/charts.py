# pyright: reportUnknownMemberType=false
"""
The charts of a report, drawn by matplotlib: intervals, accuracy against time.

Each function returns a drawing with a text for screen readers. Nothing is told
by colour alone: models and methods differ in their marks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from ..arms import LARGE
from ..results import Interval
from .canvas import CARD, EDGE, INK, PLACEHOLDERS, WIDTH, Markup, plot, styled, svg
from .figures import ArmFigures, by_time

COLOURS = {**PLACEHOLDERS, "method": INK, "bound": EDGE}
SHAPES = "oD^vP*Xph<>"  # of methods; a square is the large model's, a disc the small one's


def author(f: ArmFigures) -> str:
    """Return the name of the arm's colour: a model alone has its own."""
    if f.alone:
        return "small" if f.arm.policy == "small" else "large"
    return "critic" if f.arm.like else "method" if f.method else "bound"


def front(arms: Sequence[ArmFigures]) -> list[ArmFigures]:
    """Return the Pareto front of the arms that ran, the fastest first."""
    ran = sorted(
        (f for f in arms if not f.bound), key=lambda f: (f.result.seconds, -f.result.accuracy)
    )
    best = -1.0
    optimal = list[ArmFigures]()
    for f in ran:
        if f.result.accuracy > best:
            best = f.result.accuracy
            optimal.append(f)
    return optimal


def shapes(arms: Sequence[ArmFigures]) -> dict[str, str]:
    """Return the marker of each arm by its name: no two methods have the same one, up to eleven."""
    methods = [f.arm.name for f in arms if f.method or f.arm.like]
    own = {name: SHAPES[place % len(SHAPES)] for place, name in enumerate(methods)}
    return {
        f.arm.name: own.get(
            f.arm.name, "s" if f.arm.policy in ("large", "plain") else "d" if f.bound else "o"
        )
        for f in arms
    }


@styled
def scatter(arms: Sequence[ArmFigures]) -> Markup:
    """
    Draw the accuracy of all arms against their mean seconds, with the Pareto front and a legend of
    the marks.
    """
    figure, axes = plot(WIDTH, 260 + 17 * -(-len(arms) // 2))
    markers = shapes(arms)
    longest = 1.12 * max(f.result.seconds for f in arms)
    steps = [f.result for f in front(arms)]
    axes.step(
        [*(r.seconds for r in steps), longest],
        [*(r.accuracy for r in steps), steps[-1].accuracy],
        where="post",
        color=EDGE,
        linewidth=1.5,
    )
    for f in arms:
        r = f.result
        colour = COLOURS[author(f)]
        axes.plot([r.seconds] * 2, r.accuracy_interval, color=colour, linewidth=1.5, alpha=0.45)
        face = CARD if f.bound else colour
        marker = markers[f.arm.name]
        edge = EDGE if f.bound else CARD
        axes.plot(
            r.seconds, r.accuracy, marker, color=face, mec=edge, ms=11, gid="mark", label=r.name
        )
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


@dataclass(frozen=True, slots=True)
class Row:
    """
    The *interval* of an arm, as the plot draws it, and as *figures* in words; *exact* values have
    no interval.
    """

    arm: ArmFigures
    interval: Interval
    figures: str
    exact: bool = False


def speed_chart(arms: Sequence[ArmFigures], baseline: str = LARGE.name) -> Markup:
    """Draw the time of every arm that ran, divided by that of the *baseline*, the fastest first."""
    rows: list[Row] = []
    for f in by_time(arms):
        r = f.result
        itself = f.arm.name == baseline
        ratio = Interval(r.ratio, *r.ratio_interval)
        rows.append(Row(f, ratio, "1.00" if itself else f"{ratio:.2f}", exact=itself))
    longest = max(1.0, *(row.interval.high for row in rows))
    label = "; ".join(f"{row.arm.arm.name}: {row.figures}" for row in rows)
    about = f"Time of a problem, divided by that of {baseline}. {label}"
    return _intervals(rows, (0.0, 1.04 * longest), [(1.0, baseline, "-")], about, bars=True)


def differences(arms: Sequence[ArmFigures], max_loss: float, baseline: str = LARGE.name) -> Markup:
    """
    Draw the differences in accuracy from the *baseline*, in percentage points, with their
    intervals.

    A dashed line marks the acceptable loss, *max_loss*. The scale is that of the methods: an arrow
    marks a model alone or a control that is outside of it.
    """
    compared = [(f, f.standing.difference.points) for f in by_time(arms) if f.arm.name != baseline]
    rows = [Row(f, difference, f"{difference:+.1f}") for f, difference in compared]
    shown = [row.interval for row in rows if row.arm.method] or [row.interval for row in rows]
    low = min(-150 * max_loss, *(interval.low for interval in shown))
    high = max(100 * max_loss, *(interval.high for interval in shown))
    pad = 0.04 * (high - low)
    label = "; ".join(f"{row.arm.arm.name}: {row.figures} points" for row in rows)
    references = [(-100 * max_loss, f"-{100 * max_loss:g}", "--"), (0.0, "0", "-")]
    about = f"Difference in accuracy from {baseline}. {label}"
    return _intervals(rows, (low - pad, high + pad), references, about)


# a value to compare with, its name, its style of line
Reference: TypeAlias = tuple[float, str, str]


@styled
def _intervals(
    rows: Sequence[Row],
    scale: tuple[float, float],
    references: Sequence[Reference],
    label: str,
    *,
    bars: bool = False,
) -> Markup:
    """Draw a row for each arm: its name, its mark with the interval, and both in figures."""
    figure, axes = plot(WIDTH, 28 * len(rows) + 44)
    markers = shapes([row.arm for row in rows])
    for place, row in enumerate(rows):
        _interval(axes, place, row, scale, markers[row.arm.arm.name], bar=bars)
    for value, name, style in references:
        side = "center" if len(references) == 1 else "right" if value < 0 else "left"
        axes.axvline(
            value,
            color=COLOURS["wrong"] if style == "--" else EDGE,
            linestyle=style,
            linewidth=1.5,
            zorder=0,
        )
        axes.annotate(
            name,
            (value, 1),
            xycoords=("data", "axes fraction"),
            xytext=(0, 3),
            textcoords="offset points",
            ha=side,
        )
    axes.set(xlim=scale, ylim=(len(rows) - 0.5, -0.5))
    axes.set_yticks(range(len(rows)), [row.arm.arm.name for row in rows])
    for tick in axes.get_yticklabels():
        tick.set(color=INK, gid="label")
    figures = axes.secondary_yaxis("right")
    figures.set_yticks(range(len(rows)), [row.figures for row in rows])
    figures.spines[:].set_visible(False)
    axes.spines["left"].set_visible(False)
    axes.xaxis.set_major_locator(MaxNLocator(7))
    axes.grid(visible=True, axis="x")
    return svg(figure, label)


def _interval(
    axes: Axes, place: int, row: Row, scale: tuple[float, float], marker: str, *, bar: bool
) -> None:
    interval = row.interval
    kind = author(row.arm)
    colour = COLOURS[kind]
    if bar:
        axes.barh(place, interval.value, 0.4, color=colour, alpha=0.14)
    if not row.exact:
        axes.plot((interval.low, interval.high), (place, place), color=colour, linewidth=2)
    for outside, edge, arrow in (
        (interval.low < scale[0], scale[0], "<"),
        (interval.high > scale[1], scale[1], ">"),
    ):
        if outside:
            axes.plot(edge, place, arrow, color=colour, clip_on=False)
    axes.plot(interval.value, place, marker, color=colour, mec=CARD, ms=9, gid="mark")
