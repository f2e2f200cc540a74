r"""
Decide whether an answer means the same as the gold, the true answer.

This module compares lists, pairs and intervals item by item, and texts word by word. `algebra`
compares two expressions that have no lists, words or units.

A false "right" is worse than a false "wrong". Answers of different kinds are different, for example
the list ``2, 3`` and the pair ``(2, 3)``. A decimal number differs from the exact number that it
approximates.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from .algebra import equal, parse
from .groups import LETTER, LIST, PAIR, Group, bracketed, group_of, split
from .normal import POWERS, Quantity, normal, quantity

_COMPUTATION = "="  # stands for the name if the left side is a computation: 2+3 = 5
MAX_ITEMS = 16  # of a list or a pair; algebra compares each item with each

# The name of a value before "=". Each line has examples.
_NAME = re.compile(
    r"\{[a-zA-Z]\}(?:\^\{-1\})?"  # {A}, {A}^{-1}
    r"|\\vec\{?[a-zA-Z]\}?"  # \vec{v}
    r"|[a-zA-Z](?:_\w|_\{[\w,]+\}|'|\^\{-1\})*"  # x, a_1, a_{n,k}, f', f^{-1}
    r"(?:\((?:[a-z]|-?\d+)(?:,[a-z])*\))?"  # the same with arguments: f(x), g(2), h(x,y)
    r"|\\[a-z]+(?:_\w)?"  # \theta, \alpha_1
    r"|\\(?:sin|cos|tan|cot|det) ?(?:[a-zA-Z]|\\theta|\\angle ?[A-Z]{1,3})"  # \sin x, \cos\theta
    r"|(?:\\Pr|\{P\})\([^()]*\)"  # \Pr(A), {P}(A)
    r"|[a-zA-Z](?:_\w)?(?:(?:[-+]| ?\\times ?)?[a-zA-Z](?:_\w)?){1,9}"  # AB, x+y, a_1-b_1
    r"|\d{0,4}[a-zA-Z](?:[-+]\d{0,4}[a-zA-Z]){1,9}"  # 2x+3y
    r"|\\frac\{[a-zA-Z]{1,2}\}\{[a-zA-Z]{1,2}\}"  # \frac{AB}{CD}
    r"|m?\\(?:(?:measured)?angle|triangle|overline|overrightarrow)"  # m\angle ABC, \triangle ABC,
    r"\{? ?[A-Z]{1,3}\}?"  # \overline{AB}
    r"|\|[A-Z](?:(?:\\c[au]p ?)?[A-Z])?\|"  # |A|, |AB|, |A\cup B|
    r"|\[[A-Z]{3,4}\]"  # [ABC]
    r"|P\([^()]*\)"  # P(A \cap B)
    r"|\\text\{[^{}]*\}(?:\([^()]*\))?"  # \text{Area}, \text{Area}(ABC)
    r"|[a-zA-Z ]{4,}"  # total cost
)
_BASED = re.compile(r"\d[\dA-F]{0,40}_(?:\d|\{\d{1,4}\})")  # 101_2, 1A_{16}: a number and its base
_INDEXED = re.compile(r"[a-zA-Z]_(?:\w|\{\w+\})")  # a_1, a_{10}
_POINT = re.compile(r"[A-Z](?:_\w|')?(?=\([^()]+(?:,[^()]+)+\)$)")  # the P of P(1,2)
# A token of a text with words: a minus sign, a number, a word, or a symbol that is no punctuation.
_TOKEN = re.compile(
    r"(?<![\w)])-(?= ?\d)|\d+(?:\.\d+)?|[^\W\d_]+(?:'[^\W\d_]+)*|[^\w\s.,;:!?'\"()\[\]{}-]"
)
# A number with a modulus. It gives 33 and 1000 for each of 33\pmod{1000}, 33 (mod 1000),
# x\equiv 33\pmod{1000} and 33 \text{modulo 1000}.
_MODULUS = re.compile(
    r"(?:(?:[a-zA-Z] ?)?\\equiv ?)?"  # x\equiv
    r"(\d{1,40}) ?"  # 33
    r"\(?(?:\\text\{)?\(?\\?[pb]?mod(?:ulo)?[ }{(]*"  # \pmod{, (mod, \bmod, \text{modulo
    r"(\d{1,40})[)} ]*"  # 1000
)
_RATIO = re.compile(r"(\d+(?:\.\d+)?) ?(?::|to|\\text\{to\}) ?(\d+(?:\.\d+)?)")  # 7:3, 7 to 3
_DIVISION = re.compile(r":|/|\\frac|\bto\b")  # a sign of a ratio or a fraction
_TIME = re.compile(r"\d{1,2}:[0-5]\d")  # 7:30
_IMPLIES = re.compile(
    r"\\(?:implies|Rightarrow|Longrightarrow)(?![a-zA-Z])"
    r"|,? ?\\text\{(?:so|thus|hence|then|therefore|giving|and)\b[a-z, ]*\}"
)
_SUM = re.compile(r"[a-zA-Z](?:_\w)?(?:(?:[-+]|\\times )?[a-zA-Z](?:_\w)?)+")  # m+n, a_1-b
# The algebra library misreads words, dots, numbers with a space (5 6), primes (3'), ratios (1:2),
# and indices, except simple indices such as a_1. So `_unreadable` first replaces what matches
# `_INDEXED`.
_UNREADABLE = re.compile(r"\\text|\\ldots|[\d.] +[\d.]|_|\d'|:")
_TEXT = re.compile(r"\\text\{([^{}]*)\}")
# The left side of an equation for several variables: x+y, 2\times x, \frac{x}{2}, xy.
_SEVERAL_VARIABLES = re.compile(
    r"(?<!\^\{)[-+*]|\\times|\\frac|(?<![a-zA-Z\\])[a-z]{2,3}(?![a-zA-Z(])"
)
_NAMED_VALUE = re.compile(rf"({LETTER})=(.*)")  # x=1


def same(answer: str, gold: str) -> bool:
    """Whether *answer* means the same as *gold*, the true answer."""
    if not answer.strip():
        return False
    if [part.strip() for part in answer.split(",")] == [part.strip() for part in gold.split(",")]:
        return True
    return _same(normal(answer), normal(gold))


def _same(answer: str, gold: str) -> bool:
    """Compare two answers of any kind. Both are in the notation of `normal`."""
    if not answer or not gold:
        return False
    if answer == gold:
        return True
    answer_without_name = _without_point_name(answer, gold)
    gold = _without_point_name(gold, answer)
    answer = _conclusion(answer_without_name, gold)
    answer_group = group_of(answer)
    gold_group = group_of(gold)
    if answer_group is None and gold_group is None and (_words(answer) or _words(gold)):
        return _same_words(answer, gold)
    # A value with a name can be a group, for example the pair in A = (1,2).
    _, answer_value = _named(answer)
    if answer_group is None and group_of(answer_value):
        return _same(answer_value, gold)
    _, gold_value = _named(gold)
    if gold_group is None and group_of(gold_value):
        return _same(answer, gold_value)
    if answer_group or gold_group:
        return _same_groups(answer, gold)
    return _same_single_values(answer, gold)


def _without_point_name(text: str, other: str) -> str:
    """Leave out the name of a point, as in ``P(1,2)``, if *other* is a point without a name."""
    match = _POINT.match(text)
    if match and other.startswith("("):
        return text[match.end() :]
    return text


def _conclusion(answer: str, gold: str) -> str:
    r"""
    Return what follows the last ``\implies`` in *answer*, if *gold* is a single value.

    If the conclusion is a list whose last item is a named sum, for example ``m+n = 5``, return only
    this item.
    """
    if group_of(gold) is not None or _IMPLIES.search(gold):
        return answer
    conclusion = _IMPLIES.split(answer)[-1].strip()
    *others, final = split(conclusion, ",")
    if others and _SUM.fullmatch(split(final, "=")[0]):
        return final
    return conclusion


def _same_groups(answer: str, gold: str) -> bool:
    """Compare two answers of which at least one is a group."""
    answer_group, gold_group = _as_same_kind(answer, gold)
    if answer_group is None or gold_group is None or answer_group.kind != gold_group.kind:
        return False
    items = answer_group.items
    gold_items = gold_group.items
    if max(len(items), len(gold_items)) > MAX_ITEMS:
        return False
    # The two variables have to be the same, unless one is left out: x > 2 and (2,\infty).
    variables = {answer_group.variable, gold_group.variable} - {""}
    if len(variables) > 1:
        return False
    if answer_group.kind == LIST:
        return _same_sets(items, gold_items)
    if len(items) != len(gold_items):
        return False
    pairs = zip(items, gold_items, strict=True)
    return all(_same(item, gold_item) for item, gold_item in pairs)


def _same_sets(items: Sequence[str], gold_items: Sequence[str]) -> bool:
    """Whether each item of one list is in the other list, and the reverse."""
    every_item = all(any(_same(item, gold) for gold in gold_items) for item in items)
    return every_item and all(any(_same(item, gold) for item in items) for gold in gold_items)


def _as_same_kind(answer_text: str, gold_text: str) -> tuple[Group | None, Group | None]:
    """
    Return both answers as groups, if possible of the same kind. None: the answer is no group.

    A single value becomes a list of one item if the other answer is a list. The list
    ``x = 1, y = 2`` becomes a pair if the other answer is a pair.
    """
    answer = group_of(answer_text)
    gold = group_of(gold_text)
    if answer and gold and (answer.kind == LIST) != (gold.kind == LIST):
        answer = _without_outer_group(answer)
        gold = _without_outer_group(gold)
    if answer is None and gold is not None and gold.kind == LIST:
        answer = Group(LIST, (answer_text,))
    if gold is None and answer is not None and answer.kind == LIST:
        gold = Group(LIST, (gold_text,))
    if answer is None or gold is None:
        return answer, gold
    if answer.kind != gold.kind:
        return _in_order_of_names(answer), _in_order_of_names(gold)
    # The answer 1, 2 to x = 1, y = 2 means these values in this order.
    gold_values = _values_by_name(gold)
    if gold_values and not any(map(_NAMED_VALUE.fullmatch, answer.items)):
        return Group(PAIR, answer.items), Group(PAIR, [*gold_values.values()])
    return answer, gold


def _without_outer_group(group: Group) -> Group:
    """Return the only item of *group* if this item is a group, too. Else return *group*."""
    if len(group.items) > 1:
        return group
    return group_of(group.items[0]) or group


def _in_order_of_names(group: Group) -> Group:
    """Return ``x = 1, y = 2`` as a pair if every item has a name and the names are in order."""
    values = _values_by_name(group)
    if group.kind != LIST or not values or list(values) != sorted(values):
        return group
    return Group(PAIR, [*values.values()])


def _values_by_name(group: Group) -> dict[str, str]:
    """Return the values of ``x = 1, y = 2`` by their names; {} unless each item has a name."""
    matches = [_NAMED_VALUE.fullmatch(item) for item in group.items]
    values = {match[1].lstrip("\\"): match[2] for match in matches if match}
    return values if len(values) == len(group.items) else {}


def _same_single_values(answer: str, gold: str) -> bool:
    """Compare two answers that are neither groups nor words."""
    answer, gold = _without_names(answer, gold)
    if answer == gold:
        return answer != ""  # Both are empty if the value after a name is missing: "x =".
    if r"\approx" in answer:  # 1/3 \approx 0.333 is right if one of its parts is right.
        parts = [part.strip() for part in answer.split(r"\approx") if part.strip()]
        return any(_same(part, gold) for part in parts)
    answer_fraction = _ratio_as_fraction(answer)
    # A gold such as 7:30 can be a time, and a time equals no fraction.
    gold_fraction = gold if _TIME.fullmatch(gold) else _ratio_as_fraction(gold)
    has_ratio = answer_fraction != answer or gold_fraction != gold
    # The ratio 2:1 equals 4:2 and 2/1, but not the number 2.
    if has_ratio and _DIVISION.search(answer) and _DIVISION.search(gold):
        return _same_single_values(answer_fraction, gold_fraction)
    answer_modulus = _MODULUS.fullmatch(answer)
    gold_modulus = _MODULUS.fullmatch(gold)
    if answer_modulus and gold_modulus:
        return answer_modulus.groups() == gold_modulus.groups()
    return _same_quantities(quantity(_residue(answer)), quantity(gold))


def _same_quantities(answer: Quantity, gold: Quantity) -> bool:
    """Compare two numbers or expressions with their units."""
    if _units_differ(answer.unit, gold.unit):
        return False
    if _unreadable(answer.expression) or _unreadable(gold.expression):
        return answer.expression == gold.expression
    # An equation and an expression are answers of different kinds.
    if ("=" in answer.expression) != ("=" in gold.expression):
        return False
    try:
        value = parse(answer.expression)
        gold_value = parse(gold.expression)
        # The answer and the gold are equal even if one of them lacks "%". But the answer 0.25% is
        # wrong if the gold is 0.25, because this gold probably means 25%.
        adds_percent = "percent" in answer.unit and "percent" not in gold.unit
        shrinks_share = adds_percent and abs(value) < 1
        if not shrinks_share and equal(value, gold_value):
            return True
        if "percent" not in answer.unit | gold.unit:
            return False
        return equal(_share(value, answer.unit), _share(gold_value, gold.unit))
    except Exception:  # The library cannot read one of them.
        return answer.expression == gold.expression


def _ratio_as_fraction(text: str) -> str:
    """Return a ratio, ``7:3``, as a fraction, and other texts as they are."""
    match = _RATIO.fullmatch(text)
    if match is None:
        return text
    return rf"\frac{{{match[1]}}}{{{match[2]}}}"


def _residue(text: str) -> str:
    r"""Leave out the modulus of ``33\pmod{1000}``, if the number is smaller than the modulus."""
    match = _MODULUS.fullmatch(text)
    if match and int(match[1]) < int(match[2]):
        return match[1]
    return text


def _unreadable(expression: str) -> bool:
    """Whether the algebra library would misread *expression*."""
    if _BASED.search(expression):
        return True
    return _UNREADABLE.search(_INDEXED.sub("x", expression)) is not None


def _units_differ(answer: frozenset[str], gold: frozenset[str]) -> bool:
    """
    Whether both answers have a unit, and the units differ.

    Units differ if they have no word in common. They also differ if one is a square and the other
    is a cube, for example cm^2 and cm^3.
    """
    answer_words = answer - POWERS
    gold_words = gold - POWERS
    if answer_words and gold_words and answer_words.isdisjoint(gold_words):
        return True
    in_one_only = answer ^ gold
    return POWERS.issubset(in_one_only)


def _share(value: Any, unit: frozenset[str]) -> Any:
    """Return 0.5 for 50%, and other values as they are."""
    if "percent" in unit:
        return value / 100
    return value


def _without_names(answer: str, gold: str) -> tuple[str, str]:
    """
    Leave out the name of a value, as in ``x = 5`` or ``f(x) = 2x``.

    If both have a name, the names stay unless they are equal. If the gold is an equation for
    several variables, its left side stays.
    """
    answer_name, answer_value = _named(answer)
    gold_name, gold_value = _named(gold)
    if answer_name and gold_name:
        if answer_name == gold_name:
            return answer_value, gold_value
        return answer, gold
    if answer_name and "=" not in gold:
        return answer_value, gold
    if gold_name and "=" not in answer:
        left_side = split(gold, "=")[0]
        if not _SEVERAL_VARIABLES.search(left_side):
            return answer, gold_value
    return answer, gold


def _named(text: str) -> tuple[str, str]:
    r"""
    Return the name and the value in *text*.

    The name of a computation such as ``2+3 = 5`` is `_COMPUTATION`. The name is "" for an equation
    to solve, such as ``x^2 = 4``, and for a text without an equals sign.
    """
    first, *rest = split(text, "=")
    if not rest:
        return "", text
    value = rest[-1]
    if _NAME.fullmatch(first):
        return first, value
    # A value in brackets is a result, as in A \cap B = \{1,2\}.
    if bracketed(value) or value.startswith(r"\begin"):
        return _COMPUTATION, value
    without_commands = re.sub(r"\\[a-zA-Z]+", "", first)
    has_variables = re.search(r"[a-zA-Z]", without_commands)
    return ("", text) if has_variables else (_COMPUTATION, value)


def _same_words(answer: str, gold: str) -> bool:
    """Compare two texts of which at least one has words."""
    if _words(answer) == _words(gold):
        return True
    letters = _letters(answer)
    return letters != "" and letters == _letters(gold)


def _words(text: str) -> str:
    r"""Return the words of *text*, such as "east" for ``\text{East}``; "" for an expression."""
    bare = _TEXT.sub(r" \1 ", text)
    has_words = bare != text or re.search(r"[a-zA-Z]{4}", bare)
    is_expression = re.search(r"[\\=<>^_+*/]", bare)
    begins_with_letter = re.match(r"[ (]*[a-zA-Z]", bare)
    if is_expression or not (has_words and begins_with_letter):
        return ""
    without_ordinals = re.sub(r"(?<=\d)(?:st|nd|rd|th)\b", "", bare.lower())
    words: list[str] = _TOKEN.findall(without_ordinals)
    if len(words) > 1 and words[0] in ("the", "a", "an"):
        words = words[1:]
    return " ".join(words)


def _letters(text: str) -> str:
    r"""
    Return the letters of *text* in lower case, without brackets and ``\text``.

    "": the text has other characters, too.
    """
    bare = _TEXT.sub(r"\1", text).strip("()[] .").lower()
    if bare.isalpha():
        return bare
    return ""
