"""Build HTML and SVG elements from values. Everything that is not an element is escaped."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from html import escape
from typing import TypeAlias

VOID = frozenset({"meta", "link", "br"})  # elements without an end tag
Attribute: TypeAlias = "str | float | bool | None"


class Markup(str):
    """Text that is markup and must not be escaped."""

    __slots__ = ()


def element(name: str, *children: str, **attributes: Attribute) -> Markup:
    """Build an element. *class_* is the attribute class, *data_author* data-author; None and False are left out."""
    inner = "".join(child if isinstance(child, Markup) else escape(child) for child in children)
    attribute_text = "".join(
        _attribute(key, value) for key, value in attributes.items() if not (value is None or value is False)
    )
    return Markup(f"<{name}{attribute_text}>" + ("" if name in VOID else f"{inner}</{name}>"))


def join(*parts: str) -> Markup:
    return Markup("".join(part if isinstance(part, Markup) else escape(part) for part in parts))


def _attribute(key: str, value: Attribute) -> str:
    name = key.rstrip("_").replace("_", "-") if key != "viewBox" else key
    return f' {name}=""' if value is True else f' {name}="{escape(_format(value))}"'


def _format(value: Attribute) -> str:
    """Round numbers to a tenth of a pixel."""
    return f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else str(value)


WIDE, NARROW = 560.0, 300.0  # pixels; text is not scaled, hence a separate drawing for phones
GLYPH = 6.6  # pixels, the mean width of a character of a label

Drawing: TypeAlias = Callable[[float], Markup]


@dataclass(frozen=True, slots=True)
class Scale:
    """A linear map from values between *low* and *high* to pixels between *start* and *end*."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)

    def ticks(self, most: int) -> list[float]:
        """Return round values in the range: at least two, at most *most*."""
        step = self._step(most)
        first = math.ceil(self.low / step - 1e-9)
        return [index * step for index in range(first, math.floor(self.high / step + 1e-9) + 1)]

    def _step(self, most: int) -> float:
        """The smallest of 1, 2, 5, 10, ... that gives at most *most* ticks."""
        span = self.high - self.low
        unit = 10.0 ** math.floor(math.log10(span / most))
        return next(unit * factor for factor in (1, 2, 5, 10, 20) if span / (unit * factor) <= most)


def svg(width: float, height: float, label: str, *children: Markup) -> Markup:
    """Build a drawing; screen readers treat it as one picture and read its *label*."""
    box = f"0 0 {width:g} {height:g}"
    return element("svg", *children, viewBox=box, width=width, height=height, role="img", aria_label=label)


def standalone(drawing: Markup, style: str) -> str:
    """Return *drawing* as a file of its own, with the rules of *style* in it."""
    opening, _, rest = drawing.partition(">")
    return f'{opening} xmlns="http://www.w3.org/2000/svg"><style>{style}</style>{rest}\n'


def both(draw: Drawing) -> Markup:
    """Draw twice, for wide screens and for phones; the style sheet shows one of them."""
    return join(
        element("div", draw(WIDE), class_="drawing wide"), element("div", draw(NARROW), class_="drawing narrow")
    )


def text(x: float, y: float, content: str, kind: str, anchor: str = "start", **more: str) -> Markup:
    return element("text", content, x=x, y=y, class_=kind, text_anchor=anchor, **more)


def line(x1: float, y1: float, x2: float, y2: float, kind: str, **more: str) -> Markup:
    return element("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=kind, **more)
