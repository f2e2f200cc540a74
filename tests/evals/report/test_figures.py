"""The figures of arms, judges and servers, worked out on paper; the choice of cases."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stepspec.evals.arms import LARGE, SHIPPED, SMALL
from stepspec.evals.report.section import choose_cases
from stepspec.evals.results import ORACLE, Result, complete
from stepspec.evals.sample import Arm

from ..scripted import compared
from .made import ARMS, mixed, samples

NAMES = [arm.name for arm in ARMS]


@pytest.fixture
def found() -> dict[str, Result]:
    return {f.name: f for f in compared(samples(), ARMS)}


def test_the_oracle_follows_the_arms_of_the_run(found: dict[str, Result]) -> None:
    assert list(found) == [LARGE.name, SMALL.name, SHIPPED.name, ORACLE]


def test_only_drafts_that_were_judged_are_accepted(found: dict[str, Result]) -> None:
    assert found[SHIPPED.name].accept_rate == 0.75
    assert found[LARGE.name].accept_rate is None
    assert found[SMALL.name].accept_rate is None


def test_methods_are_distinguished_from_baselines(
    found: dict[str, Result],
) -> None:
    assert [f.kind for f in found.values()] == ["large", "small", "method", "bound"]
    chance = Arm.of("random", "random")
    drawn = mixed(2.0, arm=chance)
    # nobody judges
    drawn = replace(
        drawn, ledger=replace(drawn.ledger, large=replace(drawn.ledger.large, judging=0))
    )
    done = {**samples(), **{(n, chance.name): drawn for n in range(4)}}
    last = compared(done, (*ARMS, chance))[-2]
    assert (last.name, last.kind, last.accept_rate) == (chance.name, "method", 0.75)


def test_samples_keep_their_numbers() -> None:
    found = complete(
        {place: s for place, s in samples().items() if place != (0, SMALL.name)}, NAMES, 1
    )
    assert {name: list(each) for name, each in found.items()} == {
        arm.name: [1, 2, 3] for arm in ARMS
    }
    assert found[SHIPPED.name][2].seconds == 4.0


def test_cases_are_the_failed_and_the_slow_problems() -> None:
    found = complete(samples(), NAMES, 1)
    chosen = choose_cases(compared(samples(), ARMS), found, 1, LARGE.name)
    assert [case.sample.seconds for case in chosen["slowest"]] == [5.0, 4.0, 3.0, 2.0]
    assert {case.sample.arm for case in chosen["slowest"]} == {SHIPPED.name}
    assert [(case.problem, case.sample.outcome) for case in chosen["lost"]] == [(2, "wrong")]
    assert [
        (case.problem, case.sample.outcome, case.baseline.seconds) for case in chosen["gained"]
    ] == [(3, "right", 4.0)]
    ledgers = [case.sample.ledger for case in chosen["slowest"]]
    assert [(ledger.accepted, ledger.drafts) for ledger in ledgers] == [(3, 4)] * 4
