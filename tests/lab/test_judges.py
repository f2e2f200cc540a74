"""Readings of labelled steps: numbers and equations, areas, halves, and what a file must have."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from lab.judges import (
    Evidence,
    LabelledStep,
    ReadToken,
    Solution,
    StepEvidence,
    auroc,
    disagreement,
    figures,
    first_wrong_f1,
    read_solutions,
)
from lab.step_numbers import new_numbers, slip, wrong_equations
from stepspec.orchestrator.errors import ConfigurationError


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("14 * 12 = 168 rolls", 0),
        ("14 * 12 = 158 rolls", 1),
        ("\\[ 3 \\times 5 = 15 \\] and \\[ 2 + 2 = 5 \\]", 1),
        ("$0.25 \\times 80 = $20", 0),
        ("\\frac{6}{4} = 1.5", 0),
        ("1,000 + 1 = 1001", 0),
        ("20% of 50", 0),
        ("x = 4 and 10 - 1.5x = 4", 0),
        ("10 / 3 = 3.33", 0),
        ("5 / 0 = 1", 0),
        ("2 + 3 = 5 = 6", 1),
    ],
)
def test_equations_that_do_not_hold_are_counted(text: str, wrong: int) -> None:
    assert wrong_equations(text) == wrong


def test_new_numbers_are_those_that_were_not_there_before() -> None:
    assert new_numbers("20 of 1,000 are 2.5 and 20", "There are 20.") == ["1000", "2.5"]


def test_a_slip_changes_one_digit_of_the_last_number() -> None:
    changed = slip("From 12 to 345.", random.Random(0))
    assert changed is not None
    assert changed.startswith("From 12 to ")
    assert sum(one != other for one, other in zip(changed, "From 12 to 345.", strict=True)) == 1
    assert slip("no number", random.Random(0)) is None


def test_the_area_counts_equal_values_as_half() -> None:
    assert auroc([1.0, 0.0], [0.0]) == 0.75
    assert auroc([1.0], [0.0]) == 1.0


def step(*, right: bool, logprob: float) -> LabelledStep:
    token = ReadToken(text="4", logprob=logprob, best=-0.1, rank=2)
    evidence = StepEvidence(large=(token,), continued="It is 5.")
    return LabelledStep("a", right, "It is 4.", "What?", evidence)


def test_the_f1_wants_the_first_wrong_step_and_no_step_of_a_right_solution() -> None:
    wrong = [step(right=True, logprob=-0.1), step(right=False, logprob=-3.0)]
    right = [step(right=True, logprob=-0.2)]

    def read(each: LabelledStep) -> float:
        return each.evidence.large[0].logprob

    assert first_wrong_f1([wrong, right], read, -1.0) == 1.0
    assert first_wrong_f1([wrong, right], read, -0.05) == 0.0


def test_numbers_that_the_large_model_does_not_write_are_a_disagreement() -> None:
    assert disagreement(step(right=True, logprob=-0.1)) == -1.0


def test_readings_are_ranked_on_the_half_that_chose_nothing() -> None:
    solutions: list[Solution] = []
    evidence: dict[str, Evidence] = {}
    rng = random.Random(1)
    for number in range(80):
        name = f"s{number}"
        label = 1 if number % 2 else -1
        solutions.append(Solution(id=name, problem="?", steps=("a 1", "b 2"), label=label))
        steps = [
            StepEvidence(
                large=tuple(
                    ReadToken(text=text, logprob=value - 5 * (index == label), best=value, rank=1)
                    for text, value in (("x", rng.uniform(-2, 0)), ("2", rng.uniform(-1, 0)))
                )
            )
            for index in range(2)
        ]
        evidence[name] = Evidence(id=name, steps=tuple(steps))
    rows, right, wrong = figures(solutions, evidence)
    found = {row.name: row.auroc.value for row in rows}
    assert right + wrong < 160
    assert found["mean log-probability, digits"] == 1.0
    assert found["length of the step"] == 0.5


@pytest.mark.parametrize(
    ("text", "says"), [('{"id": "a"}', "line 1: no solution"), ("\n", "has no solutions")]
)
def test_a_file_without_solutions_is_refused(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text(text)
    with pytest.raises(ConfigurationError, match=says):
        read_solutions(path)
