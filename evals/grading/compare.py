r"""
Compare two answers: this module compares lists, pairs, intervals and texts, item by item.

A false "right" is worse than a false "wrong". Answers of different kinds are different, such as the
list ``2, 3`` and the pair ``(2, 3)``. A decimal number differs from the exact number that it
approximates. `Algebra` compares two expressions without lists, words and units.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from fractions import Fraction
from typing import TypeAlias

from .groups import LETTER, LIST, PAIR, Group, bracketed, group_of, split
from .normal import POWERS, Quantity, normal, quantity

Algebra: TypeAlias = Callable[[str, str], Awaitable[bool | None]]
"""Compares the true answer and another one. It returns None if that takes too long."""
Verdict: TypeAlias = bool | None
"""Whether two answers mean the same; None if algebra took too long."""
MAX_ITEMS = 16  # of a list or a pair; algebra compares each item with each

_NAME = re.compile(
    r"\{[a-zA-Z]\}(?:\^\{-1\})?|\\vec\{?[a-zA-Z]\}?"
    r"|[a-zA-Z](?:_\w|_\{[\w,]+\}|'|\^\{-1\})*(?:\((?:[a-z]|-?\d+)(?:,[a-z])*\))?"
    r"|\\[a-z]+(?:_\w)?"
    r"|\\(?:sin|cos|tan|cot|det) ?(?:[a-zA-Z]|\\theta|\\angle ?[A-Z]{1,3})"
    r"|(?:\\Pr|\{P\})\([^()]*\)"
    r"|[a-zA-Z](?:_\w)?(?:(?:[-+]| ?\\times ?)?[a-zA-Z](?:_\w)?){1,9}"
    r"|\d{0,4}[a-zA-Z](?:[-+]\d{0,4}[a-zA-Z]){1,9}"
    r"|\\frac\{[a-zA-Z]{1,2}\}\{[a-zA-Z]{1,2}\}"
    r"|m?\\(?:(?:measured)?angle|triangle|overline|overrightarrow)\{? ?[A-Z]{1,3}\}?"
    r"|\|[A-Z](?:(?:\\c[au]p ?)?[A-Z])?\|"
    r"|\[[A-Z]{3,4}\]|P\([^()]*\)|\\text\{[^{}]*\}(?:\([^()]*\))?|[a-zA-Z ]{4,}"
)
_BASED = re.compile(r"\d[\dA-F]{0,40}_(?:\d|\{\d{1,4}\})")
_INDEXED = re.compile(r"[a-zA-Z]_(?:\w|\{\w+\})")
_POINT = re.compile(r"[A-Z](?:_\w|')?(?=\([^()]+(?:,[^()]+)+\)$)")
# In a text with words: numbers with their signs, words, and signs other than punctuation.
_TOKEN = re.compile(
    r"(?<![\w)])-(?= ?\d)|\d+(?:\.\d+)?|[^\W\d_]+(?:'[^\W\d_]+)*|[^\w\s.,;:!?'\"()\[\]{}-]"
)
_MODULUS = re.compile(
    r"(?:(?:[a-zA-Z] ?)?\\equiv ?)?(\d{1,40}) ?"
    r"\(?(?:\\text\{)?\(?\\?[pb]?mod(?:ulo)?[ }{(]*(\d{1,40})[)} ]*"
)
_UNIT_VECTOR = re.compile(r"\\vec\{([ijk])\}")
_COEFFICIENT = re.compile(r"[+-]? ?(?:[^-+(]*|\([^()]*\))")
_RATIO = re.compile(r"(\d+(?:\.\d+)?) ?(?::|to|\\text\{to\}) ?(\d+(?:\.\d+)?)")
_FRACTION = re.compile(r":|/|\\frac|\bto\b")
_TIME = re.compile(r"\d{1,2}:[0-5]\d")
_IMPLIES = re.compile(
    r"\\(?:implies|Rightarrow|Longrightarrow)(?![a-zA-Z])"
    r"|,? ?\\text\{(?:so|thus|hence|then|therefore|giving|and)\b[a-z, ]*\}"
)
_SUM = re.compile(r"[a-zA-Z](?:_\w)?(?:(?:[-+]|\\times )?[a-zA-Z](?:_\w)?)+")
_UNREADABLE = re.compile(r"\\text|\\ldots|[\d.] +[\d.]|_|\d'|:")
_TEXT = re.compile(r"\\text\{([^{}]*)\}")
_SEVERAL_VARIABLES = re.compile(
    r"(?<!\^\{)[-+*]|\\times|\\frac|(?<![a-zA-Z\\])[a-z]{2,3}(?![a-zA-Z(])"
)
_NAMED_VALUE = re.compile(rf"({LETTER})=(.*)")
_SIMPLE_NAMED_VALUE = re.compile(rf"{LETTER}=([^=]+)")


async def same(answer: str, gold: str, algebra: Algebra) -> Verdict:
    """Whether *answer* means the same as *gold*, the true answer."""
    if [part.strip() for part in answer.split(",")] == [part.strip() for part in gold.split(",")]:
        return answer.strip() != ""
    return await _same(normal(answer), normal(gold), algebra)


async def _same(ours: str, theirs: str, algebra: Algebra) -> Verdict:
    if not ours or not theirs:
        return False
    if ours == theirs:
        return True
    left = _vector(_without_point_name(ours, theirs))
    right = _vector(_without_point_name(theirs, ours))
    left = _conclusion(left, right)
    left_group = group_of(left)
    right_group = group_of(right)
    if left_group is None and right_group is None and (_words(left) or _words(right)):
        return _same_words(left, right)
    value = _named(left)[1]
    if left_group is None and group_of(value):
        return await _same(value, right, algebra)
    value = _named(right)[1]
    if right_group is None and group_of(value):
        return await _same(left, value, algebra)
    if left_group or right_group:
        return await _same_groups(left, right, algebra)
    return await _same_atoms(left, right, algebra)


def _without_point_name(text: str, other: str) -> str:
    """Leave out the name of a point, as in ``P(1,2)``, if *other* is a point without a name."""
    match = _POINT.match(text)
    if match and other.startswith("("):
        return text[match.end() :]
    return text


def _vector(text: str) -> str:
    r"""Spell ``3\vec{i}-2\vec{j}`` as the pair or triple of its coefficients."""
    *pieces, rest = _UNIT_VECTOR.split(text)
    coefficients = [piece.strip() for piece in pieces[::2]]
    axes = pieces[1::2]
    if not axes or rest.strip() or len(set(axes)) < len(axes):
        return text
    if not all(map(_COEFFICIENT.fullmatch, coefficients)):
        return text
    if not all(coefficient.startswith(("+", "-")) for coefficient in coefficients[1:]):
        return text
    values = dict.fromkeys("ijk" if "k" in axes else "ij", "0")
    for axis, coefficient in zip(axes, coefficients, strict=True):
        number = f"{coefficient}1" if coefficient in ("", "+", "-") else coefficient
        values[axis] = number.removeprefix("+")
    return f"({','.join(values.values())})"


def _conclusion(text: str, gold: str) -> str:
    r"""
    Return what follows the last ``\implies`` in *text*, if *gold* is one value.

    If that is a list that ends with a sum such as ``m+n = 5``, return the sum alone.
    """
    if group_of(gold) is not None or _IMPLIES.search(gold):
        return text
    last = _IMPLIES.split(text)[-1].strip()
    *others, final = split(last, ",")
    if others and _SUM.fullmatch(split(final, "=")[0]):
        return final
    return last


async def _same_groups(our_text: str, their_text: str, algebra: Algebra) -> Verdict:
    ours, theirs = _alike(our_text, their_text)
    if ours is None or theirs is None or ours.kind != theirs.kind:
        return False
    if max(len(ours.items), len(theirs.items)) > MAX_ITEMS:
        return False
    if ours.variable and theirs.variable and ours.variable != theirs.variable:
        return False
    if ours.kind == LIST:
        return await _same_sets(ours.items, theirs.items, algebra)
    if len(ours.items) != len(theirs.items):
        return False
    pairs = zip(ours.items, theirs.items, strict=True)
    return _all([await _same(item, other, algebra) for item, other in pairs])


async def _same_sets(ours: Sequence[str], theirs: Sequence[str], algebra: Algebra) -> Verdict:
    """Whether each item of one list is also in the other one."""
    rows = [[await _same(item, other, algebra) for other in theirs] for item in ours]
    columns = zip(*rows, strict=True)
    return _all([_any(verdicts) for verdicts in (*rows, *columns)])


def _all(verdicts: Sequence[Verdict]) -> Verdict:
    if False in verdicts:
        return False
    if None in verdicts:
        return None
    return True


def _any(verdicts: Sequence[Verdict]) -> Verdict:
    if True in verdicts:
        return True
    if None in verdicts:
        return None
    return False


def _alike(our_text: str, their_text: str) -> tuple[Group | None, Group | None]:
    """
    Return the parts of both answers, as groups of one kind if that is possible.

    A single item is a list of one. Values of variables, ``x = 1, y = 2``, are a pair if the other
    answer is a pair.
    """
    ours = group_of(our_text)
    theirs = group_of(their_text)
    if ours and theirs and (ours.kind == LIST) != (theirs.kind == LIST):
        ours = _without_outer_group(ours)
        theirs = _without_outer_group(theirs)
    if ours is None and theirs is not None and theirs.kind == LIST:
        ours = Group(LIST, (our_text,))
    if theirs is None and ours is not None and ours.kind == LIST:
        theirs = Group(LIST, (their_text,))
    if ours is None or theirs is None:
        return ours, theirs
    match ours.kind, theirs.kind:
        case "list", "list":
            return _without_names(ours, theirs)
        case "list", "()":
            return _in_order_of_names(ours), theirs
        case "()", "list":
            return ours, _in_order_of_names(theirs)
        case _:
            return ours, theirs


def _without_outer_group(group: Group) -> Group:
    """Return the pair in a list that has one item, a pair; other groups as they are."""
    if len(group.items) > 1:
        return group
    return group_of(group.items[0]) or group


def _without_names(ours: Group, theirs: Group) -> tuple[Group, Group]:
    """Compare ``1, 2`` with ``x = 1, y = 2`` in this order, as two pairs."""
    if any(map(_SIMPLE_NAMED_VALUE.fullmatch, ours.items)):
        return ours, theirs
    matches = [_SIMPLE_NAMED_VALUE.fullmatch(item) for item in theirs.items]
    values = [match[1] for match in matches if match]
    names = {item.partition("=")[0] for item in theirs.items}
    if len(names) == len(values) == len(matches) > 1:
        return Group(PAIR, ours.items), Group(PAIR, values)
    return ours, theirs


def _in_order_of_names(group: Group) -> Group:
    """Return ``x = 1, y = 2`` as a pair, if every item has a name and the names are in order."""
    matches = [_NAMED_VALUE.fullmatch(item) for item in group.items]
    names = [match[1].lstrip("\\") for match in matches if match]
    if len(names) < len(matches) or names != sorted(set(names)):
        return group
    return Group(PAIR, [match[2] for match in matches if match])


async def _same_atoms(ours: str, theirs: str, algebra: Algebra) -> Verdict:
    ours, theirs = _sides(ours, theirs)
    if ours == theirs:
        return ours != ""
    if r"\approx" in ours:  # An exact value with its decimals is right if either is.
        parts = [part.strip() for part in ours.split(r"\approx") if part.strip()]
        return _any([await _same(part, theirs, algebra) for part in parts])
    our_ratio = _as_fraction(ours)
    their_ratio = theirs if _TIME.fullmatch(theirs) else _as_fraction(theirs)
    has_ratio = our_ratio != ours or their_ratio != theirs
    if has_ratio and _FRACTION.search(ours) and _FRACTION.search(theirs):
        return await _same_atoms(our_ratio, their_ratio, algebra)
    our_modulus = _MODULUS.fullmatch(ours)
    their_modulus = _MODULUS.fullmatch(theirs)
    if our_modulus and their_modulus:
        return our_modulus.groups() == their_modulus.groups()
    return await _same_quantities(quantity(_residue(ours)), quantity(theirs), algebra)


async def _same_quantities(ours: Quantity, theirs: Quantity, algebra: Algebra) -> Verdict:
    if _other_unit(ours, theirs):
        return False
    if ours.value is not None and theirs.value is not None:
        # "0.25%" is not 0.25, but the sign is often left out where the gold has it.
        added = "percent" in ours.unit and "percent" not in theirs.unit
        if ours.value == theirs.value and not (added and abs(ours.value) < 1):
            return True
        return _share(ours.value, ours.unit) == _share(theirs.value, theirs.unit)
    if ours.expression == theirs.expression:
        return True
    if _unreadable(ours.expression) or _unreadable(theirs.expression):
        return False
    if ("=" in ours.expression) != ("=" in theirs.expression):
        return False
    return await algebra(theirs.expression, ours.expression)


def _as_fraction(text: str) -> str:
    """Return a ratio, ``7:3``, as a fraction; other texts as they are."""
    match = _RATIO.fullmatch(text)
    if match is None:
        return text
    return rf"\frac{{{match[1]}}}{{{match[2]}}}"


def _residue(text: str) -> str:
    r"""Leave out the modulus of ``33\pmod{1000}``, if the number is smaller."""
    match = _MODULUS.fullmatch(text)
    if match and int(match[1]) < int(match[2]):
        return match[1]
    return text


def _unreadable(expression: str) -> bool:
    """Whether the algebra library would misread *expression*."""
    if _BASED.search(expression):
        return True
    return _UNREADABLE.search(_INDEXED.sub("x", expression)) is not None


def _other_unit(left: Quantity, right: Quantity) -> bool:
    """
    Whether both have units that differ.

    Units differ if they have no word in common, or different powers, such as cm^2 and cm^3.
    """
    ours = left.unit - POWERS
    theirs = right.unit - POWERS
    if ours and theirs and ours.isdisjoint(theirs):
        return True
    return (left.unit ^ right.unit) >= POWERS


def _share(value: Fraction, unit: frozenset[str]) -> Fraction:
    """Return 0.5 for 50%, and other values as they are."""
    if "percent" in unit:
        return value / 100
    return value


def _sides(ours: str, theirs: str) -> tuple[str, str]:
    """
    Leave out a name of the value, as in ``x = 5`` or ``f(x) = 2x``.

    A name that both answers have must be the same one. A true answer that is an equation for
    several variables keeps its left side.
    """
    our_name, our_value = _named(ours)
    their_name, their_value = _named(theirs)
    if our_name and their_name:
        if our_name == their_name:
            return our_value, their_value
        return ours, theirs
    if our_name and "=" not in theirs:
        return our_value, theirs
    if their_name and "=" not in ours:
        left_side = split(theirs, "=")[0]
        if not _SEVERAL_VARIABLES.search(left_side):
            return ours, their_value
    return ours, theirs


def _named(text: str) -> tuple[str, str]:
    """
    Return the name and the value in *text*.

    The name is "=" for a chain of numbers. It is "" for an equation to solve, and without "=".
    """
    first, *rest = split(text, "=")
    if not rest:
        return "", text
    value = rest[-1]
    if _NAME.fullmatch(first):
        return first, value
    without_commands = re.sub(r"\\[a-zA-Z]+", "", first)
    if bracketed(value) or not re.search(r"[a-zA-Z]", without_commands):
        return "=", value
    return "", text


def _same_words(ours: str, theirs: str) -> bool:
    """Compare two texts, at least one of which has words."""
    if _other_case(ours, theirs):
        return False
    if _words(ours) == _words(theirs):
        return True
    letters = _letters(ours)
    return letters != "" and letters == _letters(theirs)


def _words(text: str) -> str:
    r"""Return the words of ``\text{East}`` in lower case; "" if *text* is an expression."""
    bare = _TEXT.sub(r" \1 ", text)
    has_words = bare != text or re.search(r"[a-zA-Z]{4}", bare)
    if not has_words or re.search(r"[\\=<>^_+*/]", bare) or not re.match(r"[ (]*[a-zA-Z]", bare):
        return ""
    without_ordinals = re.sub(r"(?<=\d)(?:st|nd|rd|th)\b", "", bare.lower())
    words: list[str] = _TOKEN.findall(without_ordinals)
    if len(words) > 1 and words[0] in ("the", "a", "an"):
        words = words[1:]
    return " ".join(words)


def _letters(text: str) -> str:
    r"""Return "c" for ``C``, ``(C)`` and ``\text{(C)}``; "" if other signs than letters remain."""
    bare = _TEXT.sub(r"\1", text).strip("()[] .").lower()
    if bare.isalpha():
        return bare
    return ""


def _other_case(ours: str, theirs: str) -> bool:
    """Whether both are different single letters, such as ``R`` and ``r``: they may be variables."""
    left = _TEXT.sub(r"\1", ours).strip()
    right = _TEXT.sub(r"\1", theirs).strip()
    return len(left) == len(right) == 1 and left != right
