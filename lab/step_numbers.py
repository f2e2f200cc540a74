"""The numbers and equations of a step: which are new, which do not hold, and slips in them."""

from __future__ import annotations

import ast
import operator
import random
import re
from collections.abc import Callable, Mapping
from itertools import pairwise

NUMBER = re.compile(r"\d+(?:\.\d+)?")
THOUSANDS = re.compile(r"(?<=\d),(?=\d{3})")
FRACTION = re.compile(r"\\[dt]?frac\{([^{}]*)\}\{([^{}]*)\}")
TEXT = re.compile(r"\\text\{[^{}]*\}")
BREAKS = re.compile(r"[\n;]|\\\[|\\\]|\\\(|\\\)|(?<=[a-z])\.\s")
ENDS_WITH_EXPRESSION = re.compile(r"[\d.()+\-*/ %]+$")
BEGINS_WITH_EXPRESSION = re.compile(r"\s*[\d.()+\-*/ ]+%?")
SPELLINGS: Mapping[str, str] = {
    "\\times": "*",
    "\N{MULTIPLICATION SIGN}": "*",
    "\\cdot": "*",
    "\\div": "/",
    "\N{DIVISION SIGN}": "/",
    "\\left": "",
    "\\right": "",
    "\\$": "",
    "$": "",
    "\\%": "%",
    "\N{MINUS SIGN}": "-",
}
OPERATORS: Mapping[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: lambda left, right: left / right,
}
RELATIVE_ERROR = 0.006  # results are rounded to cents and per cents
ABSOLUTE_ERROR = 0.01


def new_numbers(text: str, before: str) -> list[str]:
    """Return the numbers of *text* that *before* lacks, without separators of thousands."""
    known = set(NUMBER.findall(THOUSANDS.sub("", before)))
    numbers = NUMBER.findall(THOUSANDS.sub("", text))
    return [number for number in dict.fromkeys(numbers) if number not in known]


def slip(text: str, rng: random.Random) -> str | None:
    """Return *text* with one digit of its last number changed. None: it has no number."""
    found = list(NUMBER.finditer(text))
    if not found:
        return None
    place = found[-1].start() + rng.randrange(len(found[-1].group().partition(".")[0]))
    digits = [digit for digit in "123456789" if digit != text[place]]
    return text[:place] + rng.choice(digits) + text[place + 1 :]


def wrong_equations(text: str) -> int:
    """Count the equations of numbers in *text* whose sides differ by more than rounding."""
    wrong = 0
    for line in BREAKS.split(_plain(text)):
        sides = [_value(side, first=place == 0) for place, side in enumerate(line.split("="))]
        for left, right in pairwise(sides):
            if left is not None and right is not None and _differ(left, right):
                wrong += 1
    return wrong


def _plain(text: str) -> str:
    """Spell the formulas of *text* as Python does."""
    for spelling, plain in SPELLINGS.items():
        text = text.replace(spelling, plain)
    text = FRACTION.sub(r"((\1)/(\2))", text)
    return THOUSANDS.sub("", TEXT.sub("", text))


def _differ(left: float, right: float) -> bool:
    return abs(left - right) > RELATIVE_ERROR * max(1.0, abs(left)) + ABSOLUTE_ERROR


def _value(side: str, *, first: bool) -> float | None:
    """Return the value of the expression beside the equals sign; None: it is not of numbers."""
    match = ENDS_WITH_EXPRESSION.search(side) if first else BEGINS_WITH_EXPRESSION.match(side)
    if match is None or not any(char.isdigit() for char in match.group()):
        return None
    found = match.group()
    if first:
        neighbour = side[: match.start()][-1:]
        touches = not found[0].isspace() or found.strip()[:1] in tuple("+-*/")
    else:
        neighbour = side[match.end() :][:1]
        touches = not found[-1].isspace()
    if touches and (neighbour.isalnum() or neighbour in tuple("^_\\{} ")):
        return None
    expression = found.strip().strip(".").replace("%", "/100")
    try:
        return _evaluate(ast.parse(expression, mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError, OverflowError):
        return None


def _evaluate(node: ast.expr) -> float:
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return float(node.value)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_evaluate(node.operand)
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        return OPERATORS[type(node.op)](_evaluate(node.left), _evaluate(node.right))
    raise ValueError("no expression of numbers")
