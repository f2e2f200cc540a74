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

_OPENING = "([{"
_CLOSING = ")]}"
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
# Of a text with words: numbers with their signs, words, and other signs than punctuation.
_TOKEN = re.compile(
    r"(?<![\w)])-(?= ?\d)|\d+(?:\.\d+)?|[^\W\d_]+(?:'[^\W\d_]+)*|[^\w\s.,;:!?'\"()\[\]{}-]"
)
_MODULUS = re.compile(
    r"(?:(?:[a-zA-Z] ?)?\\equiv ?)?(\d{1,40}) ?\(?(?:\\text\{)?\(?\\?[pb]?mod(?:ulo)?[ }{(]*(\d{1,40})[)} ]*"
)
_UNIT_VECTOR = re.compile(r"\\vec\{([ijk])\}")
_COEFFICIENT = re.compile(r"[+-]? ?(?:[^-+(]*|\([^()]*\))")
_RATIO = re.compile(r"(\d+(?:\.\d+)?) ?(?::|to|\\text\{to\}) ?(\d+(?:\.\d+)?)")
_FRACTION = re.compile(r":|/|\\frac|\bto\b")
_TIME = re.compile(r"\d{1,2}:[0-5]\d")
_PLUS_MINUS = re.compile(r"\\pm(?![a-zA-Z])")
_IMPLIES = re.compile(r"\\(?:implies|Rightarrow|Longrightarrow)(?![a-zA-Z])")
_LINKING_WORDS = re.compile(r"^\\text\{(?:so|thus|hence|then|therefore|giving|and)[a-z ]*\} ?")
_SUM = re.compile(r"[a-zA-Z](?:_\w)?(?:(?:[-+]|\\times )?[a-zA-Z](?:_\w)?)+")
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
    ours = _vector(ours)
    theirs = _vector(theirs)
    ours = _conclusion(ours, theirs)
    words = _words(ours), _words(theirs)
    if (words[0] or words[1]) and not (_group(ours) or _group(theirs)):
        alike = words[0] == words[1] or _letters(ours) == _letters(theirs) != ""
        return alike and not _other_case(ours, theirs)
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


def _vector(text: str) -> str:
    r"""Spell a sum of unit vectors, ``3\vec{i}-2\vec{j}``, as the pair or triple of coefficients."""
    *coefficients, rest = _UNIT_VECTOR.split(text)
    parts = [part.strip() for part in coefficients[::2]]
    axes = coefficients[1::2]
    readable = all(map(_COEFFICIENT.fullmatch, parts)) and all(
        part.startswith(("+", "-")) for part in parts[1:]
    )
    if not axes or rest.strip() or not readable or len({*axes}) < len(axes):
        return text
    values = dict.fromkeys("ijk" if "k" in axes else "ij", "0")
    for axis, part in zip(axes, parts, strict=True):
        values[axis] = f"{part}1" if part in ("", "+", "-") else part
    return f"({','.join(value.removeprefix('+') for value in values.values())})"


def _conclusion(text: str, gold: str) -> str:
    r"""
    Return what *text* concludes, if *gold* is one value: what follows ``\implies``, or the value of
    a sum such as ``m+n`` that closes a list.
    """
    if _group(gold) is not None or _IMPLIES.search(gold):
        return text
    last = _IMPLIES.split(text)[-1].strip()
    items = [_LINKING_WORDS.sub("", item) for item in _split(last, ",")]
    name = _split(items[-1], "=")[0]
    return items[-1] if len(items) > 1 and _SUM.fullmatch(name) else last


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
        ours = ours or groups[0]
        theirs = theirs or groups[1]
    if ours is None and theirs is not None and theirs.kind == "list":
        ours = Group("list", (texts[0],))
    if theirs is None and ours is not None and ours.kind == "list":
        theirs = Group("list", (texts[1],))
    if (
        ours
        and theirs
        and ours.kind == theirs.kind == "list"
        and not any(map(_value_of, ours.items))
    ):
        values = [_value_of(item) for item in theirs.items]
        names = {item.partition("=")[0] for item in theirs.items}
        if all(values) and len(names) == len(values) > 1:
            return Group("()", ours.items), Group("()", values)
    if ours and theirs and ours.kind == "list" and theirs.kind == "()":
        ours = _pair(ours) or ours
    elif ours and theirs and ours.kind == "()" and theirs.kind == "list":
        theirs = _pair(theirs) or theirs
    return ours, theirs


def _value_of(item: str) -> str:
    """Return the value that *item*, such as ``x=1``, gives to a variable; empty for other items."""
    match = re.fullmatch(rf"{_LETTER}=([^=]+)", item)
    return match[1] if match else ""


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
    ratios = _ratio(ours), "" if _TIME.fullmatch(theirs) else _ratio(theirs)
    if any(ratios) and all(map(_FRACTION.search, (ours, theirs))):
        return await _same_ratios(ratios, (ours, theirs), algebra)
    classes = _MODULUS.fullmatch(ours), _MODULUS.fullmatch(theirs)
    if classes[0] and classes[1]:
        return classes[0].groups() == classes[1].groups()
    ours = _residue(ours)
    left = quantity(ours)
    right = quantity(theirs)
    if _other_unit(left, right):
        return False
    if left.value is not None and right.value is not None:
        return _same_numbers(left, right)
    expressions = left.expression, right.expression
    if expressions[0] == expressions[1]:
        return True
    if any(
        _BASED.search(each) or _UNREADABLE.search(_INDEXED.sub("x", each)) for each in expressions
    ):
        return False
    if ("=" in expressions[0]) != ("=" in expressions[1]):
        return False
    return await algebra(expressions[1], expressions[0])


def _ratio(text: str) -> str:
    """Return the fraction of a ratio, ``7:3``; empty for other texts."""
    match = _RATIO.fullmatch(text)
    return "" if match is None else rf"\frac{{{match[1]}}}{{{match[2]}}}"


async def _same_ratios(
    ratios: tuple[str, str], texts: tuple[str, str], algebra: Algebra
) -> bool | None:
    ours = ratios[0] or texts[0]
    theirs = ratios[1] or texts[1]
    return await _same_atoms(ours, theirs, algebra)


def _residue(text: str) -> str:
    r"""Leave out the modulus of ``33\pmod{1000}``, if the number is smaller."""
    match = _MODULUS.fullmatch(text)
    return match[1] if match and int(match[1]) < int(match[2]) else text


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
    (name, value) = _named(ours)
    (other, their_value) = _named(theirs)
    if name and other:
        return (value, their_value) if name == other else (ours, theirs)
    if name and "=" not in theirs:
        return value, theirs
    if other and "=" not in ours and not _equation(theirs):
        return ours, their_value
    return ours, theirs


def _equation(text: str) -> bool:
    """Whether *text*, a true answer, says something about several variables, as ``x+y=5`` does."""
    left = _split(text, "=")[0]
    return bool(re.search(r"[-+*]|\\times|\\frac|(?<![a-zA-Z\\])[a-z]{2,3}(?![a-zA-Z(])", left))


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
    words = _TOKEN.findall(re.sub(r"(?<=\d)(?:st|nd|rd|th)\b", "", bare.lower()))
    return " ".join(words[1:] if words[0] in ("the", "a", "an") and len(words) > 1 else words)


def _letters(text: str) -> str:
    r"""``C``, ``(C)`` and ``\text{(C)}`` are one answer, and so are ``odd`` and ``\text{odd}``."""
    bare = re.sub(r"\\text\{([^{}]*)\}", r"\1", text).strip("()[] .").lower()
    return bare if bare.isalpha() else ""


def _other_case(ours: str, theirs: str) -> bool:
    """Whether both are one letter, which may be a variable, in other cases: ``R`` and ``r``."""
    left, right = (re.sub(r"\\text\{([^{}]*)\}", r"\1", each).strip() for each in (ours, theirs))
    return len(left) == len(right) == 1 and left != right


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
    parts = [part.strip() for part in _RELATION.split(text)]
    signs = _RELATION.findall(text)
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
    parts = _PLUS_MINUS.split(text)
    if len(parts) != 2 or r"\mp" in text:
        return (text,)
    before, after = parts
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
    items = list[str]()
    depth = 0
    begin = 0
    for at, character in enumerate(text):
        depth += (character in _OPENING) - (character in _CLOSING)
        if depth == 0 and at >= begin and text.startswith(separator, at):
            items.append(text[begin:at].strip())
            begin = at + len(separator)
    return [*items, text[begin:].strip()]
