"""Elements of HTML and SVG from values. Text only ever becomes text: all that is no element is escaped."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from html import escape
from typing import TypeAlias

VOID = frozenset({"meta", "link", "br"})  # which have no end
Attribute: TypeAlias = "str | float | bool | None"


class Markup(str):
    """Text that is markup already."""

    __slots__ = ()


def element(name: str, *children: str, **attributes: Attribute) -> Markup:
    """Make an element; *class_* is the attribute class, *data_author* data-author. None and False are left out."""
    inner = "".join(child if isinstance(child, Markup) else escape(child) for child in children)
    given = "".join(
        _attribute(key, value) for key, value in attributes.items() if not (value is None or value is False)
    )
    return Markup(f"<{name}{given}>" + ("" if name in VOID else f"{inner}</{name}>"))


def join(*parts: str) -> Markup:
    return Markup("".join(part if isinstance(part, Markup) else escape(part) for part in parts))


def _attribute(key: str, value: Attribute) -> str:
    name = key.rstrip("_").replace("_", "-") if key != "viewBox" else key
    return f' {name}=""' if value is True else f' {name}="{escape(_spelt(value))}"'


def _spelt(value: Attribute) -> str:
    """A pixel's tenth is enough."""
    return f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else str(value)


WIDE, NARROW = 560.0, 300.0  # pixels; text keeps its size, so a phone gets a drawing of its own
GLYPH = 6.6  # the mean width of a letter of a label

Drawing: TypeAlias = Callable[[float], Markup]


@dataclass(frozen=True, slots=True)
class Scale:
    """From values between *low* and *high* to pixels between *start* and *end*."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)

    def ticks(self, most: int) -> list[float]:
        """Round values within, at most so many and at least two."""
        step = self._step(most)
        first = math.ceil(self.low / step - 1e-9)
        return [place * step for place in range(first, math.floor(self.high / step + 1e-9) + 1)]

    def _step(self, most: int) -> float:
        """The finest of 1, 2, 5, 10, ... that gives no more than so many."""
        span = self.high - self.low
        unit = 10.0 ** math.floor(math.log10(span / most))
        return next(unit * factor for factor in (1, 2, 5, 10, 20) if span / (unit * factor) <= most)


def svg(width: float, height: float, said: str, *children: Markup) -> Markup:
    """A drawing that is one picture to those who cannot see it; *said* is what they are told."""
    box = f"0 0 {width:g} {height:g}"
    return element("svg", *children, viewBox=box, width=width, height=height, role="img", aria_label=said)


def both(draw: Drawing) -> Markup:
    """The drawing for wide screens and the one for phones, of which the style sheet shows one."""
    return join(
        element("div", draw(WIDE), class_="drawing wide"), element("div", draw(NARROW), class_="drawing narrow")
    )


def text(x: float, y: float, said: str, kind: str, anchor: str = "start", **more: str) -> Markup:
    return element("text", said, x=x, y=y, class_=kind, text_anchor=anchor, **more)


def line(x1: float, y1: float, x2: float, y2: float, kind: str, **more: str) -> Markup:
    return element("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=kind, **more)
