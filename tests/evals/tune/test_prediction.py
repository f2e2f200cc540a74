"""What is predicted from trials and runs, intervals, and the choice of a method."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import exp, inf, log
from typing import Any

import pytest

from stepspec.evals.results import Interval
from stepspec.evals.sample import Arm
from stepspec.evals.tune.drafts import Trial
from stepspec.evals.tune.prediction import Figures, MethodTrials, predict, ranked
from stepspec.evals.tune.rounds import Round, commit_times

from .world import BAD, GOOD, PACES, READING, SPECREASON

CHAINS = dict.fromkeys(range(8), 80)


def trials(good: int, bad: int, problem: int = 0, own: int = 10) -> list[Trial]:
    accepted = Trial(problem, (GOOD,), own, alone=True)
    rejected = Trial(problem, (BAD,), 10, alone=True)
    return [accepted] * good + [rejected] * bad


def seen_run(seconds: float, rounds: Sequence[Round]) -> list[Round]:
    """Rounds of which the last is in the chain so many *seconds* after the first."""
    return [*rounds[:-1], replace(rounds[-1], at=seconds)]


def measured(some: list[Trial], **more: Any) -> MethodTrials:
    return MethodTrials(SPECREASON, some, **more)


def test_the_gain_is_the_large_models_time_over_that_of_the_rounds() -> None:
    some = [trial for problem in range(4) for trial in trials(6, 2, problem)]
    found = predict(measured(some), PACES, CHAINS)
    seconds = commit_times([round for each in some[:8] for round in each.rounds], PACES, 0.3)[-1]
    assert found.alone.value == pytest.approx(8 / seconds)
    assert (found.accepted.value, found.verdict_seconds, found.drafts) == (0.75, 0.3, 32)
    assert found.spread == pytest.approx(0.0, abs=1e-9), "all problems are alike"
    assert (found.loaded, found.errors) == (None, None)


def test_problems_that_differ_widen_the_interval_and_one_says_nothing() -> None:
    alike = [each for problem in range(6) for each in trials(5, 5, problem)]
    bursts = [
        each for problem in range(6) for each in trials(*((9, 1), (1, 9))[problem % 2], problem)
    ]
    assert predict(measured(alike), PACES, CHAINS).spread < 0.01
    found = predict(measured(bursts), PACES, CHAINS)
    assert found.alone.low < 0.8 * found.alone.value
    assert found.accepted.low < predict(measured(alike), PACES, CHAINS).accepted.low
    assert predict(measured(trials(9, 1)), PACES, CHAINS).spread == inf


def test_a_problem_counts_by_the_length_of_its_chain() -> None:
    some = [*trials(8, 0, 0), *trials(0, 8, 1)]
    easy = predict(measured(some), PACES, {0: 900, 1: 100}).alone.value
    hard = predict(measured(some), PACES, {0: 100, 1: 900}).alone.value
    assert easy > predict(measured(some), PACES, CHAINS).alone.value > hard


def test_drafts_of_another_length_than_the_large_models_step_widen_the_interval() -> None:
    some = [each for problem in range(4) for each in trials(8, 0, problem, own=40)]
    found = predict(measured(some), PACES, CHAINS)
    same = predict(measured([replace(each, own=10) for each in some]), PACES, CHAINS)
    assert found.alone.value == pytest.approx(2 * same.alone.value)
    assert log(found.alone.high / found.alone.value) == pytest.approx(log(2), rel=0.01)


def test_runs_correct_the_prediction_and_tell_of_load() -> None:
    some = [each for problem in range(4) for each in trials(6, 2, problem)]
    rounds = (GOOD, GOOD, BAD, GOOD) * 4
    times = commit_times(rounds, PACES, 0.3)
    seconds = times[-1] - times[0]
    plain = predict(measured(some), PACES, CHAINS).alone.value
    runs = {1: [seen_run(1.2 * seconds, rounds)], 8: [seen_run(2 * seconds, rounds)] * 8}
    found = predict(measured(some, runs=runs), PACES, CHAINS)
    assert found.alone.value == pytest.approx(plain / 1.2)
    assert found.loaded == pytest.approx(plain * 1.5 / 2)
    short = {1: [seen_run(100.0, rounds[:3])], 8: []}
    uncorrected = predict(measured(some, runs=short), PACES, CHAINS)
    assert uncorrected.alone.value == pytest.approx(plain)
    assert uncorrected.loaded is None


def test_errors_are_a_share_of_what_was_let_through() -> None:
    errors = [(number % 4, number == 0) for number in range(8)]
    some = [each for problem in range(4) for each in trials(6, 2, problem)]
    found = predict(measured(some, errors=errors), PACES, CHAINS)
    assert found.errors is not None
    assert (found.errors.value, found.careless) == (1 / 8, False)
    few = predict(measured(some, errors=errors[:4]), PACES, CHAINS)
    assert (few.errors, few.careless) == (None, False)


def figures(gain: float, width: float = 0.1, passed: float = 0.1, arm: Arm = READING) -> Figures:
    ends = (gain * exp(-width), gain * exp(width))
    share = Interval(passed, passed / 2, min(1.0, 2 * passed))
    return Figures(
        arm=arm,
        drafts=40,
        accepted=Interval(0.8, 0.7, 0.9),
        alone=Interval(gain, *ends),
        loaded=None,
        errors=share,
        verdict_seconds=0.3,
        spread=width,
    )


@pytest.mark.parametrize(
    ("gain", "width", "verdict"),
    [
        (1.5, 0.2, "pays"),
        (1.2, 0.5, "not known"),
        (0.8, 0.1, "does not pay"),
        (0.8, 0.5, "not known"),
        (1.01, 0.001, "does not pay"),
    ],
)
def test_the_interval_says_whether_it_pays(gain: float, width: float, verdict: str) -> None:
    assert figures(gain, width).verdict == verdict


def test_the_fastest_method_that_catches_errors_is_chosen() -> None:
    careless = figures(3.0, passed=0.7, arm=Arm.of("careless", "random"))
    fast = figures(2.0, passed=0.3, arm=Arm.of("fast", "bild"))
    strict = figures(1.9, passed=0.05, arm=Arm.of("strict", "reading"))
    slow = figures(1.2, passed=0.0, arm=Arm.of("slow", "specreason"))
    found = ranked([careless, slow, fast, strict])
    assert found == (strict, fast, slow, careless)
    assert strict.verdict == "pays"
    crowded = replace(strict, loaded=1.5, arm=Arm.of("crowded", "reading"))
    assert ranked([replace(strict, loaded=1.2), crowded])[0] == crowded
    assert ranked([careless]) == (careless,)


def test_more_minutes_are_what_the_interval_needs() -> None:
    assert figures(1.2, 0.4).minutes_needed(4) == pytest.approx(16)
    assert figures(1.01, 0.4).minutes_needed(4) is None
    assert figures(1.5, inf).minutes_needed(4) == 4
