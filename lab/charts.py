# pyright: reportUnknownMemberType=false
"""The charts of the simulation, as SVG files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from stepspec.evals.report.canvas import INK, VARIABLES, plot, styled, svg

COLOURS = ("#1f5fbf", "#7a8794", "#c2410c", "#15803d", "#7e22ce", "#a16207")
MARKERS = "osD^vP"
WIDTH = 780.0


@dataclass(frozen=True, slots=True)
class Curve:
    """An arm under several loads: the two figures and the name of each."""

    name: str
    dots: Sequence[tuple[float, float, str]]


@styled
def load_curves(curves: Sequence[Curve], across: str, up: str) -> str:
    """Draw a curve for each arm through its loads; *across* and *up* name the axes."""
    figure, axes = plot(WIDTH, 0.62 * WIDTH)
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
            gid="mark",
        )
    axes.set(xlabel=across, ylabel=up)
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.grid(visible=True, axis="y")
    axes.legend(labelcolor=INK)
    described = "; ".join(
        f"{curve.name}, {load}: {rate:.3g}, {seconds:.2f}"
        for curve in curves
        for rate, seconds, load in curve.dots
    )
    return standalone(svg(figure, f"{across}, {up}. {described}"))


def standalone(drawing: Markup) -> str:
    """Return *drawing* as a file of its own, in the light theme."""
    values = "".join(f"--{name}:{value};" for name, value in VARIABLES.items())
    style = f"<style>svg{{{values}background:var(--card);font-family:system-ui,sans-serif}}</style>"
    opening, _, rest = drawing.partition(">")
    return f'{opening} xmlns="http://www.w3.org/2000/svg">{style}{rest}\n'
