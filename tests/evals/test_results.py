"""
The figures of samples, their intervals and tests, and the tables that people are going to quote.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import isnan
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from lab.bench import COLUMNS, markdown
from stepspec.evals.arms import LARGE, PLAIN, SHIPPED, SMALL
from stepspec.evals.results import (
    ORACLE,
    Z,
    _statistic,  # pyright: ignore[reportPrivateUsage]
    bootstrap_ratio,
    complete,
    difference,
    oracle,
    tables,
    wilson,
)
from stepspec.evals.sample import EMPTY_LEDGER, Arm, Sample
from stepspec.evals.store import Place

from .scripted import compared, sample

ARMS = (LARGE, SMALL, SHIPPED)


def taken(arm: Arm, correct: Sequence[bool], seconds: float) -> dict[Place, Sample]:
    kept = {"small": 80, "large": 20}
    if arm in (LARGE, SMALL):
        kept = {arm.policy: 100}
    return {
        (number, arm.name): sample(arm.name, seconds, correct=right, discarded=10, **kept)
        for number, right in enumerate(correct)
    }


def done() -> dict[Place, Sample]:
    return {
        **taken(LARGE, [True, True, True, False], 4.0),
        **taken(SMALL, [True, False, False, False], 1.0),
        **taken(SHIPPED, [True, False, True, True], 2.0),
    }


def test_arms_are_compared_with_the_large_model_on_the_same_problems() -> None:
    large, small, shipped, bound = compared(done(), ARMS)
    assert [s.name for s in (large, small, shipped, bound)] == [
        *(arm.name for arm in ARMS),
        ORACLE,
    ]
    assert shipped.difference == difference(4, gained=1, lost=1)
    assert small.difference == difference(4, gained=0, lost=2)
    assert large.difference.value == 0.0
    assert shipped.outcomes == {"right": 3, "wrong": 1}
    assert (shipped.total("kept", "small"), shipped.total("kept", "large")) == (80, 20)
    assert (shipped.total("discarded"), shipped.total("judging")) == (10, 50)
    assert (shipped.n, shipped.accuracy.value, shipped.ratio.value, shipped.share_large_tokens) == (
        4,
        0.75,
        0.5,
        0.2,
    )
    assert (shipped.accept_rate, large.accept_rate) == (0.8, None)
    assert large.total("judging") == 0
    assert shipped.waste == pytest.approx(10 / 110)


def test_the_oracle_uses_the_small_model_where_it_is_right() -> None:
    samples = complete(done(), [arm.name for arm in ARMS], 1)
    best = oracle({name: list(numbered.values()) for name, numbered in samples.items()})
    assert [(s.seconds, s.correct) for s in best] == [
        (1.0, True),
        (4.0, True),
        (4.0, True),
        (4.0, False),
    ]
    bound = compared(done(), ARMS)[-1]
    assert (bound.seconds, bound.accuracy.value) == (13 / 4, 0.75)
    assert [s.name for s in compared(done(), (LARGE, SHIPPED))] == [
        LARGE.name,
        SHIPPED.name,
    ]


def test_any_arm_is_the_baseline_and_the_first_is_the_usual_one() -> None:
    samples = done() | {
        (number, PLAIN.name): replace(at, arm=PLAIN.name)
        for (number, arm), at in done().items()
        if arm == SMALL.name
    }
    arms = (PLAIN, *ARMS)
    ratios = {s.name: s.ratio.value for s in compared(samples, arms)}
    assert (ratios[PLAIN.name], ratios[SMALL.name], ratios[LARGE.name]) == (1.0, 1.0, 4.0)
    found = compared(samples, arms, baseline=SHIPPED.name)
    by_name = {s.name: s for s in found}
    assert (by_name[SHIPPED.name].ratio.value, by_name[LARGE.name].ratio.value) == (1.0, 2.0)
    assert by_name[SHIPPED.name].difference.value == 0
    console = Console(width=250)
    with console.capture() as captured:
        for part in tables(found, SHIPPED.name):
            console.print(part)
    assert f"vs {SHIPPED.name}" in captured.get()


def test_the_oracle_chooses_between_the_small_model_and_plain_where_large_alone_did_not_run() -> (
    None
):
    samples = {**taken(PLAIN, [False, True], 4.0), **taken(SMALL, [True, False], 1.0)}
    bound = compared(samples, (PLAIN, SMALL))[-1]
    assert (bound.accuracy.value, bound.seconds) == (1.0, 2.5)


def test_a_problem_that_an_arm_has_not_solved_yet_counts_for_none() -> None:
    part = {place: s for place, s in done().items() if place != (1, SHIPPED.name)}
    assert [s.n for s in compared(part, ARMS)] == [3, 3, 3, 3]
    assert compared({}, ARMS) == []
    three = {**taken(LARGE, [True] * 3, 4.0), **taken(SHIPPED, [True] * 3, 2.0)}
    found = compared(three, (LARGE, SHIPPED), repeats=2)  # half of a problem is no problem
    assert [s.n for s in found] == [2, 2]


def test_with_several_samples_the_bootstrap_draws_problems() -> None:
    once = compared(done(), ARMS)
    twice = {
        (2 * number + repeat, arm): s for (number, arm), s in done().items() for repeat in range(2)
    }
    again = compared(twice, ARMS, repeats=2)
    assert [s.n for s in again] == [8] * 4
    assert [s.accuracy.value for s in again] == [s.accuracy.value for s in once]
    # Samples that only repeat each other tell no more: taken for problems, they would narrow the
    # interval.
    accuracy = again[2].accuracy
    assert accuracy.high - accuracy.low >= 0.6


# a single slip in 60 samples once made an interval of 5 points
@pytest.mark.parametrize("wrong", [0, 1])
def test_several_samples_of_problems_that_are_all_alike_are_still_no_proof(wrong: int) -> None:
    samples = {
        **taken(LARGE, [True] * 60, 1.0),
        **taken(SHIPPED, [number >= wrong for number in range(60)], 1.0),
    }
    found = compared(samples, (LARGE, SHIPPED), repeats=3)[1]
    assert found.accuracy.low < 0.9
    assert found.difference.low < -0.1


def test_runs_that_ended_badly_are_counted_and_shown() -> None:
    samples = done()
    ours = [samples[number, SHIPPED.name] for number in range(3)]
    cut = (replace(ours[0], finish="length"), replace(ours[2], finish="time", degraded=True))
    worse = cut[0], replace(ours[1], graded=False), cut[1]
    samples |= {(number, SHIPPED.name): sample for number, sample in enumerate(worse)}
    failed = Sample(LARGE.name, False, 0.0, EMPTY_LEDGER, "failed")
    samples |= {(4, arm.name): replace(failed, arm=arm.name) for arm in ARMS}
    shipped = compared(samples, ARMS)[2]
    assert shipped.outcomes == {
        "truncated": 2,
        "ungraded": 1,
        "right": 1,
        "failed": 1,
        "degraded": 1,
    }
    console = Console(width=250)
    with console.capture() as captured:
        console.print(tables(compared(samples, ARMS), LARGE.name)[0])
    head, *_, row, _ = captured.get().splitlines()
    assert head.split()[-4:] == ["truncated", "ungraded", "failed", "degraded"]
    assert row.split()[-4:] == ["2", "1", "1", "1"]


def test_arms_that_failed_on_all_problems_have_no_summary() -> None:
    failed = {(0, arm.name): Sample(arm.name, False, 0.0, EMPTY_LEDGER, "failed") for arm in ARMS}
    assert compared(failed, ARMS) == []


def test_the_tables_show_every_arm() -> None:
    summaries = compared(done(), ARMS)
    console = Console(width=250)
    with console.capture() as captured:
        console.print(tables(summaries, LARGE.name)[0])
    _, large, small, shipped, _ = captured.get().splitlines()
    assert ("-50.0 [" in small, "+0.0 [" in shipped, "+0.0" in large) == (True, True, False)
    results = summaries[:3]
    head, rule, *rows = markdown(results).splitlines()
    assert head.count("|") == rule.count("|") == rows[0].count("|") == len(COLUMNS) + 1
    assert [row.split(" | ")[0] for row in rows] == [f"| {arm.name}" for arm in ARMS]
    assert "| 0.50 [" in rows[2]


def test_intervals_hold_their_value_and_narrow_with_the_sample() -> None:
    few = wilson(9, 10)
    many = wilson(900, 1000)
    assert few.low < many.low < 0.9 < many.high < few.high
    assert wilson(10, 10).high == 1.0
    ratio = bootstrap_ratio([1.0, 2.0, 3.0, 1.0], [2.0, 4.0, 5.0, 3.0])
    assert ratio.value == 0.5
    assert ratio.low < 0.5 < ratio.high


def test_few_problems_seldom_show_a_difference_that_there_is_not() -> None:
    drawn = Random(0)
    wrong = 0
    for _ in range(100):
        ours, theirs = ([drawn.lognormvariate(0, 0.8) for _ in range(6)] for _ in range(2))
        ratio = bootstrap_ratio(ours, theirs)
        wrong += not ratio.low <= 1 <= ratio.high
    assert wrong <= 10  # 17 with plain percentiles


def test_agreement_on_every_problem_is_no_proof_that_there_is_no_difference() -> None:
    found = difference(100, 0, 0)
    assert found.value == 0
    assert found.high == -found.low == pytest.approx(Z * Z / (100 + Z * Z))


@given(st.integers(1, 400), st.data())
def test_the_interval_ends_where_the_statistic_is_that_of_95_per_cent(
    n: int, data: st.DataObject
) -> None:
    gained = data.draw(st.integers(0, n))
    lost = data.draw(st.integers(0, n - gained))
    found = difference(n, gained, lost)
    mirrored = difference(n, lost, gained)
    assert -1 <= found.low <= found.value <= found.high <= 1
    assert [mirrored.low, mirrored.high] == pytest.approx([-found.high, -found.low], abs=1e-9)
    for edge, sign in ((found.low, 1), (found.high, -1)):
        if abs(edge) < 1 - 1e-6:
            assert sign * _statistic(n, gained, lost, edge) == pytest.approx(Z, abs=1e-3)
    assert not isnan(found.low + found.high)


def test_the_best_and_the_most_frequent_of_several_answers_are_counted() -> None:
    answers = {
        # pass@3 and maj@3 of each problem: right and right, right and wrong, wrong and wrong
        0: [("5", True), (r"\frac{10}{2}", True), ("7", False)],
        1: [("5", True), ("7", False), ("7.", False)],
        2: [("6", False), ("7", False), ("8", False)],
    }
    samples = {
        (3 * problem + repeat, arm.name): replace(
            done()[0, arm.name], correct=correct, answer=rf"\boxed{{{answer}}}"
        )
        for arm in (LARGE, SHIPPED)
        for problem, given in answers.items()
        for repeat, (answer, correct) in enumerate(given)
    }
    found = compared(samples, (LARGE, SHIPPED), repeats=3)
    several = found[1].several
    assert several is not None
    assert (several.samples, several.best.value, several.majority.value) == (3, 2 / 3, 1 / 3)
    assert compared(done(), ARMS)[0].several is None
    console = Console(width=80)
    with console.capture() as captured:
        for part in tables(found, LARGE.name):
            console.print(part)
    assert "3 x 3" in captured.get()
    assert "pass@3" in captured.get()
    assert "maj@3" in captured.get()


def test_the_tables_fit_into_80_columns() -> None:
    console = Console(width=80)
    with console.capture() as captured:
        for part in tables(compared(done(), ARMS), LARGE.name):
            console.print(part)
    shown = captured.get()
    assert "\u2026" not in shown
    assert len(shown.splitlines()) == 2 * (1 + 4)  # no line is wrapped
