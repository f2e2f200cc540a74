"""The formula agrees with the loop on the virtual clock; means and evidence, worked out by hand."""

from __future__ import annotations

import pytest

from stepspec.orchestrator import reason
from stepspec.orchestrator.costs import (
    ASSUMED_DRAFTS,
    FRESH_STEPS,
    MIN_STEPS,
    WINDOW_STEPS,
    Evidence,
    MeanStep,
    Timings,
    accepted_seconds,
    rejected_seconds,
)
from stepspec.policies import SpecReason

from ..fakes import run
from .arms import PROBLEM, pair

STEPS = 40


def seconds_of_a_step(verdict: float, ahead: int, *, wrong: bool) -> float:
    """The seconds of a step of a run in which a draft takes 1 s and a repair 3 s."""
    small, large = pair(STEPS, tuple(range(STEPS)) if wrong else ())
    large.reading = lambda chain: verdict
    large.latency = lambda chain: 3.0
    _, seconds = run(reason(SpecReason(small, large), PROBLEM, ahead=ahead))
    return seconds / STEPS


@pytest.mark.parametrize("ahead", [0, 1, 2])
@pytest.mark.parametrize("verdict", [0.5, 1.5, 4.0])
def test_the_formula_agrees_with_the_loop(verdict: float, ahead: int) -> None:
    measured = seconds_of_a_step(verdict, ahead, wrong=False)
    assert accepted_seconds(1.0, verdict, ahead) == pytest.approx(measured, rel=0.1)
    measured = seconds_of_a_step(verdict, ahead, wrong=True)
    assert rejected_seconds(1.0, verdict, repair=3.0) == pytest.approx(measured, rel=0.05)


def test_evidence_begins_at_the_assumed_rate_and_returns_to_it() -> None:
    evidence = Evidence()
    assert evidence.rate(0.8) == pytest.approx(0.8)
    assumed = 0.8 * ASSUMED_DRAFTS
    evidence.add(False)
    assert evidence.rate(0.8) == pytest.approx(assumed / (ASSUMED_DRAFTS + 1))
    evidence.add(True, weight=2.0)
    assert evidence.rate(0.8) == pytest.approx((assumed + 2) / (ASSUMED_DRAFTS + 3))
    evidence.fade(0.5)
    assert evidence.rate(0.8) == pytest.approx((assumed + 1) / (ASSUMED_DRAFTS + 1.5))


def test_the_mean_step_is_that_of_the_window_and_what_is_old_is_forgotten() -> None:
    steps = MeanStep()
    for seconds in (1.0, 2.0, 6.0):
        steps.add(seconds, 10, now=0)
    assert steps.seconds == pytest.approx(3.0)
    assert (steps.tokens, steps.count) == (10, 3)
    assert steps.pace == pytest.approx(0.3)
    for _ in range(10 * WINDOW_STEPS):
        steps.add(5.0, 10, now=0)
    assert steps.seconds == pytest.approx(5.0, rel=1e-3)
    assert (steps.fresh(FRESH_STEPS), steps.fresh(FRESH_STEPS + 1)) == (True, False)
    steps.add(1.0, 4, now=FRESH_STEPS + 1)
    assert (steps.seconds, steps.tokens, steps.count) == (1.0, 4, 1)


def test_a_crowd_is_known_once_it_measured_a_step_for_each_of_its_runs() -> None:
    timings = Timings()
    assert timings.measured_runs(8, 0) == 0
    for _ in range(MIN_STEPS):
        timings.add("accepted", 1, 1.0, 10, 0)
    for number in range(8):
        assert timings.measured_runs(15, 0) == 1
        timings.add("accepted" if number % 2 else "rejected", 8, 2.0, 10, 0)
    assert timings.measured_runs(15, 0) == 15
    assert timings.measured_runs(7, 0) == 1
    assert timings.measured_runs(15, FRESH_STEPS + 1) == 0


def test_a_pace_that_is_not_known_is_that_of_the_next_smaller_crowd() -> None:
    """The tokens of a step are those of all crowds."""
    timings = Timings()
    timings.add("accepted", 2, 1.0, 10, 0)
    timings.add("accepted", 9, 6.0, 20, 0)
    found = [timings.mean("accepted", runs) for runs in (1, 2, 4, 9)]
    assert found[0] is None
    assert [(steps.seconds, steps.tokens) for steps in found[1:] if steps is not None] == [
        (1.5, 15),
        (1.5, 15),
        (4.5, 15),
    ]
    assert timings.mean("rejected", 15) is None
