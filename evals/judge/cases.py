"""
Steps to judge: each right, and once more with a slip. Built in, or made of the large model's own
chains.

Slips are of the kinds that small models make: of a number, sign, unit, variable or case.
"""

from __future__ import annotations

import asyncio
import random
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from stepspec.orchestrator.chain import THINK_END, Chain, Step
from stepspec.orchestrator.interfaces import Model

Slip: TypeAlias = Literal["number", "sign", "unit", "variable", "case"]
"""
What is wrong: a number, the sign of a term, a unit, a value or name that stands for another one, a
missing case.
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
    unit: units[(at + 1) % len(units)] for units in UNITS for at, unit in enumerate(units)
}
UNIT = re.compile(rf"(?<=\d )(?:{'|'.join(sorted(NEXT, key=len, reverse=True))})\b")
VARIABLE = re.compile(r"(?<![a-z_'\\{])[b-hj-z](?![\w'])", re.IGNORECASE)


def make_slip(step: str, rng: random.Random) -> tuple[str, Slip] | None:
    """
    Return *step* with one slip, and its kind, drawn from those that the step has a place for; None
    without one.
    """
    kinds = list(MAKERS)
    rng.shuffle(kinds)
    for kind in kinds:
        places = [changed for changed in MAKERS[kind](step, rng) if changed != step]
        if places:
            return rng.choice(places), kind
    return None


def _numbers(step: str, rng: random.Random) -> Iterator[str]:
    """The result of a step, its last number, a little off; or any other one."""
    for place in list(NUMBER.finditer(step))[-2:]:
        digits = place.group()
        at = rng.choice([at for at, digit in enumerate(digits) if digit.isdigit()])
        others = [digit for digit in "123456789" if digit != digits[at]]
        yield _with(step, place.start() + at, place.start() + at + 1, rng.choice(others))


def _signs(step: str, rng: random.Random) -> Iterator[str]:
    for place in SIGN.finditer(step):
        yield _with(step, place.start(), place.end(), "-" if place.group() == "+" else "+")


def _units(step: str, rng: random.Random) -> Iterator[str]:
    for place in UNIT.finditer(step):
        yield _with(step, place.start(), place.end(), NEXT[place.group()])


def _variables(step: str, rng: random.Random) -> Iterator[str]:
    """Another name, or another number, of the same step in the place of one."""
    for pattern in (VARIABLE, NUMBER):
        places = list(pattern.finditer(step))
        for place in places[1:]:
            others = sorted({other.group() for other in places} - {place.group()})
            if others:
                yield _with(step, place.start(), place.end(), rng.choice(others))


def _cases(step: str, rng: random.Random) -> Iterator[str]:
    """
    A list without its last item: ``2, 3 and 5`` becomes ``2, 3``, and ``x = 7 or x = -2`` becomes
    ``x = 7``.
    """
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


STEPS_FILE = Path(__file__).with_name("steps.toml")
MAX_TOKENS = 1024  # of a chain that the large model writes to have its steps judged
LIMIT = 256  # tokens of a step
STEPS = 6  # of one chain, so that one problem does not decide the result
SHORTEST = 12  # characters of a step that says something


@dataclass(frozen=True, slots=True)
class Case:
    """
    A step that is *right* after *chain*, and the same step with a *slip* of the kind *of*.

    *problem* is the number of its problem, whose steps are not independent. A step that is *own*
    was sampled by the large model.
    """

    chain: Chain
    right: str
    slip: str
    of: str
    problem: int
    own: bool = False

    def versions(self) -> tuple[tuple[bool, Step], tuple[bool, Step]]:
        """Both steps, each with whether it is right."""
        return (True, Step(self.right, "small")), (False, Step(self.slip, "small"))


def built_in() -> list[Case]:
    """The built-in steps: short problems of five kinds, with slips of five kinds."""
    cases: list[Case] = []
    table = tomllib.loads(STEPS_FILE.read_text(encoding="utf-8"))
    for number, problem in enumerate(table["problem"]):
        chain = Chain.of(problem["text"])
        for step in problem["steps"]:
            right, slip = (f"{step[version]}{chain.ends.text}" for version in ("right", "slip"))
            cases.append(Case(chain, right, slip, step["of"], number))
            chain = chain.extend(Step(right, "large"))
    return cases


async def own_case(model: Model, chain: Chain, problem: int, rng: random.Random) -> Case | None:
    """
    A step that *model*, which samples, writes after *chain*, with a slip made in it; None if it has
    no place for one.

    Its own step is taken to be right. It is sampled, because a greedy step is the likeliest text by
    definition, so that readings of probabilities would know it without judging it.
    """
    step = await model.write(chain, limit=LIMIT)
    if not usable(step) or (made := make_slip(step.text, rng)) is None:
        return None
    return Case(chain, step.text, *made, problem, own=True)


async def own_cases(
    greedy: Model,
    sampling: Model,
    problem: str,
    number: int,
    seed: int,
    over: Callable[[], bool] = lambda: False,
) -> list[Case]:
    """
    The first own cases of *sampling* about *problem*, after beginnings of *greedy*'s chain, until
    it is *over*.
    """
    rng, chain, cases = random.Random(f"{seed}/{number}"), Chain.of(problem), list[Case]()
    while (
        not (chain.finished or chain.closed or len(cases) == STEPS or over())
        and chain.tokens < MAX_TOKENS
    ):
        step, case = await asyncio.gather(
            greedy.write(chain, limit=LIMIT), own_case(sampling, chain, number, rng)
        )
        cases += [case] if case is not None else []
        chain = chain.extend(step)
    return cases


def usable(step: Step) -> bool:
    """Whether *step* is whole, says something, and does not end the thinking."""
    return (
        step.stop == "delimiter"
        and len(step.text.strip()) >= SHORTEST
        and THINK_END not in step.text
    )


def spread(cases: Sequence[Case], seed: int) -> list[Case]:
    """
    The *cases* in an order in which the first ones are of many problems, so that a deadline leaves
    a fair part.
    """
    by_problem: dict[int, list[Case]] = {}
    for case in cases:
        by_problem.setdefault(case.problem, []).append(case)
    queues = list(by_problem.values())
    random.Random(seed).shuffle(queues)
    longest = max(map(len, queues), default=0)
    return [queue[at] for at in range(longest) for queue in queues if at < len(queue)]
