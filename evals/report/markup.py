"""Elements of HTML and SVG from values. Text only ever becomes text: all that is no element is escaped."""

from __future__ import annotations

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
