"""Steps with a slip: errors of the kinds that small models make, made on purpose."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Literal, TypeAlias

Slip: TypeAlias = Literal["number", "sign", "unit", "variable", "case"]
"""
The kind of a slip: a number, the sign of a term, a unit, a value or a name in the place of another
one, or a missing case.
"""

NUMBER = re.compile(r"(?m)(?!^\d+[.)]\s)(?<![\w.,])\d+(?:,\d{3})*(?:\.\d+)?(?!\w)")
SIGN = re.compile(
    "(?<=\\S )[+\N{MINUS SIGN}-](?=\\s*[\\w($\\\\])|(?<=[\\w)])[+\N{MINUS SIGN}](?=[\\w(])"
)
UNITS = (
    ("seconds", "minutes", "hours", "days", "weeks"),
    ("second", "minute", "hour", "day", "week"),
    ("mm", "cm", "m", "km"),
    ("millimeters", "centimeters", "meters", "kilometers"),
    ("inches", "feet", "yards", "miles"),
    ("mg", "g", "kg"),
    ("grams", "kilograms", "ounces", "pounds"),
    ("ml", "liters", "gallons"),
    ("cents", "dollars"),
)
NEXT: Mapping[str, str] = {
    unit: units[(index + 1) % len(units)] for units in UNITS for index, unit in enumerate(units)
}
UNIT = re.compile(rf"(?<=\d )(?:{'|'.join(sorted(NEXT, key=len, reverse=True))})\b")
VARIABLE = re.compile(r"(?<![a-z_'\\{])[b-hj-z](?![\w'])", re.IGNORECASE)


def make_slip(step: str, rng: random.Random) -> tuple[str, Slip] | None:
    """
    Return *step* with one slip, and the kind of the slip. *rng* draws both.

    Return None if the step has no place for a slip.
    """
    kinds = list(MAKERS)
    rng.shuffle(kinds)
    for kind in kinds:
        places = [changed for changed in MAKERS[kind](step, rng) if changed != step]
        if places:
            return rng.choice(places), kind
    return None


def _numbers(step: str, rng: random.Random) -> Iterator[str]:
    """Change one digit of the last number of *step*, its result, or of the number before."""
    for number in list(NUMBER.finditer(step))[-2:]:
        text = number.group()
        place = rng.choice([index for index, char in enumerate(text) if char.isdigit()])
        others = [digit for digit in "123456789" if digit != text[place]]
        start = number.start() + place
        yield _with(step, start, start + 1, rng.choice(others))


def _signs(step: str, rng: random.Random) -> Iterator[str]:
    for place in SIGN.finditer(step):
        yield _with(step, place.start(), place.end(), "-" if place.group() == "+" else "+")


def _units(step: str, rng: random.Random) -> Iterator[str]:
    for place in UNIT.finditer(step):
        yield _with(step, place.start(), place.end(), NEXT[place.group()])


def _variables(step: str, rng: random.Random) -> Iterator[str]:
    """Replace a name or a number by another name or number of the same step."""
    for pattern in (VARIABLE, NUMBER):
        places = list(pattern.finditer(step))
        for place in places[1:]:
            others = sorted({other.group() for other in places} - {place.group()})
            if others:
                yield _with(step, place.start(), place.end(), rng.choice(others))


def _cases(step: str, rng: random.Random) -> Iterator[str]:
    """Drop the last item of a list: ``x = 7 or x = -2`` becomes ``x = 7``."""
    for place in re.finditer(r"(,? (?:and|or)) ((?:\w+ = )?-?\d+(?:\.\d+)?)(?=[.,;:)\s]|$)", step):
        yield _with(step, place.start(), place.end(), "")


MAKERS: Mapping[Slip, Callable[[str, random.Random], Iterator[str]]] = {
    "number": _numbers,
    "sign": _signs,
    "unit": _units,
    "variable": _variables,
    "case": _cases,
}


def _with(text: str, start: int, end: int, new: str) -> str:
    return text[:start] + new + text[end:]
