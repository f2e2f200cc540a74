# pyright: reportUnknownMemberType=false
"""
Drawings of matplotlib as SVG for a page.

A drawing is made in placeholder colours. Variables of the page's style sheet then replace them, so
that the drawing follows the page's theme. Style attributes become other attributes, because the
page's policy forbids them. Text stays text.
"""

from __future__ import annotations

import io
import re
from typing import Any

import matplotlib as mpl
from markupsafe import Markup, escape
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

WIDTH = 520.0
"""Pixels of a drawing. A phone scrolls it, so that its text does not shrink."""

VARIABLES = {
    "ink": "#1e1c19",
    "soft": "#635e56",
    "edge": "#8a857b",
    "line": "#e4e0d8",
    "card": "#ffffff",
    "small": "#1d7a4c",
    "large": "#2f5bd0",
    "critic": "#8a5a00",
}
"""Variables of the page's style sheet that drawings use, with their values in the light theme."""

PLACEHOLDERS = {name: f"#0102{number:02x}" for number, name in enumerate(VARIABLES)}
INK, SOFT, EDGE, LINE, CARD = (
    PLACEHOLDERS[name] for name in ("ink", "soft", "edge", "line", "card")
)
KINDS = re.compile(r' id="(mark|label)"')
OTHER_NAMES = re.compile(r' id="(?:\w+_\d+|[\w.]+_\d+)"')
STYLE = re.compile(r' style="([^"]*)"')
FONT = re.compile(r"(?:^|; )font: (?:\w+ )?([\d.]+)px [^;]*")
RULE = re.compile(r" *([\w-]+): *([^;]*[^; ]) *")
FAMILY = re.compile(r"font-family: [^;]*")
LEFT_OUT = re.compile(
    r"^.*?<svg [^>]*>|<metadata>.*?</metadata>|<style [^>]*>.*?</style>",
    re.DOTALL,
)
DPI = 72  # A pixel is a point, the unit of a drawing.

SETTINGS: Any = {
    "svg.fonttype": "none",
    "font.size": 11,
    "text.color": SOFT,
    "text.parse_math": False,  # a name may have dollar signs
    "axes.labelcolor": SOFT,
    "axes.edgecolor": LINE,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "grid.color": LINE,
    "grid.linewidth": 1.0,
    "xtick.color": SOFT,
    "ytick.color": SOFT,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "legend.frameon": False,
}


styled = mpl.rc_context(SETTINGS)
"""Decorates a function that draws."""


def plot(width: float, height: float) -> tuple[Figure, Axes]:
    """Return an empty figure of *width* and *height* in pixels, and its axes."""
    figure = Figure(figsize=(width / DPI, height / DPI), dpi=DPI, layout="constrained")
    FigureCanvasSVG(figure)
    return figure, figure.add_subplot()


def svg(figure: Figure, label: str) -> Markup:
    """Return the drawing. Screen readers treat it as one picture and read its *label*."""
    file = io.StringIO()
    # The names within a drawing are hashes. The same figures give the same file.
    with mpl.rc_context({"svg.hashsalt": label}):
        figure.savefig(file, format="svg", transparent=True)
    drawn = LEFT_OUT.sub("", file.getvalue())
    drawn = STYLE.sub(_attributes, drawn)
    drawn = OTHER_NAMES.sub("", KINDS.sub(r' class="\1"', drawn))
    for name, placeholder in PLACEHOLDERS.items():
        drawn = drawn.replace(placeholder, f"var(--{name})")
    width, height = (f"{side * DPI:g}" for side in figure.get_size_inches())
    opening = (
        f'<svg viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" '
        f'aria-label="{escape(label)}" xmlns:xlink="http://www.w3.org/1999/xlink">'
    )
    return Markup(f"{opening}{drawn.strip()}")


def _attributes(style: re.Match[str]) -> str:
    """Write the rules of a style attribute as attributes. The family of a font is the page's."""
    rules = FONT.sub(r"; font-size: \1px", style[1])
    return RULE.sub(r' \1="\2"', FAMILY.sub("", rules)).replace(";", "")
