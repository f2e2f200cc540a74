"""
The long problems: a reader's arithmetic agrees with their steps, and every step can be checked
alone.
"""

import random
import re
from itertools import islice
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from lab.worlds import LONG, find_world
from lab.worlds.accounts import (
    AMOUNTS,
    DAYS,
    DEFAULT,
    LEAST,
    MOST,
    Deed,
    Difficulty,
    Problem,
    Sum,
    draw,
    generate,
    ordinal,
    worked_steps,
)
from lab.worlds.short import paragraphs
from stepspec.evals.benchmarks.miniature import final_answer
from stepspec.orchestrator.answer import extract
from stepspec.orchestrator.errors import ConfigurationError

from ..orchestrator.arms import BOUNDED

SEEDS = st.integers(0, 2**32)
SHORT = Difficulty(steps=(1, 8))
PROBLEMS = SEEDS.map(lambda seed: draw(random.Random(seed), SHORT))
EXAMPLE = Problem("Maya", 10, 342, (Deed("+", 57), Deed("-", 63), Deed("+", 91)), 1)


def read(text: str) -> tuple[dict[str, int], str]:
    """
    Read a problem as its reader would: return the balance on each day, and the day whose deed is
    done again.
    """
    opening = re.match(r"\w+ keeps accounts\. Balance on the (\w+): \$(\d+)\. ", text)
    assert opening
    balances = {opening[1]: int(opening[2])}
    for day, change in re.findall(r"(\w+) ([-+]\d+)\. ", text[opening.end() :]):
        balances[day] = [*balances.values()][-1] + int(change)
    *_, last = balances
    end = ordinal(int(last[:-2]) + 1)
    asked = re.search(
        rf" {end} closed\. By mistake, the bank books again (\w+)\. What is the balance\?$", text
    )
    assert asked
    return balances, asked[1]


def computed(paragraph: str) -> int:
    """
    Compute the equation of a paragraph and each of its columns; return the result that the
    paragraph states.
    """
    ((left, sign, right),) = re.findall(r"\$(\d+)([-+])\$(\d+)\.", paragraph)
    whole = int(left) + int(right) if sign == "+" else int(left) - int(right)
    columns = re.findall(r"\(([^=]*)=(\d+)\)", paragraph)
    for terms, result in columns:
        assert sum(int(term) for term in re.findall(r"[-+]?\d+", terms)) == int(result)
    digits = [int(result) % 10 for _, result in columns[:-1]]
    assert whole == int(columns[-1][1]) * 100 + digits[1] * 10 + digits[0]
    (result,) = re.findall(r": \$(\d+)\.\n", paragraph)
    assert int(result) == whole
    return whole


def test_a_problem_and_its_worked_reasoning() -> None:
    assert (
        EXAMPLE.text
        == "Maya keeps accounts. Balance on the 10th: $342. 11th +57. 12th -63. 13th +91. 14th"
        " closed. By mistake, the bank books again 12th. What is the balance?"
    )
    assert EXAMPLE.answer == 427 - 63
    assert worked_steps(EXAMPLE) == [
        (
            "The 11th +57: $342+$57. Ones (2+7=9), tens (4+5=9), hundreds (3+0=3). Balance on the"
            " 11th: $399.\n\n"
        ),
        (
            "The 12th -63: $399-$63. Ones (9-3=6), tens (9-6=3), hundreds (3-0=3). Balance on the"
            " 12th: $336.\n\n"
        ),
        (
            "The 13th +91: $336+$91. Ones (6+1=7), tens (3+9=12), hundreds (3+0+1=4). Balance on"
            " the 13th: $427.\n\n"
        ),
        (
            "The 14th closed: again 12th -63: $427-$63. Ones (7-3=4), tens (12-6=6), hundreds"
            " (4-0-1=3). The balance: $364.\n</think>"
        ),
    ]


@given(problem=PROBLEMS)
@BOUNDED
def test_the_chain_computed_again_from_the_text_equals_the_answer(problem: Problem) -> None:
    balances, asked = read(problem.text)
    assert list(balances.values()) == list(problem.values)
    assert len(balances) == len(problem.operations) + 1  # every day has a name of its own
    assert all(LEAST <= balance <= MOST for balance in balances.values())
    change = balances[asked] - [*balances.values()][[*balances].index(asked) - 1]
    assert problem.answer == problem.values[-1] + change
    assert LEAST <= problem.answer <= MOST
    *steps, last = worked_steps(problem)
    assert [computed(step) for step in steps] == list(problem.values[1:])
    assert computed(last) == problem.answer
    assert [step.endswith("\n\n") for step in steps] == [True] * len(steps)
    answered = "".join((*steps, last)) + final_answer(problem.answer)
    assert paragraphs(answered)[: len(steps) + 1] == [*steps, last]
    assert extract(answered) == str(problem.answer)


@given(
    left=st.integers(LEAST, MOST), right=st.integers(LEAST, MOST), sign=st.sampled_from(("+", "-"))
)
@BOUNDED
def test_columns_carry_and_borrow(left: int, right: int, sign: Any) -> None:
    left, right = max(left, right), min(left, right)
    work = Sum(left, sign, right)
    assert work.result == (left + right if sign == "+" else left - right)
    assert computed(f"{work.work()} The sum: ${work.result}.\n") == work.result


@pytest.mark.parametrize("split", ["train", "test"])
def test_the_same_seed_gives_the_same_problems_of_one_split(split: Any) -> None:
    def problems(seed: int) -> list[Problem]:
        return list(islice(generate(seed, split, SHORT), 30))

    assert problems(3) == problems(3) != problems(4)
    assert {problem.split for problem in problems(3)} == {split}


def test_a_chain_has_32_to_80_steps_and_1500_to_4000_tokens_of_thinking() -> None:
    tokenizer = Tokenizer.from_file(str(find_world(LONG).model("large") / "tokenizer.json"))
    lengths: list[int] = []
    for steps in DEFAULT.steps:
        for problem in islice(generate(5, "test", Difficulty(steps=(steps, steps))), 30):
            lengths.append(sum(len(tokenizer.encode(step).ids) for step in worked_steps(problem)))
            assert len(tokenizer.encode(problem.text).ids) < 300
    assert 1500 <= min(lengths) < 1600
    assert 3600 < max(lengths) <= 4000


def test_english_ordinals() -> None:
    days = (1, 2, 3, 4, 11, 12, 13, 20, 21, 22, 23, 30, 99)
    assert (
        " ".join(map(ordinal, days))
        == "1st 2nd 3rd 4th 11th 12th 13th 20th 21st 22nd 23rd 30th 99th"
    )


@pytest.mark.parametrize(
    "wrong", [{"steps": (0, 3)}, {"steps": (4, 3)}, {"steps": (3, DAYS - 1)}, {"amount": (9, 10)},
              {"amount": (10, 100)}, {"amount": (20, 19)}, {"days": 2}]
)  # fmt: skip
def test_a_difficulty_that_no_problem_can_have_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(wrong))):
        Difficulty(**wrong)


def test_the_widest_amounts_are_always_possible() -> None:
    hardest = Difficulty(steps=(DAYS - 2, DAYS - 2), amount=(AMOUNTS[1], AMOUNTS[1]))
    assert all(len(draw(random.Random(seed), hardest).operations) == DAYS - 2 for seed in range(20))
