"""Grades are read off the judge's probabilities; several steps at once are cut before the first wrong one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from stepspec.orchestrator import Accept, Budget, Chain, Rollback, Step, Verdict, reason
from stepspec.orchestrator.budget import Budgeted
from stepspec.orchestrator.chain import THINK_END
from stepspec.orchestrator.errors import ConfigurationError
from stepspec.orchestrator.events import Event, Judged
from stepspec.policies import SpecReason, make
from stepspec.policies.grading import DIGITS, FIRST_WRONG, expected, likeliest
from stepspec.prompts import load

from ..fakes import ScriptedModel, counting, run
from ..orchestrator.arms import PROBLEM

Grades = Mapping[str, float]
FOUR = "".join(f"The small one says {number}.\n\n" for number in range(4))


def policy(judge: Callable[[Chain, str], Grades], steps: int = 9, **options: Any) -> SpecReason:
    small = ScriptedModel("small", counting("small", steps))
    large = ScriptedModel("large", counting("large", steps), judge=judge)
    chosen: dict[str, Any] = {"judge_every": 4, **options}
    made = make("specreason", small, large, **chosen)
    assert isinstance(made, SpecReason)
    return made


def verdict(found: Grades, text: str = FOUR, **options: Any) -> Verdict:
    return run(policy(lambda chain, question: found, **options).verify(PROBLEM, Step(text, "small")))[0]


def test_a_draft_is_as_many_steps_as_are_judged_at_once() -> None:
    draft = run(policy(lambda chain, question: {}).draft(PROBLEM))[0]
    assert (draft.text, draft.stop, draft.author) == (FOUR, "delimiter", "small")
    assert "".join(token.text for token in draft.tokens) == FOUR


def test_a_draft_ends_with_the_thinking() -> None:
    draft = run(policy(lambda chain, question: {}, steps=3).draft(PROBLEM))[0]
    assert draft.text == f"The small one says 0.\n\nThe small one says 1.\n\nThe small one says 2.\n{THINK_END}"
    assert draft.stop == "end"


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ({"0": 1.0}, Accept(9.0)),
        ({"0": 0.75, "4": 0.25}, Rollback(3 * len(FOUR) // 4, reason="grade", score=6.75)),
        ({"1": 1.0}, Rollback(0, reason="grade", score=0.0)),
        ({"3": 1.0}, Rollback(len(FOUR) // 2, reason="grade", score=0.0)),
        ({"0": 0.5, "2": 0.125, "4": 0.125, "3": 0.25}, Rollback(len(FOUR) // 2, reason="grade", score=5.625)),
        ({"0": 0.5, "Well": 0.5}, Accept(9.0)),  # Shares of what is on the answers.
        ({"9": 1.0}, Rollback(reason="no grade")),  # There is no ninth step.
        ({}, Rollback(reason="no grade")),
        ({"0": 0.03125, "Well": 0.9}, Rollback(reason="no grade")),
    ],
)
def test_a_draft_is_cut_before_the_first_step_that_is_wrong(found: Grades, expected: Verdict) -> None:
    assert verdict(found) == expected


@pytest.mark.parametrize(
    ("found", "keep"), [({"0": 0.5, "2": 0.4}, None), ({"0": 0.4, "2": 0.5}, len(FOUR) // 4), ({"0": 0.4, "1": 0.5}, 0)]
)
def test_greedily_the_likeliest_answer_decides(found: Grades, keep: int | None) -> None:
    ruling = verdict(found, read="greedy")
    assert (None if isinstance(ruling, Accept) else ruling.keep) == keep


def test_a_grade_that_reaches_the_threshold_is_enough() -> None:
    assert verdict({"0": 0.5, "4": 0.5}, threshold=4.5) == Accept(4.5)


def test_one_question_names_the_number_of_all_its_steps() -> None:
    questions: list[tuple[Chain, str]] = []

    def judge(chain: Chain, question: str) -> Grades:
        questions.append((chain, question))
        return {"0": 1.0}

    draft = Step(FOUR, "small")
    assert run(policy(judge).verify(PROBLEM, draft))[0] == Accept(9.0)
    assert questions == [(PROBLEM.extend(draft), FIRST_WRONG.fill(count=4))]
    assert "last 4 paragraphs" in questions[0][1]


def test_a_single_step_is_graded_as_ever() -> None:
    questions: list[str] = []

    def judge(chain: Chain, question: str) -> Grades:
        questions.append(question)
        return {"7": 1.0}

    last = Step(f"So it is.\n\n{THINK_END}", "small", "end")
    assert run(policy(judge).verify(PROBLEM, last))[0] == Accept(7.0)
    assert questions == [load("specreason.grade").text]


def test_more_paragraphs_than_digits_are_counted_with_the_last() -> None:
    text = "".join(f"Line {number}.\n\n" for number in range(12))
    assert verdict({"9": 1.0}, text) == Rollback(8 * len("Line 1.\n\n"), reason="grade", score=0.0)
    assert verdict({"0": 1.0}, text) == Accept(9.0)


def wrong_step(place: int) -> Callable[[Chain, str], Grades]:
    """A judge who finds the small model's step *place* wrong wherever it stands, and no other."""

    def judge(chain: Chain, question: str) -> Grades:
        newest = chain.steps[-1].text.split("\n\n")
        found = next((at for at, text in enumerate(newest, 1) if text == f"The small one says {place}."), 0)
        return {str(found): 1.0} if "paragraphs" in question else {"9": 1.0}

    return judge


@pytest.mark.parametrize("ahead", [0, 1, 3])
def test_a_run_keeps_the_steps_before_the_first_wrong_one_and_repairs_that(ahead: int) -> None:
    events: list[Event] = []
    (chain, end), _ = run(reason(policy(wrong_step(2)), PROBLEM, ahead=ahead, observe=events.append))
    assert end == "finished"
    assert [step.author for step in chain.steps[:3]] == ["small", "large", "small"]
    assert chain.text.startswith("The small one says 0.\n\nThe small one says 1.\n\nThe large one says 2.\n\nThe small")
    assert "The small one says 2." not in chain.text
    verdicts = [event for event in events if isinstance(event, Judged)]
    assert len(verdicts) < 9


def test_fewer_verdicts_are_requested() -> None:
    questions: dict[int, int] = {}
    for every in (1, 2, 4, 8):
        count = 0

        def judge(chain: Chain, question: str) -> Grades:
            nonlocal count
            count += 1
            return {"0": 1.0} if "paragraphs" in question else {"9": 1.0}

        (chain, _), _ = run(reason(policy(judge, steps=16, judge_every=every), PROBLEM))
        assert chain.text.count("The small one says") == 16
        questions[every] = count
    assert questions == {1: 16, 2: 8, 4: 4, 8: 2}


@pytest.mark.parametrize("tokens", range(40, 60))
def test_a_budget_holds_and_ends_no_draft_with_nothing(tokens: int) -> None:
    budget = Budget(tokens=tokens, answer=8)
    plain = policy(lambda chain, question: {"0": 1.0})
    bounded = SpecReason(Budgeted(plain.small, budget.left), Budgeted(plain.large, budget.left), judge_every=4)
    (chain, end), _ = run(reason(bounded, PROBLEM, spent=budget.spent))
    assert end == "budget"
    assert chain.tokens == tokens - 8
    assert all(step.text for step in chain.steps)


@pytest.mark.parametrize("every", [0, 9, 1.5, "two"])
def test_judge_every_is_limited_to_the_counts_of_one_digit(every: object) -> None:
    with pytest.raises(ConfigurationError, match="judge_every"):
        policy(lambda chain, question: {}, judge_every=every)


@pytest.mark.parametrize(
    ("grades", "likely", "mean"),
    [
        ({"7": 1.0}, 7, 7),
        ({"0": 1.0}, 0, 0),
        ({"3": 0.25, "7": 0.75}, 7, 6),
        ({"0": 0.5, "9": 0.25, "8": 0.25}, 0, 4.25),
        ({"3": 0.125, "7": 0.375}, 7, 6),  # half of the probability went to other words
        (dict.fromkeys(DIGITS, 0.1), 0, 4.5),  # of equals, the lowest
    ],
)
def test_the_likeliest_and_the_mean_grade(grades: dict[str, float], likely: float, mean: float) -> None:
    assert likeliest(grades) == likely
    assert expected(grades) == pytest.approx(mean)
