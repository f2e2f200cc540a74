"""SpecReason follows its paper, at its limits and in hand-written examples."""

from collections.abc import Mapping
from typing import Any

import pytest

from stepspec.orchestrator import Accept, Rollback, Step, Verdict
from stepspec.policies import make

from ..fakes import ScriptedModel, counting, run
from ..orchestrator.arms import PROBLEM


def verdict(grades: Mapping[str, float], **options: Any) -> Verdict:
    """Judge one draft with *grades*."""
    small = ScriptedModel("small", counting("small", 3))
    large = ScriptedModel("large", counting("large", 3), judge=lambda chain, question: grades)
    draft = Step("So it is.\n\n", "small")
    return run(make("specreason", small, large, **options).verify(PROBLEM, draft))[0]


@pytest.mark.parametrize(
    ("grade", "threshold", "ruling"),
    [
        ("7", 7, Accept(7.0)),
        ("6", 7, Rollback(reason="grade", score=6.0)),
        ("9", 7, Accept(9.0)),
        ("0", 0, Accept(0.0)),
        ("8", 8.5, Rollback(reason="grade", score=8.0)),
    ],
)
def test_a_grade_that_reaches_the_threshold_is_enough(
    grade: str, threshold: float, ruling: Verdict
) -> None:
    assert verdict({grade: 1.0}, threshold=threshold) == ruling


@pytest.mark.parametrize(
    ("grades", "greedy", "expected"),
    [
        ({"9": 0.5, "0": 0.25, "1": 0.25}, Accept(9.0), Rollback(reason="grade", score=4.75)),
        ({"6": 0.5, "8": 0.25, "9": 0.25}, Rollback(reason="grade", score=6.0), Accept(7.25)),
        # of equals, the lowest
        ({"6": 0.5, "8": 0.5}, Rollback(reason="grade", score=6.0), Accept(7.0)),
        # the rest is on other words
        ({"3": 0.125, "7": 0.375}, Accept(7.0), Rollback(reason="grade", score=6.0)),
    ],
)
def test_the_likeliest_grade_and_the_mean_grade_may_disagree(
    grades: Mapping[str, float], greedy: Verdict, expected: Verdict
) -> None:
    assert verdict(grades, read="greedy") == greedy
    assert verdict(grades, read="expected") == expected


@pytest.mark.parametrize("read", ["greedy", "expected"])
def test_a_judge_with_little_probability_on_digits_gives_no_grade(read: str) -> None:
    assert verdict({"9": 0.03125, "Well": 0.9}, read=read) == Rollback(reason="no grade")
    assert verdict({}, read=read) == Rollback(reason="no grade")
    assert verdict({"9": 0.0625, "Well": 0.9}, read=read) == Accept(9.0)
    assert verdict({"9": 0.5, "Well": 0.5}, read=read, sure=0.5) == Accept(9.0)
