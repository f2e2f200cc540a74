# pyright: reportUnknownMemberType=false
"""
The charts of a report, drawn by matplotlib: times, and accuracy against time.

Each function returns a drawing with a text for screen readers. Arms differ in their marks, not only
in their colours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from ..arms import LARGE
from .canvas import CARD, EDGE, INK, PLACEHOLDERS, WIDTH, Markup, plot, styled, svg
from .figures import ArmFigures, ArmKind, by_time

MARKERS: Mapping[ArmKind, str] = {"bound": "d", "small": "o", "large": "s"}
METHOD_MARKERS = "oD^vP*Xph<>"
"""Markers of methods and controls."""
COLOURS: Mapping[ArmKind, str] = {
    "bound": EDGE,
    "small": PLACEHOLDERS["small"],
    "large": PLACEHOLDERS["large"],
    "control": PLACEHOLDERS["critic"],
    "method": INK,
}


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


def shapes(arms: Sequence[ArmFigures]) -> dict[str, str]:
    """Return the marker of each arm by its name: no two methods have the same one, up to eleven."""
    own = cycle(METHOD_MARKERS)
    return {f.arm.name: MARKERS.get(f.kind) or next(own) for f in arms}


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
        loc="outside lower left",
        ncols=2,
        labelcolor=INK,
        handlelength=1.0,
        labelspacing=0.35,
    )
    described = "; ".join(
        f"{f.arm.name}: {f.result.accuracy:.1%}, {f.result.seconds:.2f} s" for f in arms
    )
    return svg(figure, f"Accuracy against seconds per problem. {described}")


def _point(axes: Axes, f: ArmFigures, marker: str) -> None:
    """Draw one arm with the interval of its accuracy. A bound has a hollow mark."""
    r = f.result
    colour = COLOURS[f.kind]
    face, edge = (CARD, EDGE) if f.bound else (colour, CARD)
    axes.plot([r.seconds] * 2, r.accuracy_interval, color=colour, linewidth=1.5, alpha=0.45)
    axes.plot(r.seconds, r.accuracy, marker, color=face, mec=edge, ms=11, gid="mark", label=r.name)


@styled
def speed_chart(arms: Sequence[ArmFigures], baseline: str = LARGE.name) -> Markup:
    """
    Draw the time of every arm that ran, divided by that of the *baseline*, the fastest first.

    A row has the name of the arm, its mark with the interval, and both in figures.
    """
    ran = by_time(arms)
    names = [f.arm.name for f in ran]
    ratios = [f.result.ratio_estimate for f in ran]
    words = [
        "1.00" if name == baseline else f"{ratio:.2f}"
        for name, ratio in zip(names, ratios, strict=True)
    ]
    figure, axes = plot(WIDTH, 28 * len(ran) + 44)
    markers = shapes(ran)
    for place, (f, ratio) in enumerate(zip(ran, ratios, strict=True)):
        colour = COLOURS[f.kind]
        axes.plot((ratio.low, ratio.high), (place, place), color=colour, linewidth=2)
        marker = markers[f.arm.name]
        axes.plot(ratio.value, place, marker, color=colour, mec=CARD, ms=9, gid="mark")
    axes.axvline(1.0, color=EDGE, linewidth=1.5, zorder=0)
    above = ("data", "axes fraction")
    axes.annotate(baseline, (1.0, 1), (0, 3), above, "offset points", ha="center")
    longest = max(1.0, *(ratio.high for ratio in ratios))
    axes.set(xlim=(0.0, 1.04 * longest), ylim=(len(ran) - 0.5, -0.5))
    axes.set_yticks(range(len(ran)), names)
    for tick in axes.get_yticklabels():
        tick.set(color=INK, gid="label")
    figures = axes.secondary_yaxis("right")
    figures.set_yticks(range(len(ran)), words)
    figures.spines[:].set_visible(False)
    axes.spines["left"].set_visible(False)
    axes.xaxis.set_major_locator(MaxNLocator(7))
    axes.grid(visible=True, axis="x")
    described = "; ".join(f"{name}: {text}" for name, text in zip(names, words, strict=True))
    return svg(figure, f"Time of a problem, divided by that of {baseline}. {described}")
