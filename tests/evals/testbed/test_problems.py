"""The problems of the testbed, and their answers."""

import random
import re
from collections.abc import Iterator
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepspec.evals.benchmarks.miniature import (
    DOUBLING,
    MAX_VALUE,
    OPERAND,
    PHRASES,
    STEPS,
    Problem,
    draw,
    generate,
    is_held_out,
)

from ...orchestrator.arms import BOUNDED
from ...worked import sentences, understood, worked_steps

SEEDS = st.integers(0, 2**32)
PROBLEMS = SEEDS.map(lambda seed: draw(random.Random(seed)))
EXAMPLE = (
    "Maya has 10 coins. On Monday she buys 4 more. On Tuesday she doubles them. On Wednesday"
    " she sells 8. On Thursday she keeps half of them. How many coins does Maya have now?"
)


def true(paragraph: str) -> bool:
    """Calculate the equation of a paragraph anew."""
    ((a, sign, b, result),) = re.findall(r"(\d+) ([-+*/]) (\d+) = (\d+)\.\n\n", paragraph)
    left = int(a)
    by = int(b)
    return {"+": left + by, "-": left - by, "*": left * by, "/": left / by}[sign] == int(result)


def test_a_problem_is_understood() -> None:
    assert understood(EXAMPLE) == [10, 14, 28, 20, 10]
    assert worked_steps(EXAMPLE) == [
        "On Monday she buys 4 more: 10 + 4 = 14.\n\n",
        "On Tuesday she doubles them: 14 * 2 = 28.\n\n",
        "Alternatively, 14 + 14 = 28.\n\n",
        "On Wednesday she sells 8: 28 - 8 = 20.\n\n",
        "On Thursday she keeps half of them: 20 / 2 = 10.\n\n",
        "Let me check: 10 + 10 = 20.\n\n",
    ]


def test_the_problems_of_a_seed_are_always_the_same() -> None:
    """The published figures are of these problems."""
    assert next(generate(2026)) == Problem(
        "Nina has 58 shells. On Monday she finds 3. On Tuesday she wins 9. On Wednesday she"
        " sells 3. How many shells does Nina have now?",
        67,
    )


@given(problem=PROBLEMS)
@BOUNDED
def test_the_answer_follows_from_the_text_alone(problem: Problem) -> None:
    values = understood(problem.text)
    assert problem.answer == values[-1]
    assert all(value.is_integer() and 1 <= value <= MAX_VALUE for value in values)


@given(problem=PROBLEMS)
@BOUNDED
def test_worked_reasoning_is_right_by_arithmetic(problem: Problem) -> None:
    assert all(true(step) for step in worked_steps(problem.text))


@pytest.mark.parametrize("steps", [STEPS, (1, 1), (3, 3), (7, 7)])
def test_problems_have_the_requested_number_of_steps(steps: tuple[int, int]) -> None:
    rng = random.Random(5)
    counts = [len(sentences(draw(rng, steps).text)) for _ in range(100)]
    assert (min(counts), max(counts)) == steps


def test_every_wording_occurs_with_every_operand_and_doublings_are_rare() -> None:
    rng = random.Random(5)
    drawn = [sentence for _ in range(300) for sentence in sentences(draw(rng).text)]
    operands = {int(number) for number in re.findall(r"\d+", " ".join(drawn))}
    assert (min(operands), max(operands)) == OPERAND
    wordings = {re.sub(r"\d+", "{n}", re.sub(r"On \w+ s?he ", "", sentence)) for sentence in drawn}
    assert wordings == {phrase for phrases in PHRASES.values() for phrase in phrases}
    doublings = [sentence for sentence in drawn if not re.search(r"\d", sentence)]
    assert 0.5 * DOUBLING < len(doublings) / len(drawn) < 1.5 * DOUBLING


def test_the_same_seed_gives_the_same_held_out_problems() -> None:
    def problems(seed: int) -> list[Problem]:
        return list(islice(generate(seed), 50))

    assert problems(3) == problems(3) != problems(4)
    assert all(is_held_out(problem.text) for problem in problems(3))


def test_an_eighth_of_the_problems_is_held_out() -> None:
    def drawn() -> Iterator[bool]:
        rng = random.Random(5)
        for _ in range(2000):
            yield is_held_out(draw(rng).text)

    assert 0.1 < sum(drawn()) / 2000 < 0.15
