# pyright: reportUnknownMemberType=false
"""The charts of load, simulation and soak, as SVG files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stepspec.evals.report.canvas import EDGE, INK, plot, standalone, styled, svg

THROUGHPUT, LATENCY = "problems a second", "median seconds from a problem's arrival to its answer"
COLOURS = ("#1f5fbf", "#7a8794", "#c2410c", "#15803d", "#7e22ce", "#a16207")
MARKERS = "osD^vP"
WIDTH = 780.0


@dataclass(frozen=True, slots=True)
class Curve:
    """An arm under several loads: problems a second, seconds to solve one, and the name of each load."""

    name: str
    dots: Sequence[tuple[float, float, str]]


@styled
def load_curves(curves: Sequence[Curve], across: str = THROUGHPUT, up: str = LATENCY) -> str:
    """Draw seconds against problems a second, a curve for each arm through its loads; *across*, *up*: the axes."""
    figure, axes = plot(WIDTH, 0.62 * WIDTH)
    for number, curve in enumerate(curves):
        rates, seconds = [dot[0] for dot in curve.dots], [dot[1] for dot in curve.dots]
        colour, marker = COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)]
        axes.plot(rates, seconds, color=colour, marker=marker, linewidth=2, label=curve.name, gid="mark")
    axes.set(xlabel=across, ylabel=up)
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.grid(visible=True, axis="y")
    axes.legend(labelcolor=INK)
    described = "; ".join(
        f"{curve.name}, {load}: {rate:.3g}, {seconds:.2f}" for curve in curves for rate, seconds, load in curve.dots
    )
    return standalone(svg(figure, f"Latency against throughput: {across}, {up}. {described}"))


@styled
def panels(
    minutes: Sequence[float], series: Sequence[tuple[str, Sequence[float]]], shaded: Sequence[float], label: str
) -> str:
    """Draw each of the *series* over the *minutes*, one below the other; the *shaded* minutes had faults."""
    figure, first = plot(WIDTH, 150 * len(series) + 20)
    first.set_axis_off()
    grid = figure.subplots(len(series), 1, sharex=True, squeeze=False)
    for (caption, values), axes in zip(series, grid[:, 0], strict=True):
        if shaded:
            axes.axvspan(shaded[0], shaded[-1], color=EDGE, alpha=0.15)
        axes.plot(minutes, values, color=COLOURS[0], linewidth=1.5)
        axes.set_ylim(0, 1.15 * max(*values, 1))
        axes.set_title(caption, loc="left", fontsize=11, color=INK)
        axes.grid(visible=True, axis="y")
    grid[-1, 0].set_xlabel("minutes; shaded: with faults")
    return standalone(svg(figure, label))
