r"""
Read one answer that has several parts: a list, a pair, a set, an interval or an inequality.

The answer is in the notation of `normal`. (A problem with several right answers is another matter:
its `Gold` accepts them.)
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from .algebra import parse, sympy

LIST = "list"
PAIR = "()"
LETTER = r"(?:[a-zA-Z]|\\(?:theta|alpha|beta|lambda|phi))"

_OPENING = "([{"
_CLOSING = ")]}"
_BRACKETS = ((r"\{", r"\}"), ("(", ")"), ("[", "]"), ("(", "]"), ("[", ")"))
_MEMBER = re.compile(
    rf"{LETTER}(?:\\in(?![a-z])|=(?=\\\{{))|(\({LETTER}(?:,{LETTER})+\))(?:=|\\in(?![a-z]))"
)
_RELATION = re.compile(r"<|>|\\le(?![a-z])|\\ge(?![a-z])")
_UNIT_VECTOR = re.compile(r"\\vec\{([ijk])\}")
_PLUS_MINUS = re.compile(r"\\pm(?![a-zA-Z])")


@dataclass(frozen=True, slots=True)
class Group:
    """The parts of an answer."""

    kind: str
    """`LIST`, whose order means nothing, or the two brackets around the parts, such as "(]"."""
    items: Sequence[str]
    """The parts. An interval has its two ends."""
    variable: str = ""
    """The variable of an inequality, or the ``(x,y)`` before a group; "" if there is none."""


@lru_cache
def group_of(text: str) -> Group | None:
    """Return the parts of *text*; None if it has only one."""
    names = ""
    member = _MEMBER.match(text)
    if member:
        text = text[member.end() :]
        names = member[1] or ""
    for separator in (r"\cup", ",", ";"):
        items = split(text, separator)
        if len(items) > 1:
            return _list_of(items)
    group = bracketed(text)
    if group is not None:
        return Group(group.kind, group.items, names)
    if len(_signs(text)) > 1:
        return _list_of([text])
    return _interval(text) or _vector(text)


def bracketed(text: str) -> Group | None:
    """Return the parts of a *text* in brackets; None for other texts, and for one part."""
    for opening, closing in _BRACKETS:
        inside = text[len(opening) : len(text) - len(closing)]
        if not (text.startswith(opening) and text.endswith(closing) and _balanced(inside)):
            continue
        separator = "," if "," in inside else ";"
        items = split(inside, separator)
        if opening == r"\{":
            return _list_of(items)
        if len(items) > 1:
            return Group(opening + closing, items)
    return None


def split(text: str, separator: str) -> list[str]:
    """Split *text* at each *separator* that is outside of brackets."""
    items: list[str] = []
    depth = 0
    begin = 0
    for index, character in enumerate(text):
        depth += _depth_change(character)
        if depth == 0 and index >= begin and text.startswith(separator, index):
            items.append(text[begin:index].strip())
            begin = index + len(separator)
    items.append(text[begin:].strip())
    return items


def _depth_change(character: str) -> int:
    if character in _OPENING:
        return 1
    if character in _CLOSING:
        return -1
    return 0


def _balanced(text: str) -> bool:
    depth = 0
    for character in text:
        depth += _depth_change(character)
        if depth < 0:
            return False
    return depth == 0


def _list_of(items: Iterable[str]) -> Group:
    """Return *items* as a list, with each value once."""
    values = [value for item in items for value in _signs(item)]
    return Group(LIST, tuple(dict.fromkeys(values)))


def _signs(text: str) -> tuple[str, ...]:
    """Return both values of an expression with one plus-minus sign, else *text* alone."""
    parts = _PLUS_MINUS.split(text)
    if len(parts) != 2 or r"\mp" in text:
        return (text,)
    before, after = parts
    return f"{before}+{after}".removeprefix("+"), f"{before}-{after}"


def _interval(text: str) -> Group | None:
    r"""Return the interval of ``x > 3``, ``1 < x < 2`` or ``x > 1 \wedge x < 2``."""
    if not _RELATION.search(text):
        return None
    try:
        relation = sympy.And(*map(parse, text.split(r"\wedge")))
        (variable,) = relation.free_symbols
        interval = relation.as_set()
        left = "(" if interval.left_open else "["
        right = ")" if interval.right_open else "]"
    except Exception:  # The library cannot read it, or it is no single interval.
        return None
    return Group(left + right, list(map(sympy.latex, interval.args[:2])), str(variable))


def _vector(text: str) -> Group | None:
    r"""Return the entries of a column, or of ``3\vec{i}-2\vec{j}``."""
    axes = "ijk" if r"\vec{k}" in text else "ij"
    columns = _UNIT_VECTOR.sub(lambda match: _column(axes, match[1]), text)
    if r"matrix}" not in columns:
        return None
    try:
        entries = parse(columns).doit()
        if entries.cols > 1 or entries.rows == 1:
            return None
        return Group(PAIR, list(map(sympy.latex, entries)))
    except Exception:  # The library cannot read it, or it is no matrix.
        return None


def _column(axes: str, axis: str) -> str:
    """Return the unit vector of *axis* as a column."""
    entries = r"\\".join(str(int(other == axis)) for other in axes)
    return rf"\begin{{pmatrix}}{entries}\end{{pmatrix}}"
