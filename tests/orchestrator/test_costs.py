"""The formula agrees with the loop on the virtual clock; means and evidence, worked out by hand."""

from __future__ import annotations

import pytest

from stepspec.orchestrator import reason
from stepspec.orchestrator.costs import (
    ASSUMED_DRAFTS,
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


def test_evidence_begins_at_the_assumed_rate_and_older_verdicts_fade() -> None:
    evidence = Evidence()
    assert evidence.rate(0.8) == pytest.approx(0.8)
    assumed = 0.8 * ASSUMED_DRAFTS
    evidence.add(False, 0.5)
    assert evidence.rate(0.8) == pytest.approx(assumed / (ASSUMED_DRAFTS + 1))
    evidence.add(True, 0.5)
    assert evidence.rate(0.8) == pytest.approx((assumed + 1) / (ASSUMED_DRAFTS + 1.5))
    evidence.add(True, 0.5)
    assert evidence.rate(0.8) == pytest.approx((assumed + 1.5) / (ASSUMED_DRAFTS + 1.75))


def test_the_mean_step_is_that_of_the_window() -> None:
    steps = MeanStep()
    for seconds in (1.0, 2.0, 6.0):
        steps.add(seconds, 10)
    assert steps.seconds == pytest.approx(3.0)
    assert (steps.tokens, steps.count) == (10, 3)
    assert steps.pace == pytest.approx(0.3)
    for _ in range(10 * WINDOW_STEPS):
        steps.add(5.0, 10)
    assert steps.seconds == pytest.approx(5.0, rel=1e-3)


def test_a_step_that_is_not_measured_is_that_of_the_next_smaller_crowd() -> None:
    timings = Timings()
    for _ in range(MIN_STEPS):
        assert timings.mean("accepted", 15, MIN_STEPS) is None
        timings.add("accepted", 2, 3.0, 10)
    timings.add("accepted", 9, 6.0, 20)  # one step is not enough
    found = [timings.mean("accepted", runs, MIN_STEPS) for runs in (1, 2, 4, 9)]
    assert found[0] is None
    two_runs = timings.means["accepted", 2]
    assert found[1:] == [two_runs] * 3
    assert (two_runs.seconds, two_runs.tokens) == (3.0, 10)
    for _ in range(MIN_STEPS):
        timings.add("accepted", 9, 6.0, 20)
    assert timings.mean("accepted", 15, MIN_STEPS) is timings.means["accepted", 4]
    assert timings.mean("rejected", 15, MIN_STEPS) is None
