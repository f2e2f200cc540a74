"""The figures of arms, judges and servers, worked out on paper; the choice of cases."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stepspec.evals.arms import LARGE, SHIPPED, SMALL
from stepspec.evals.report.figures import ArmFigures, compute_figures, samples_by_number
from stepspec.evals.report.section import choose_cases
from stepspec.evals.results import ORACLE, compare_arms
from stepspec.evals.sample import Arm

from .made import ARMS, mixed, samples


@pytest.fixture
def found() -> dict[str, ArmFigures]:
    return {f.arm.name: f for f in compute_figures(samples(), ARMS)}


def test_the_standings_are_those_of_the_run(found: dict[str, ArmFigures]) -> None:
    assert [f.standing for f in found.values()] == compare_arms(samples(), ARMS)
    assert list(found) == [LARGE.name, SMALL.name, SHIPPED.name, ORACLE]


def test_no_model_is_busy_for_longer_than_the_run() -> None:
    done = {**samples(), **{(n, SHIPPED.name): mixed(0.9) for n in range(4)}}
    shipped = next(f for f in compute_figures(done, ARMS) if f.arm is SHIPPED)
    assert shipped.busy["large"] == 0.9  # its requests were open for a second, concurrently


def test_only_drafts_that_were_judged_are_accepted(found: dict[str, ArmFigures]) -> None:
    assert found[SHIPPED.name].result.accept_rate == 0.75
    assert found[LARGE.name].result.accept_rate is None
    assert found[SMALL.name].result.accept_rate is None


def test_methods_are_distinguished_from_baselines_and_controls(
    found: dict[str, ArmFigures],
) -> None:
    assert [f.method for f in found.values()] == [False, False, True, False]
    assert [f.bound for f in found.values()] == [False, False, False, True]
    control = Arm.of("random like SpecReason", "random", like=SHIPPED.name)
    drawn = mixed(2.0, arm=control)
    # nobody judges
    drawn = replace(
        drawn, ledger=replace(drawn.ledger, large=replace(drawn.ledger.large, judging=0))
    )
    done = {**samples(), **{(n, control.name): drawn for n in range(4)}}
    last = compute_figures(done, (*ARMS, control))[-2]
    assert (last.arm, last.method, last.result.accept_rate) == (control, False, 0.75)


def test_samples_keep_their_numbers() -> None:
    found = samples_by_number(
        {place: s for place, s in samples().items() if place != (0, SMALL.name)}, ARMS, 1
    )
    assert {name: list(each) for name, each in found.items()} == {
        arm.name: [1, 2, 3] for arm in ARMS
    }
    assert found[SHIPPED.name][2].seconds == 4.0


def test_cases_are_the_failed_and_the_slow_problems() -> None:
    chosen = choose_cases(
        compute_figures(samples(), ARMS), samples_by_number(samples(), ARMS, 1), 1
    )
    assert [case.seconds for case in chosen["slowest"]] == [5.0, 4.0, 3.0, 2.0]
    assert {case.arm for case in chosen["slowest"]} == {SHIPPED.name}
    assert [(case.problem, case.outcome) for case in chosen["lost"]] == [(2, "wrong")]
    assert [(case.problem, case.outcome, case.baseline_seconds) for case in chosen["gained"]] == [
        (3, "right", 4.0)
    ]
    assert [(case.rejected, case.drafts) for case in chosen["slowest"]] == [(1, 4)] * 4
