# pyright: reportUnknownMemberType=false
"""The charts of the simulation, as SVG files."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

COLOURS = ("#1f5fbf", "#7a8794", "#c2410c", "#15803d", "#7e22ce", "#a16207")
MARKERS = "osD^vP"
WIDTH = 780.0
DPI = 72  # A pixel is a point, the unit of a drawing.


@dataclass(frozen=True, slots=True)
class Curve:
    """An arm under several loads: the two figures and the name of each."""

    name: str
    dots: Sequence[tuple[float, float, str]]


def load_curves(curves: Sequence[Curve], across: str, up: str) -> str:
    """Draw a curve for each arm through its loads; *across* and *up* name the axes."""
    figure = Figure(figsize=(WIDTH / DPI, 0.62 * WIDTH / DPI), dpi=DPI, layout="constrained")
    FigureCanvasSVG(figure)
    axes = figure.add_subplot()
    for number, curve in enumerate(curves):
        rates = [dot[0] for dot in curve.dots]
        seconds = [dot[1] for dot in curve.dots]
        colour = COLOURS[number % len(COLOURS)]
        marker = MARKERS[number % len(MARKERS)]
        axes.plot(
            rates,
            seconds,
            color=colour,
            marker=marker,
            linewidth=2,
            label=curve.name,
        )
    axes.set(xlabel=across, ylabel=up)
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.grid(visible=True, axis="y")
    axes.legend(frameon=False)
    file = io.StringIO()
    figure.savefig(file, format="svg")
    return file.getvalue()
