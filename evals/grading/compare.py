r"""
Compare two answers: what is a list, a pair, an interval or a text is decided here, item by item;
algebra does the rest.

A false "right" is worse than a false "wrong": answers of different kinds, such as the list ``2, 3``
and the pair ``(2, 3)``, are different, and so are a decimal number and the exact one that it comes
close to. Pure, apart from *algebra*, which compares two expressions without lists, words and units.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from .normal import POWERS, Quantity, normal, quantity

# (gold, answer); None if it takes too long
Algebra: TypeAlias = Callable[[str, str], Awaitable[bool | None]]
MOST = 16  # items of a list or a pair; longer ones are compared as texts

_OPENING, _CLOSING = "([{", ")]}"
_NAME = re.compile(
    r"\{[a-zA-Z]\}(?:\^\{-1\})?|\\vec\{?[a-zA-Z]\}?|[a-zA-Z](?:_\w|_\{[\w,]+\}|'|\^\{-1\})*(?:\((?:[a-z]|-?\d+)(?:,[a-z])*\))?"
    r"|\\[a-z]+(?:_\w)?|\\(?:sin|cos|tan|cot|det) ?(?:[a-zA-Z]|\\theta|\\angle"
    r" ?[A-Z]{1,3})|(?:\\Pr|\{P\})\([^()]*\)"
    r"|[a-zA-Z](?:_\w)?(?:(?:[-+]| ?\\times"
    r" ?)?[a-zA-Z](?:_\w)?){1,9}|\\frac\{[a-zA-Z]{1,2}\}\{[a-zA-Z]{1,2}\}"
    r"|m?\\(?:(?:measured)?angle|triangle|overline|overrightarrow)\{?"
    r" ?[A-Z]{1,3}\}?|\|[A-Z](?:(?:\\c[au]p ?)?[A-Z])?\|"
    r"|\[[A-Z]{3,4}\]|P\([^()]*\)|\\text\{[^{}]*\}(?:\([^()]*\))?|[a-zA-Z ]{4,}"
)
_RELATION = re.compile(r"<|>|\\le(?![a-z])|\\ge(?![a-z])")
_LETTER = r"(?:[a-zA-Z]|\\(?:theta|alpha|beta|lambda|phi))"
_VARIABLE = re.compile(_LETTER)
_MEMBER = re.compile(
    rf"{_LETTER}(?:\\in(?![a-z])|=(?=\\\{{))|\({_LETTER}(?:,{_LETTER})+\)(?:=|\\in(?![a-z]))"
)
_BASED = re.compile(r"\d[\dA-F]{0,40}_(?:\d|\{\d{1,4}\})")
_INDEXED = re.compile(r"[a-zA-Z]_(?:\w|\{\w+\})")
_POINT = re.compile(r"[A-Z](?:_\w|')?(?=\([^()]+(?:,[^()]+)+\)$)")
_UNREADABLE = re.compile(r"\\text|\\ldots|[\d.] +[\d.]|_|\d'|:")


@dataclass(frozen=True, slots=True)
class Group:
    """
    Several items: a "list", in any order, or what stands in two brackets, such as "()" or "(]", in
    this order.
    """

    kind: str
    items: Sequence[str]
    variable: str = ""  # of the inequality that it was


async def same(answer: str, gold: str, algebra: Algebra) -> bool | None:
    """Whether *answer* means what *gold* does; None if that took *algebra* too long."""
    if [part.strip() for part in answer.split(",")] == [part.strip() for part in gold.split(",")]:
        return answer.strip() != ""
    return await _same(normal(answer), normal(gold), algebra)


async def _same(ours: str, theirs: str, algebra: Algebra) -> bool | None:
    if not ours or not theirs:
        return False
    if ours == theirs:
        return True
    ours, theirs = _unnamed(ours, theirs), _unnamed(theirs, ours)
    words = _words(ours), _words(theirs)
    if (words[0] or words[1]) and not (_group(ours) or _group(theirs)):
        return words[0] == words[1] or _letters(ours) == _letters(theirs) != ""
    groups = _group(ours), _group(theirs)
    if groups[0] is None and _group(value := _named(ours)[1]):
        return await _same(value, theirs, algebra)
    if groups[1] is None and _group(value := _named(theirs)[1]):
        return await _same(ours, value, algebra)
    if groups[0] or groups[1]:
        return await _same_groups(*_alike(groups, (ours, theirs)), algebra)
    return await _same_atoms(ours, theirs, algebra)


def _unnamed(text: str, other: str) -> str:
    """Leave out the name of a point, as of ``P(1,2)``, if *other* has none."""
    return _POINT.sub("", text) if _POINT.match(text) and other.startswith("(") else text


async def _same_groups(ours: Group | None, theirs: Group | None, algebra: Algebra) -> bool | None:
    if (
        ours is None
        or theirs is None
        or ours.kind != theirs.kind
        or max(len(ours.items), len(theirs.items)) > MOST
    ):
        return False
    if ours.variable and theirs.variable and ours.variable != theirs.variable:
        return False
    if ours.kind == "list":
        return await _same_sets(ours.items, theirs.items, algebra)
    if len(ours.items) != len(theirs.items):
        return False
    return _all(
        [await _same(*pair, algebra) for pair in zip(ours.items, theirs.items, strict=True)]
    )


async def _same_sets(ours: Sequence[str], theirs: Sequence[str], algebra: Algebra) -> bool | None:
    """Whether each item of one list is in the other one, too."""
    table = [[await _same(item, other, algebra) for other in theirs] for item in ours]
    return _all([_any(row) for row in (*table, *map(list, zip(*table, strict=True)))])


def _all(verdicts: Sequence[bool | None]) -> bool | None:
    return False if False in verdicts else None if None in verdicts else True


def _any(verdicts: Sequence[bool | None]) -> bool | None:
    return True if True in verdicts else None if None in verdicts else False


def _alike(
    groups: tuple[Group | None, Group | None], texts: tuple[str, str]
) -> tuple[Group | None, Group | None]:
    """
    Take a single item for a list of one, and values of variables, ``x = 1, y = 2``, for the pair of
    them.

    A list of one pair is that pair.
    """
    ours, theirs = groups
    if ours and theirs and (ours.kind == "list") != (theirs.kind == "list"):
        ours, theirs = (
            _group(each.items[0]) if len(each.items) == 1 else each for each in (ours, theirs)
        )
        ours, theirs = ours or groups[0], theirs or groups[1]
    if ours is None and theirs is not None and theirs.kind == "list":
        ours = Group("list", (texts[0],))
    if theirs is None and ours is not None and ours.kind == "list":
        theirs = Group("list", (texts[1],))
    if ours and theirs and ours.kind == "list" and theirs.kind == "()":
        ours = _pair(ours) or ours
    elif ours and theirs and ours.kind == "()" and theirs.kind == "list":
        theirs = _pair(theirs) or theirs
    return ours, theirs


def _pair(group: Group) -> Group | None:
    matches = [re.fullmatch(rf"({_LETTER})=(.*)", item) for item in group.items]
    named = [(match[1], match[2]) for match in matches if match]
    ordered = [name for name, _ in named] == sorted(
        {name for name, _ in named}, key=lambda name: name.lstrip("\\")
    )
    return (
        Group("()", [value for _, value in named])
        if len(named) == len(matches) and ordered
        else None
    )


async def _same_atoms(ours: str, theirs: str, algebra: Algebra) -> bool | None:
    ours, theirs = _sides(ours, theirs)
    if ours == theirs:
        return ours != ""
    parts = [part for part in ours.split(r"\approx") if part.strip()]
    if len(parts) > 1 or r"\approx" in ours:  # an exact value with its decimals, or one of them
        return _any([await _same(part.strip(), theirs, algebra) for part in parts])
    left, right = quantity(ours), quantity(theirs)
    if _other_unit(left, right):
        return False
    if left.value is not None and right.value is not None:
        return _same_numbers(left, right)
    expressions = left.expression, right.expression
    if expressions[0] == expressions[1]:
        return True
    if any(
        each.value and "." in each.expression and each.value.denominator > 10**9
        for each in (left, right)
    ):
        return False  # Algebra takes so many decimals for a number that they only come close to.
    if any(
        _BASED.search(each) or _UNREADABLE.search(_INDEXED.sub("x", each)) for each in expressions
    ):
        return False
    if ("=" in expressions[0]) != ("=" in expressions[1]):
        return False
    return await algebra(expressions[1], expressions[0])


def _other_unit(left: Quantity, right: Quantity) -> bool:
    """
    Whether both have a unit, and these have no word in common, or other powers: metres, cm^2 and
    cm^3.
    """
    words = left.unit - POWERS, right.unit - POWERS
    return (all(words) and not words[0] & words[1]) or left.unit ^ right.unit >= POWERS


def _same_numbers(left: Quantity, right: Quantity) -> bool:
    assert left.value is not None
    assert right.value is not None
    percents = ["percent" in each.unit for each in (left, right)]
    if left.value == right.value:
        return True
    if percents[0] != percents[1]:  # 50% is also 0.5
        return left.value / (100 if percents[0] else 1) == right.value / (100 if percents[1] else 1)
    return False


def _sides(ours: str, theirs: str) -> tuple[str, str]:
    """
    Drop the name that only one of two equations, or both, give to the value: ``x = 5``, ``f(x) =
    2x``.
    """
    (name, value), (other, their_value) = _named(ours), _named(theirs)
    if name and other:
        return (value, their_value) if name == other else (ours, theirs)
    if name and "=" not in theirs:
        return value, theirs
    if other and "=" not in ours:
        return ours, their_value
    return ours, theirs


def _named(text: str) -> tuple[str, str]:
    """
    The name and the value in *text*; the name is "=" for a chain of numbers, and empty for an
    equation to solve.
    """
    first, *rest = _split(text, "=")
    if not rest:
        return "", text
    if _NAME.fullmatch(first):
        return first, rest[-1]
    if _bracketed(rest[-1]):
        return "=", rest[-1]
    return (
        ("=", rest[-1])
        if not re.search(r"[a-zA-Z]", re.sub(r"\\[a-zA-Z]+", "", first))
        else ("", text)
    )


def _words(text: str) -> str:
    r"""
    Return the words of a text such as ``\text{east}``, in lower case; empty if it is an expression.
    """
    bare = re.sub(r"\\text\{([^{}]*)\}", r" \1 ", text)
    spelled = bare != text or re.search(r"[a-zA-Z]{4}", bare)
    if not spelled or re.search(r"[\\=<>^_+*/]", bare) or not re.match(r"[ (]*[a-zA-Z]", bare):
        return ""
    words = re.findall(r"[a-z0-9']+", re.sub(r"(?<=\d)(?:st|nd|rd|th)\b", "", bare.lower()))
    return " ".join(words[1:] if words[0] in ("the", "a", "an") and len(words) > 1 else words)


def _letters(text: str) -> str:
    r"""``C``, ``(C)`` and ``\text{(C)}`` are one answer, and so are ``odd`` and ``\text{odd}``."""
    bare = re.sub(r"\\text\{([^{}]*)\}", r"\1", text).strip("()[] .").lower()
    return bare if bare.isalpha() else ""


def _group(text: str) -> Group | None:
    text = _MEMBER.sub("", text, count=1) if _MEMBER.match(text) else text
    for separator in (r"\cup", ",", ";"):
        items = _split(text, separator)
        if len(items) > 1:
            return Group("list", _unique(item for each in items for item in _signs(each)))
    if bracketed := _bracketed(text):
        return bracketed
    return Group("list", signs) if len(signs := _signs(text)) > 1 else _interval(text)


def _bracketed(text: str) -> Group | None:
    for opening, closing in ((r"\{", r"\}"), ("(", ")"), ("[", "]"), ("(", "]"), ("[", ")")):
        inside = text[len(opening) : len(text) - len(closing)]
        if not (text.startswith(opening) and text.endswith(closing) and _balanced(inside)):
            continue
        items = _split(inside, "," if "," in inside else ";")
        if opening == r"\{":
            return Group("list", _unique(item for each in items for item in _signs(each)))
        if len(items) > 1:
            return Group(opening + closing, items)
    return None


def _interval(text: str) -> Group | None:
    r"""
    Return the interval of an inequality for one variable: ``x > 3``, ``1 < x < 2`` or ``x > 1
    \wedge x < 2``.
    """
    first, both, second = text.partition(r"\wedge")
    if both:
        halves = [half for part in (first, second) if (half := _interval(part.strip()))]
        open_ends = {
            half.items.index(end): half
            for half in halves
            for end in (r"-\infty", r"\infty")
            if end in half.items
        }
        if len(open_ends) < 2 or open_ends[0].variable != open_ends[1].variable:
            return None
        return Group(
            open_ends[1].kind[0] + open_ends[0].kind[1],
            (open_ends[1].items[0], open_ends[0].items[1]),
            open_ends[0].variable,
        )
    parts, signs = [part.strip() for part in _RELATION.split(text)], _RELATION.findall(text)
    if not 2 <= len(parts) <= 3 or any(not part for part in parts):
        return None
    at = next((index for index, part in enumerate(parts) if _VARIABLE.fullmatch(part)), None)
    rest = [part for index, part in enumerate(parts) if index != at]
    if at is None or any(
        re.search(r"[a-zA-Z=]", re.sub(r"\\[a-zA-Z]+", "", part)) for part in rest
    ):
        return None
    rising = [sign in ("<", r"\le") for sign in signs]
    closed = ["e" in sign for sign in signs]
    if len(parts) == 3:
        if at != 1 or rising[0] != rising[1]:
            return None
        ends, closed = (rest, closed) if rising[0] else (rest[::-1], closed[::-1])
        return Group(f"{'[' if closed[0] else '('}{']' if closed[1] else ')'}", ends, parts[at])
    if rising[0] == (at == 0):
        return Group(f"({']' if closed[0] else ')'}", (r"-\infty", rest[0]), parts[at])
    return Group(f"{'[' if closed[0] else '('})", (rest[0], r"\infty"), parts[at])


def _signs(text: str) -> tuple[str, ...]:
    """Both values of an expression with one plus-minus sign."""
    before, sign, after = text.partition(r"\pm")
    if not sign or r"\pm" in after or r"\mp" in text:
        return (text,)
    return f"{before}+{after}".removeprefix("+"), f"{before}-{after}"


def _unique(items: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(items))


def _balanced(text: str) -> bool:
    depth = 0
    for character in text:
        depth += (character in _OPENING) - (character in _CLOSING)
        if depth < 0:
            return False
    return depth == 0


def _split(text: str, separator: str) -> list[str]:
    """Split *text* at the *separator* outside of brackets."""
    items, depth, begin = list[str](), 0, 0
    for at, character in enumerate(text):
        depth += (character in _OPENING) - (character in _CLOSING)
        if depth == 0 and at >= begin and text.startswith(separator, at):
            items.append(text[begin:at].strip())
            begin = at + len(separator)
    return [*items, text[begin:].strip()]
