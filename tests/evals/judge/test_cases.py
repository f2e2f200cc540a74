"""
The built-in steps and their slips; slips made in other steps; cases of the large model's own
chains.
"""

from __future__ import annotations

import random
import re
import tomllib
from collections import Counter

import pytest

from stepspec.evals.judge.cases import (
    MAKERS,
    STEPS,
    STEPS_FILE,
    Slip,
    built_in,
    make_slip,
    own_cases,
    spread,
)
from stepspec.orchestrator.chain import DELIMITER, THINK_END

from ...fakes import ScriptedModel, run


def test_the_built_in_steps_are_of_several_kinds_and_each_has_a_slip() -> None:
    cases = built_in()
    assert 55 <= len(cases) <= 70
    problems = tomllib.loads(STEPS_FILE.read_text("utf-8"))["problem"]
    assert {problem["kind"] for problem in problems} == {
        "arithmetic",
        "algebra",
        "units",
        "logic",
        "code",
    }
    assert {
        of: count for of, count in Counter(case.of for case in cases).items() if count >= 5
    }.keys() == set(MAKERS)
    assert all(case.right != case.slip and case.slip.endswith(DELIMITER) for case in cases)
    third = cases[2]
    assert [step.text for step in third.chain.steps] == [cases[0].right, cases[1].right]


def test_the_arithmetic_of_right_steps_holds() -> None:
    checked = 0
    for case in built_in():
        text = (
            case.right.replace("\N{MULTIPLICATION SIGN}", "*")
            .replace("\N{MIDDLE DOT}", "*")
            .replace(",", "")
        )
        for left, right in re.findall(
            r"((?:[\d.]+ [-+*/] )+[\d.]+\d) = \$?([\d.]*\d)(?![\d.]* [-+*/%])", text
        ):
            assert eval(left) == pytest.approx(float(right)), case.right
            checked += 1
    assert checked > 15


@pytest.mark.parametrize(
    ("kind", "step", "slips"),
    [
        ("number", "It is 5.", {f"It is {digit}." for digit in "12346789"}),
        ("sign", "So x - 4 = 9 + y.", {"So x + 4 = 9 + y.", "So x - 4 = 9 - y."}),
        ("unit", "It takes 60 minutes.", {"It takes 60 hours."}),
        ("variable", "Then b = 3c.", {"Then b = 3b."}),
        ("variable", "It costs 12 of 30.", {"It costs 12 of 12."}),
        ("case", "x = 7 or x = -2.", {"x = 7."}),
        ("case", "They are 2, 3 and 5.", {"They are 2, 3."}),
        ("sign", "A well-known fact", set[str]()),
        ("unit", "Each hour counts", set[str]()),
    ],
)
def test_a_slip_changes_one_thing(kind: Slip, step: str, slips: set[str]) -> None:
    found = {slip for seed in range(50) for slip in MAKERS[kind](step, random.Random(seed))}
    assert found == slips


def test_a_slip_is_drawn_by_the_seed_from_the_kinds_that_have_a_place() -> None:
    step = "The speed is 90 m / 45 s - 1 = 1 m."
    drawn = [make_slip(step, random.Random(seed)) for seed in range(40)]
    assert drawn == [make_slip(step, random.Random(seed)) for seed in range(40)]
    assert {kind for made in drawn if made for kind in [made[1]]} == {
        "number",
        "sign",
        "unit",
        "variable",
    }
    assert make_slip("We go on.", random.Random(0)) is None


def test_own_cases_are_sampled_steps_after_the_greedy_chain() -> None:
    def writing(name: str) -> ScriptedModel:
        paragraphs = [f"{name} step {number} is 1{number}." for number in range(9)]
        return ScriptedModel(
            "large",
            lambda previous: (
                paragraphs[len(previous)] + (DELIMITER if len(previous) < 8 else THINK_END)
            ),
        )

    cases, _ = run(own_cases(writing("greedy"), writing("sampled"), "How many?", 3, seed=0))
    assert [case.right for case in cases] == [
        f"sampled step {number} is 1{number}.{DELIMITER}" for number in range(STEPS)
    ]
    assert [step.text for step in cases[2].chain.steps] == [
        f"greedy step {at} is 1{at}.{DELIMITER}" for at in range(2)
    ]
    assert all(case.slip != case.right and case.problem == 3 for case in cases)


def test_the_first_cases_are_of_many_problems() -> None:
    cases = built_in()
    order = spread(cases, seed=1)
    assert sorted(map(id, order)) == sorted(map(id, cases))
    assert len({case.problem for case in order[:20]}) == 20
    assert order != spread(cases, seed=2)
