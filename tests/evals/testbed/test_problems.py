"""The problems of the testbed, their worked reasoning and answers."""

import random
import re
from collections.abc import Callable
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepspec.evals.benchmarks.miniature import (
    DAYS,
    MAX_VALUE,
    PEOPLE,
    PHRASES,
    THINK_END,
    Difficulty,
    Operation,
    Problem,
    Split,
    draw,
    final_answer,
    generate,
    worked_steps,
)
from stepspec.orchestrator import chain
from stepspec.orchestrator.answer import extract

from ...orchestrator.arms import BOUNDED

SEEDS = st.integers(0, 2**32)
PROBLEMS = SEEDS.map(lambda seed: draw(random.Random(seed)))
EXAMPLE = Problem(
    "Maya",
    "coins",
    10,
    (Operation("add", 4), Operation("double", 0), Operation("sub", 8, 2), Operation("halve", 0)),
)
CHANGES: dict[str, Callable[[float, int], float]] = {
    r"buys (\d+) more|finds (\d+)|wins (\d+)": lambda value, n: value + n,
    r"gives away (\d+)|loses (\d+)|sells (\d+)": lambda value, n: value - n,
    r"doubles them": lambda value, n: value * 2,
    r"keeps half of them": lambda value, n: value / 2,
}


def understood(text: str) -> list[float]:
    """
    Read a problem as its reader would, and return the number of things at the beginning and after
    every day.
    """
    beginning = re.match(r"(\w+) has (\d+) (\w+)\. ", text)
    assert beginning
    person, start, item = beginning.groups()
    assert text.endswith(f" How many {item} does {person} have now?")
    values = [float(start)]
    for day, sentence in zip(DAYS, re.findall(r"On [^.]*\.", text), strict=False):
        clause = sentence.removeprefix(f"On {day} {PEOPLE[person]} ").removesuffix(".")
        ((change, match),) = [
            (c, m) for words, c in CHANGES.items() if (m := re.fullmatch(words, clause))
        ]
        values.append(change(values[-1], int(next(filter(None, match.groups()), 0))))
    return values


def true(paragraph: str) -> bool:
    """Calculate the equation of a paragraph anew."""
    ((a, sign, b, result),) = re.findall(r"(\d+) ([-+*/]) (\d+) = (\d+)\.\n\n", paragraph)
    left = int(a)
    by = int(b)
    return {"+": left + by, "-": left - by, "*": left * by, "/": left / by}[sign] == int(result)


def test_a_problem_reads_like_one() -> None:
    assert (
        EXAMPLE.text
        == "Maya has 10 coins. On Monday she buys 4 more. On Tuesday she doubles them. On Wednesday"
        " she sells 8. On Thursday she keeps half of them. How many coins does Maya have now?"
    )
    assert EXAMPLE.values == (10, 14, 28, 20, 10)
    assert worked_steps(EXAMPLE) == [
        "On Monday she buys 4 more: 10 + 4 = 14.\n\n",
        "On Tuesday she doubles them: 14 * 2 = 28.\n\n",
        "Alternatively, 14 + 14 = 28.\n\n",
        "On Wednesday she sells 8: 28 - 8 = 20.\n\n",
        "On Thursday she keeps half of them: 20 / 2 = 10.\n\n",
        "Let me check: 10 + 10 = 20.\n\n",
        "Yes, that is all: 10.\n</think>",
    ]


@given(problem=PROBLEMS)
@BOUNDED
def test_the_answer_follows_from_the_text_alone(problem: Problem) -> None:
    assert understood(problem.text) == list(problem.values)
    assert problem.answer == problem.values[-1]
    assert all(1 <= value <= MAX_VALUE for value in problem.values)


@given(problem=PROBLEMS)
@BOUNDED
def test_worked_reasoning_is_right_by_arithmetic(problem: Problem) -> None:
    *steps, last = worked_steps(problem)
    assert all(true(step) for step in steps)
    assert re.findall(r"\d+", last) == [str(problem.answer)]
    assert [step.endswith(THINK_END) for step in (*steps, last)] == [False] * len(steps) + [True]
    assert extract("".join((*steps, last)) + final_answer(problem.answer)) == str(problem.answer)
    assert THINK_END == chain.THINK_END


@pytest.mark.parametrize(
    ("difficulty", "kinds"),
    [
        (Difficulty((1, 1)), set(PHRASES)),
        (Difficulty((3, 3), (10, 20), 0), {"add", "sub"}),
        (Difficulty((7, 7), (1, 1), 0.75), set(PHRASES)),
    ],
)
def test_problems_have_the_requested_difficulty(difficulty: Difficulty, kinds: set[str]) -> None:
    rng = random.Random(5)
    problems = [draw(rng, difficulty) for _ in range(100)]
    operations = [operation for problem in problems for operation in problem.operations]
    least, most = difficulty.steps
    assert all(least <= len(problem.operations) <= most for problem in problems)
    low, high = difficulty.operand
    assert all(
        low <= operation.n <= high for operation in operations if operation.kind in ("add", "sub")
    )
    assert {operation.kind for operation in operations} == kinds


def test_every_wording_occurs() -> None:
    rng = random.Random(5)
    drawn = {
        (operation.kind, operation.phrase) for _ in range(300) for operation in draw(rng).operations
    }
    assert drawn == {
        (kind, phrase) for kind, wordings in PHRASES.items() for phrase in range(len(wordings))
    }


@pytest.mark.parametrize("split", ["train", "test"])
def test_the_same_seed_gives_the_same_problems_of_one_half(split: Split) -> None:
    def problems(seed: int) -> list[Problem]:
        return list(islice(generate(seed, split), 50))

    assert problems(3) == problems(3) != problems(4)
    assert {problem.split for problem in problems(3)} == {split}


def test_the_halves_share_no_problem_and_an_eighth_is_for_testing() -> None:
    train, test = (
        {problem.text for problem in islice(generate(3, split), 500)} for split in ("train", "test")
    )
    assert not train & test
    rng = random.Random(5)
    drawn = [draw(rng).split for _ in range(2000)]
    assert 0.1 < drawn.count("test") / len(drawn) < 0.15


def test_the_hardest_difficulty_still_has_problems() -> None:
    hardest = Difficulty(steps=(7, 7), operand=(49, 49), doubling=0.99)
    assert all(len(draw(random.Random(seed), hardest).operations) == 7 for seed in range(50))
