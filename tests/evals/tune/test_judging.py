"""Which errors verdicts let through."""

from __future__ import annotations

import pytest

from stepspec.evals.results import wilson
from stepspec.evals.tune.drafts import Place
from stepspec.evals.tune.judging import is_error, numbers, share_by_problem
from stepspec.orchestrator.chain import Chain, Step, Token

from ...fakes import ScriptedModel, run, saying

OWN = "Then 12 + 30 = 42.\n\n"
NEXT = "Then 42 * 2 = 84.\n\n"


def step(text: str) -> Step:
    return Step(text, "large", "delimiter", tuple(Token(word) for word in text.split(" ")))


def place(own: str = OWN, following: str = NEXT) -> Place:
    return Place(0, Chain.of("Add 12 and 30, then double it."), step(own), step(following))


@pytest.mark.parametrize(
    ("draft", "going_on", "error"),
    [
        ("So 30 + 12 = 42.\n\n", "never asked", False),
        ("Then 12 + 30 = 41.\n\n", "Then 41 * 2 = 82.", True),
        # the large model goes its own way, and drops the draft's number
        ("Then 12 + 30 = 41.\n\n", "Then 42 * 2 = 84.", True),
        # another way to the same number
        ("Take 10 + 30 = 40 first.\n\n", "With 40 + 2 it is 42.", False),
        ("Let us add both.\n\n", "That is 12 + 30 = 42.", False),
        ("Let us wait.\n\n", "There is nothing to say.", True),
    ],
)
def test_a_draft_is_an_error_if_the_large_model_does_not_get_where_it_got(
    draft: str, going_on: str, error: bool
) -> None:
    large = ScriptedModel("large", saying(going_on))
    assert run(is_error(large, place(), step(draft)))[0] is error


def test_nothing_is_known_of_a_draft_where_no_new_number_follows() -> None:
    large = ScriptedModel("large", saying("x"))
    words = place("Let us think.\n\n", "We have 12 and 30.\n\n")
    assert run(is_error(large, words, step("Hm.\n\n")))[0] is None
    assert not large.log


def test_numbers_are_found_without_separators() -> None:
    assert numbers("1. It is 1,200.50 of 3; x2 is none, 7 is.") == ["1200.50", "3", "7"]


def test_outcomes_of_one_problem_are_worth_fewer_independent_ones() -> None:
    independent = [(number, number % 2 == 0) for number in range(40)]
    alike = [(number // 10, number < 20) for number in range(40)]
    expected = wilson(20, 40)
    found = share_by_problem(independent)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), abs=0.03)
    clustered = share_by_problem(alike)
    assert clustered.high - clustered.low > 2 * (found.high - found.low)
    assert found.value == clustered.value == 0.5
    none = share_by_problem([(number, False) for number in range(9)])
    assert (none.value, none.low) == (0, 0)
    assert 0.1 < none.high < 0.5
