"""Figures that people are going to quote."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lab.arms import THINKING, THINKING_SEQUENTIAL
from lab.bench import COLUMNS, markdown, missed
from stepspec.evals.arms import LARGE, SHIPPED, SMALL
from stepspec.evals.results import bootstrap_ratio, summarise, wilson
from stepspec.evals.sample import Sample
from stepspec.evals.testbed.commands import table
from stepspec.orchestrator.chain import Role
from stepspec.orchestrator.ledger import Account, Ledger

ARMS = (LARGE, SMALL, SHIPPED)


def sample(
    arm: str, seconds: float, *, small: int = 0, large: int = 0, discarded: int = 0, correct: bool = True
) -> Sample:
    judging = 50 if arm == SHIPPED.name else 0
    ledger = Ledger(
        Account("small", kept=small, discarded=discarded), Account("large", kept=large, judging=judging), 10, 8
    )
    pace: dict[Role, float] = {"small": 0.01, "large": 0.03}
    return Sample(arm, correct, seconds, ledger, pace)


def samples() -> list[Sample]:
    return [
        s
        for _ in range(4)
        for s in (
            sample(LARGE.name, 4.0, large=100),
            sample(SMALL.name, 1.0, small=100, correct=False),
            sample(SHIPPED.name, 2.0, small=80, large=20, discarded=20),
        )
    ]


def test_arms_are_compared_on_the_same_problems() -> None:
    large, small, shipped = summarise(samples(), ARMS)
    assert (large.ratio, small.ratio, shipped.ratio) == (1.0, 0.25, 0.5)
    assert shipped.ratio_to_floor == pytest.approx(2.0 / (80 * 0.01 + 20 * 0.03))
    assert shipped.share_large_tokens == 0.2
    assert shipped.waste == pytest.approx(20 / 120)
    assert (shipped.accept_rate, large.accept_rate) == (0.8, None)
    assert (shipped.judge_tokens, large.judge_tokens) == (50, 0)
    assert (small.accuracy, shipped.accuracy, shipped.n) == (0.0, 1.0, 4)


def test_the_tables_show_every_arm() -> None:
    results = summarise(samples(), ARMS)
    head, rule, *rows = markdown(results).splitlines()
    assert head.count("|") == rule.count("|") == rows[0].count("|") == len(COLUMNS) + 1
    assert [row.split(" | ")[0] for row in rows] == [f"| {arm.name}" for arm in ARMS]
    assert "| 0.50 [" in rows[2]
    assert [[*column.cells][2] for column in table(results).columns] == [
        *(SHIPPED.name, "4", "100.0%", "2.00", "0.50", "20%", "80%", "17%")
    ]


def test_intervals_hold_their_value_and_narrow_with_the_sample() -> None:
    few, many = wilson(9, 10), wilson(900, 1000)
    assert few.low < many.low < 0.9 < many.high < few.high
    assert wilson(10, 10).high == 1.0
    ratio = bootstrap_ratio([1.0, 2.0, 3.0, 1.0], [2.0, 4.0, 5.0, 3.0])
    assert ratio.value == 0.5
    assert ratio.low < 0.5 < ratio.high


def test_the_bars_are_looked_at() -> None:
    by_arm = [replace(r, name=THINKING.name) if r.name == SHIPPED.name else r for r in summarise(samples(), ARMS)]
    sequential = replace(by_arm[2], name=THINKING_SEQUENTIAL.name, seconds=2.4)
    results = [*by_arm, sequential]
    assert [line.split(":")[0] for line in missed(results)] == [
        "wall time over the large model alone",
        "wall time over sequential",
    ]
    fine = [replace(r, ratio=0.4, seconds=1.5) if r.name == THINKING.name else r for r in results]
    assert missed(fine) == []
    glimpse = [replace(r, name="glimpse") for r in fine if r.name == THINKING.name]
    assert missed([*fine, *glimpse]) == []
    assert len(missed([*fine, *(replace(r, ratio=0.41) for r in glimpse)])) == 1
    assert len(missed([*fine, *(replace(r, accuracy=0.98) for r in glimpse)])) == 1
    worse = [replace(r, accuracy=0.97) if r.name == THINKING.name else r for r in fine]
    assert len(missed(worse)) == 1
