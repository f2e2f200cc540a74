# pyright: reportUnknownMemberType=false
"""
A drawing of matplotlib as SVG for a page: its colours are the page's variables, and its text stays
text.

A drawing is made in placeholder colours, which are then replaced by variables, so that it follows
the page's theme; Attributes take the place of style attributes, which the page's policy forbids.
"""

from __future__ import annotations

import io
import re
from hashlib import blake2b
from html import escape
from typing import Any, TypeAlias

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

VOID = frozenset({"meta", "link", "br"})  # elements without an end tag
Attribute: TypeAlias = "str | float | bool | None"


class Markup(str):
    """Text that is markup and must not be escaped."""

    __slots__ = ()


def element(name: str, *children: str, **attributes: Attribute) -> Markup:
    """
    Build an element. *class_* is the attribute class, *aria_label* aria-label; None and False are
    left out.
    """
    inner = join(*children)
    attribute_text = "".join(
        _attribute(key, value)
        for key, value in attributes.items()
        if not (value is None or value is False)
    )
    return Markup(f"<{name}{attribute_text}>" + ("" if name in VOID else f"{inner}</{name}>"))


def join(*parts: str) -> Markup:
    return Markup("".join(part if isinstance(part, Markup) else escape(part) for part in parts))


def _attribute(key: str, value: Attribute) -> str:
    name = key.rstrip("_").replace("_", "-")
    return f' {name}=""' if value is True else f' {name}="{escape(str(value))}"'


WIDTH = 520.0  # pixels of a drawing; the page lets a phone scroll it rather than shrink its text

VARIABLES = {
    "ink": "#1e1c19",
    "soft": "#635e56",
    "edge": "#8a857b",
    "line": "#e4e0d8",
    "card": "#ffffff",
    "small": "#1d7a4c",
    "large": "#2f5bd0",
    "critic": "#8a5a00",
    "wrong": "#ad2f28",
}
"""
The variables of the page's style sheet that drawings use, with their values in the light theme.
"""

PLACEHOLDERS = {name: f"#0102{number:02x}" for number, name in enumerate(VARIABLES)}
INK, SOFT, EDGE, LINE, CARD = (
    PLACEHOLDERS[name] for name in ("ink", "soft", "edge", "line", "card")
)
METADATA = {"Date": None, "Creator": None, "Type": None, "Format": None}
KINDS = re.compile(r' id="(mark|label)"')
OTHER_NAMES = re.compile(r' id="(?:\w+_\d+|[\w.]+_\d+)"')
STYLE = re.compile(r' style="([^"]*)"')
FONT = re.compile(r"(?:^|; )font: (?:\w+ )?([\d.]+)px [^;]*")
TAG = re.compile(r"<[^<>]*>")
DPI = 72  # a pixel is a point, the unit of a drawing

SETTINGS: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "stepspec",  # the same figures give the same file
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
    """Return the drawing; screen readers treat it as one picture and read its *label*."""
    file = io.StringIO()
    figure.savefig(file, format="svg", transparent=True, metadata=METADATA)
    drawn = file.getvalue()
    drawn = re.sub(
        r"<metadata>.*?</metadata>|<style [^>]*>.*?</style>",
        "",
        drawn[drawn.index("<svg") :],
        flags=re.S,
    )
    drawn = STYLE.sub(lambda match: _attributes(match[1]), drawn)
    drawn = OTHER_NAMES.sub("", KINDS.sub(r' class="\1"', drawn))
    for name, placeholder in PLACEHOLDERS.items():
        drawn = drawn.replace(placeholder, f"var(--{name})")
    drawn = _own_names(TAG.sub(lambda match: _shorter(match[0]), re.sub(r">\s+<", "><", drawn)))
    width, height = (f"{side * DPI:g}" for side in figure.get_size_inches())
    opening = (
        f'<svg viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" '
        f'aria-label="{escape(label)}" xmlns:xlink="http://www.w3.org/1999/xlink">'
    )
    return Markup(re.sub(r"<svg [^>]*>", lambda _: opening, drawn, count=1).strip())


def _own_names(drawn: str) -> str:
    """
    Rename what *drawn* refers to in itself, so that no two drawings of a page have a name in
    common.
    """
    digest = blake2b(drawn.encode(), digest_size=4).hexdigest()
    return re.sub(r'(?<= id=")|(?<=url\(#)|(?<=href="#)', f"{digest}-", drawn)


def _shorter(tag: str) -> str:
    """Return *tag* without line breaks, its coordinates to a tenth of a pixel."""
    return re.sub(r"(\d\.\d)\d{2,}", r"\1", " ".join(tag.split()))


def _attributes(style: str) -> str:
    """
    Write the rules of a style attribute as attributes; a font loses its family, which is the
    page's.
    """
    style = FONT.sub(lambda match: f"; font-size: {match[1]}px", style)
    rules = (rule.partition(":") for rule in style.split(";") if rule.strip())
    return "".join(
        f' {name.strip()}="{value.strip()}"'
        for name, _, value in rules
        if name.strip() != "font-family"
    )
