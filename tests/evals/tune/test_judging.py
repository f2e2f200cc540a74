"""Which slips and errors verdicts let through."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from stepspec.evals.results import wilson
from stepspec.evals.tune.drafts import Place, Round, Trial
from stepspec.evals.tune.judging import (
    JudgedDraft,
    clustered,
    is_error,
    length_alone,
    lets_through,
    numbers,
    slipped,
)
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


def trial(kept_text: int, *, accepted: bool) -> Trial:
    return Trial(0, (Round(5, 0, accepted, 5, kept_text, 0, 0.1),), 5, 5)


def test_a_slip_is_let_through_if_it_stays_in_the_chain() -> None:
    made = slipped(place(), random.Random(1))
    assert made is not None
    assert "".join(token.text for token in made.draft.tokens) == made.draft.text
    assert made.draft.text[: made.position] == OWN[: made.position]
    assert made.draft.text[made.position] != OWN[made.position]
    assert lets_through(trial(0, accepted=True), made)
    assert lets_through(trial(made.position + 1, accepted=False), made)
    assert not lets_through(trial(made.position, accepted=False), made)


def test_no_slip_is_made_in_a_step_without_a_place_for_one() -> None:
    assert slipped(place("We go on thinking.\n\n"), random.Random(0)) is None
    cut = replace(place(), own=replace(step(OWN), stop="length"))
    assert slipped(cut, random.Random(0)) is None


def test_outcomes_of_one_problem_are_worth_fewer_independent_ones() -> None:
    independent = [(number, number % 2 == 0) for number in range(40)]
    alike = [(number // 10, number < 20) for number in range(40)]
    one = [(0, number % 2 == 0) for number in range(40)]
    expected = wilson(20, 40)
    assert clustered(independent).low == pytest.approx(expected.low, rel=0.01)
    widths = [found.high - found.low for found in map(clustered, (independent, alike, one))]
    assert widths == sorted(widths)
    assert widths[1] > 2 * widths[0]
    assert {clustered(some).value for some in (independent, alike, one)} == {0.5}
    assert clustered([(0, False), (1, False)]) == wilson(0, 2)


def test_length_alone_accepts_as_many_drafts_the_shortest_ones() -> None:
    lengths = ((10, False, True), (20, True, False), (30, False, True), (40, True, True))
    drafts = [JudgedDraft(0, tokens, error, accepted) for tokens, error, accepted in lengths]
    assert length_alone(drafts) == 0.5
