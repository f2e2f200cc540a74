# pyright: reportUnknownMemberType=false
"""
The charts of a report, drawn by matplotlib: times, and accuracy against time.

Each function returns a drawing with a text for screen readers. Arms differ in their marks, not only
in their colours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle

from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from ..arms import LARGE
from ..results import ArmKind, Result, by_time
from .canvas import CARD, EDGE, INK, PLACEHOLDERS, WIDTH, plot, styled, svg

MARKERS: Mapping[ArmKind, str] = {"bound": "d", "small": "o", "large": "s"}
METHOD_MARKERS = "oD^vP*Xph<>"
"""Markers of methods."""
COLOURS: Mapping[ArmKind, str] = {
    "bound": EDGE,
    "small": PLACEHOLDERS["small"],
    "large": PLACEHOLDERS["large"],
    "method": INK,
}


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
    """Return the marker of each arm by its name: no two methods have the same one, up to eleven."""
    own = cycle(METHOD_MARKERS)
    return {arm.name: MARKERS.get(arm.kind) or next(own) for arm in arms}


@styled
def scatter(arms: Sequence[Result]) -> Markup:
    """Draw the accuracy of all arms against their mean seconds, with the front and a legend."""
    figure, axes = plot(WIDTH, 260 + 17 * -(-len(arms) // 2))
    longest = 1.12 * max(arm.seconds for arm in arms)
    optimal = front(arms)
    axes.step(
        [*(arm.seconds for arm in optimal), longest],
        [*(arm.accuracy.value for arm in optimal), optimal[-1].accuracy.value],
        where="post",
        color=EDGE,
        linewidth=1.5,
    )
    markers = shapes(arms)
    for arm in arms:
        _point(axes, arm, markers[arm.name])
    lowest = min(arm.accuracy.low for arm in arms)
    axes.set(
        xlim=(0, longest),
        ylim=(max(0.0, lowest - 0.03), 1.04),
        xlabel="seconds per problem",
    )
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    axes.grid(visible=True, axis="y")
    figure.legend(
        loc="outside lower left",
        ncols=2,
        labelcolor=INK,
        handlelength=1.0,
        labelspacing=0.35,
    )
    described = "; ".join(
        f"{arm.name}: {arm.accuracy.value:.1%}, {arm.seconds:.2f} s" for arm in arms
    )
    return svg(figure, f"Accuracy against seconds per problem. {described}")


def _point(axes: Axes, arm: Result, marker: str) -> None:
    """Draw one arm with the interval of its accuracy. A bound has a hollow mark."""
    colour = COLOURS[arm.kind]
    face, edge = (CARD, EDGE) if arm.kind == "bound" else (colour, CARD)
    ends = (arm.accuracy.low, arm.accuracy.high)
    axes.plot([arm.seconds] * 2, ends, color=colour, linewidth=1.5, alpha=0.45)
    place = (arm.seconds, arm.accuracy.value)
    axes.plot(*place, marker, color=face, mec=edge, ms=11, gid="mark", label=arm.name)


@styled
def speed_chart(arms: Sequence[Result], baseline: str = LARGE.name) -> Markup:
    """
    Draw the time of every arm that ran, divided by that of the *baseline*, the fastest first.

    A row has the name of the arm, its mark with the interval, and both in figures.
    """
    ran = by_time(arms)
    words = ["1.00" if arm.name == baseline else f"{arm.ratio:.2f}" for arm in ran]
    figure, axes = plot(WIDTH, 28 * len(ran) + 44)
    markers = shapes(ran)
    for place, arm in enumerate(ran):
        colour = COLOURS[arm.kind]
        axes.plot(
            (arm.ratio.low, arm.ratio.high),
            (place, place),
            color=colour,
            linewidth=2,
        )
        marker = markers[arm.name]
        axes.plot(
            arm.ratio.value,
            place,
            marker,
            color=colour,
            mec=CARD,
            ms=9,
            gid="mark",
        )
    axes.axvline(1.0, color=EDGE, linewidth=1.5, zorder=0)
    above = ("data", "axes fraction")
    axes.annotate(baseline, (1.0, 1), (0, 3), above, "offset points", ha="center")
    longest = max(1.0, *(arm.ratio.high for arm in ran))
    axes.set(xlim=(0.0, 1.04 * longest), ylim=(len(ran) - 0.5, -0.5))
    axes.set_yticks(range(len(ran)), [arm.name for arm in ran])
    for tick in axes.get_yticklabels():
        tick.set(color=INK, gid="label")
    figures = axes.secondary_yaxis("right")
    figures.set_yticks(range(len(ran)), words)
    figures.spines[:].set_visible(False)
    axes.spines["left"].set_visible(False)
    axes.xaxis.set_major_locator(MaxNLocator(7))
    axes.grid(visible=True, axis="x")
    described = "; ".join(f"{arm.name}: {text}" for arm, text in zip(ran, words, strict=True))
    return svg(figure, f"Time of a problem, divided by that of {baseline}. {described}")
