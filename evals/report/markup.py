"""Build HTML elements from values. Everything that is not an element is escaped."""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from typing import TypeAlias

VOID = frozenset({"meta", "link", "br"})  # elements without an end tag
Attribute: TypeAlias = "str | float | bool | None"


class Markup(str):
    """Text that is markup and must not be escaped."""

    __slots__ = ()


def element(name: str, *children: str, **attributes: Attribute) -> Markup:
    """Build an element. *class_* is the attribute class, *data_author* data-author; None and False are left out."""
    inner = join(*children)
    attribute_text = "".join(
        _attribute(key, value) for key, value in attributes.items() if not (value is None or value is False)
    )
    return Markup(f"<{name}{attribute_text}>" + ("" if name in VOID else f"{inner}</{name}>"))


def join(*parts: str) -> Markup:
    return Markup("".join(part if isinstance(part, Markup) else escape(part) for part in parts))


def _attribute(key: str, value: Attribute) -> str:
    name = key.rstrip("_").replace("_", "-")
    return f' {name}=""' if value is True else f' {name}="{escape(str(value))}"'


WIDE, NARROW = 560.0, 300.0  # pixels; text is not scaled, hence a separate drawing for phones

Drawing: TypeAlias = Callable[[float], Markup]


def both(draw: Drawing) -> Markup:
    """Draw twice, for wide screens and for phones; the style sheet shows one of them."""
    return join(
        element("div", draw(WIDE), class_="drawing wide"), element("div", draw(NARROW), class_="drawing narrow")
    )
