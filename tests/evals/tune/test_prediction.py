"""The replay of rounds, intervals, and the choice of a method."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from math import exp, inf, log
from typing import Any

import pytest

from stepspec import policies
from stepspec.evals.results import Interval
from stepspec.evals.sample import Arm
from stepspec.evals.tune.drafts import Round, Trial
from stepspec.evals.tune.judging import JudgedDraft
from stepspec.evals.tune.paces import ServerPace
from stepspec.evals.tune.prediction import (
    Figures,
    MethodTrials,
    PairPaces,
    SeenRun,
    commit_times,
    conclude,
    predict,
)
from stepspec.orchestrator.chain import Chain
from stepspec.orchestrator.events import Committed, Event
from stepspec.orchestrator.reason import reason

from ...fakes import run
from .world import READING, SPECREASON, World, drawn

PACES = PairPaces(ServerPace((0.01,), 0.02), ServerPace((0.1,), 0.2), users=8, ahead=2)
GOOD = Round(10, 0, True, 10, 50, 0, 0.3)
BAD = Round(10, 0, False, 0, 0, 10, 0.3)


def test_drafts_ahead_hide_the_verdicts_of_accepted_ones() -> None:
    times = commit_times([GOOD] * 7, PACES, 0.3)
    # the third draft may begin at once, the fourth when the first one is in the chain
    drafted = [0.12, 0.22, 0.32, 0.52, 0.62, 0.72, 0.92]
    assert times == pytest.approx([each + 0.3 for each in drafted])
    sequential = commit_times([GOOD] * 2, replace(PACES, ahead=0), 0.3)
    assert sequential == pytest.approx([0.42, 0.82])


def test_a_rejected_draft_waits_for_its_verdict_and_its_repair() -> None:
    times = commit_times([BAD, GOOD], PACES, 0.3)
    assert times == pytest.approx([0.42 + 0.2 + 0.9, 1.52 + 0.12 + 0.3])
    by_large = Round(0, 0, True, 0, 0, 10, 0.0)
    assert commit_times([by_large, GOOD], PACES, 0.3) == pytest.approx([1.2, 1.62])
    prepared = replace(GOOD, prepared=10)
    assert commit_times([prepared], PACES, 0.3) == pytest.approx([0.2 + 1.0 + 0.02 + 0.3])


@pytest.mark.parametrize("accepted", [0.0, 0.3, 0.7, 1.0])
@pytest.mark.parametrize("ahead", [1, 2, 3])
def test_the_replay_takes_the_time_of_the_loop(accepted: float, ahead: int) -> None:
    world = World(length=40, accepted=accepted)
    times: list[float] = []

    async def work() -> int:
        clock = asyncio.get_running_loop().time

        def observe(event: Event) -> None:
            if isinstance(event, Committed):
                times.append(clock())

        policy = policies.make("specreason", world.model("small"), world.model("large"))
        chain, _ = await reason(policy, Chain.of("How?"), ahead=ahead, observe=observe)
        return len(chain.steps[0].tokens)

    tokens, _ = run(work())
    good = [drawn("How?", step + 1) < accepted for step in range(40)]
    rounds = [
        replace(GOOD, drafted=tokens) if each else replace(BAD, drafted=tokens, repaired=tokens)
        for each in good
    ]
    paces = PairPaces(ServerPace((0.01,), 0.06), ServerPace((0.1,), 0.3), users=8, ahead=ahead)
    assert times == pytest.approx(commit_times(rounds, paces, 0.25), rel=0.03)


def trials(good: int, bad: int, problem: int = 0, own: int = 10) -> list[Trial]:
    accepted = Trial(problem, (GOOD,), 10, own, alone=True)
    rejected = Trial(problem, (BAD,), 10, 10, alone=True)
    return [accepted] * good + [rejected] * bad


def measured(some: list[Trial], **more: Any) -> MethodTrials:
    return MethodTrials(SPECREASON, tuple(some), **more)


def test_the_gain_is_the_large_models_time_over_that_of_the_rounds() -> None:
    some = [trial for problem in range(4) for trial in trials(6, 2, problem)]
    found = predict(measured(some), PACES, {})
    seconds = commit_times([round for each in some[:8] for round in each.rounds], PACES, 0.3)[-1]
    assert found.alone.value == pytest.approx(8 / seconds)
    assert (found.accepted.value, found.verdict_seconds, found.drafts) == (0.75, 0.3, 32)
    assert found.spread == pytest.approx(0.0, abs=1e-9), "all problems are alike"
    assert (found.loaded, found.slips, found.errors, found.length) == (None,) * 4


def test_problems_that_differ_widen_the_interval_and_one_says_nothing() -> None:
    alike = [each for problem in range(6) for each in trials(5, 5, problem)]
    bursts = [
        each for problem in range(6) for each in trials(*((9, 1), (1, 9))[problem % 2], problem)
    ]
    assert predict(measured(alike), PACES, {}).spread < 0.01
    found = predict(measured(bursts), PACES, {})
    assert found.alone.low < 0.8 * found.alone.value
    assert found.accepted.low < predict(measured(alike), PACES, {}).accepted.low
    assert predict(measured(trials(9, 1)), PACES, {}).spread == inf


def test_the_weight_of_a_problem_is_the_length_of_its_chain() -> None:
    some = [*trials(8, 0, 0), *trials(0, 8, 1)]
    easy = predict(measured(some), PACES, {0: 9.0, 1: 1.0}).alone.value
    hard = predict(measured(some), PACES, {0: 1.0, 1: 9.0}).alone.value
    assert easy > predict(measured(some), PACES, {}).alone.value > hard


def test_drafts_of_another_length_than_the_large_models_step_widen_the_interval() -> None:
    some = [each for problem in range(4) for each in trials(8, 0, problem, own=40)]
    found = predict(measured(some), PACES, {})
    same = predict(measured([replace(each, own=10) for each in some]), PACES, {})
    assert found.alone.value == pytest.approx(2 * same.alone.value)
    assert log(found.alone.high / found.alone.value) == pytest.approx(log(2), rel=0.01)


def test_runs_correct_the_prediction_and_tell_of_load() -> None:
    some = [each for problem in range(4) for each in trials(6, 2, problem)]
    rounds = (GOOD, GOOD, BAD, GOOD) * 4
    times = commit_times(rounds, PACES, 0.3)
    seconds = times[-1] - times[0]
    plain = predict(measured(some), PACES, {}).alone.value
    paces = replace(PACES, large=replace(PACES.large, loaded=0.15))
    runs = {1: (SeenRun(1.2 * seconds, rounds),), 8: (SeenRun(2 * seconds, rounds),) * 8}
    found = predict(measured(some, runs=runs), paces, {})
    assert found.alone.value == pytest.approx(plain / 1.2)
    assert found.loaded == pytest.approx(plain * 1.5 / 2)
    short = {1: (SeenRun(100.0, rounds[:3]),), 8: ()}
    assert predict(measured(some, runs=short), paces, {}).alone.value == pytest.approx(plain)


def test_errors_and_slips_are_shares_of_what_was_let_through() -> None:
    drafts = [
        JudgedDraft(number % 4, 10 + number, number < 8, number in (0, 12, 14))
        for number in range(16)
    ]
    slips = tuple((number % 4, number < 1) for number in range(10))
    some = [each for problem in range(4) for each in trials(6, 2, problem)]
    found = predict(measured(some, drafts=tuple(drafts), slips=slips), PACES, {})
    assert found.errors is not None
    assert found.slips is not None
    assert (found.errors.value, found.slips.value, found.seen_errors) == (1 / 8, 0.1, 8)
    assert found.length == 3 / 8, "the three shortest drafts are errors"
    few = predict(measured(some, drafts=tuple(drafts[4:]), slips=slips[:4]), PACES, {})
    assert (few.errors, few.slips, few.seen_errors) == (None, None, 4)


def figures(gain: float, width: float = 0.1, passed: float = 0.1, arm: Arm = READING) -> Figures:
    ends = (gain * exp(-width), gain * exp(width))
    share = Interval(passed, passed / 2, min(1.0, 2 * passed))
    return Figures(
        arm,
        40,
        Interval(0.8, 0.7, 0.9),
        Interval(gain, *ends),
        None,
        share,
        share,
        9,
        0.5,
        0.3,
        width,
    )


@pytest.mark.parametrize(
    ("gain", "width", "verdict"),
    [(1.5, 0.2, "pays"), (1.2, 0.5, "not known"), (0.8, 0.1, "does not pay"), (0.8, 0.5, "not known"),
     (1.01, 0.001, "does not pay")],
)  # fmt: skip
def test_the_interval_says_whether_it_pays(gain: float, width: float, verdict: str) -> None:
    found = conclude([figures(gain, width)])
    assert found.verdict == verdict


def test_the_fastest_method_that_catches_errors_is_chosen() -> None:
    careless = figures(3.0, passed=0.7, arm=Arm.of("careless", "random"))
    fast = figures(2.0, passed=0.3, arm=Arm.of("fast", "bild"))
    strict = figures(1.9, passed=0.05, arm=Arm.of("strict", "reading"))
    slow = figures(1.2, passed=0.0, arm=Arm.of("slow", "specreason"))
    found = conclude([careless, slow, fast, strict])
    assert (found.best, found.fastest, found.verdict) == (strict, careless, "pays")
    assert list(found.methods) == [strict, fast, slow, careless]
    crowded = replace(strict, loaded=1.5, arm=Arm.of("crowded", "reading"))
    assert conclude([replace(strict, loaded=1.2), crowded]).best == crowded
    alone = conclude([careless])
    assert (alone.best, alone.verdict) == (None, "does not pay")


def test_more_minutes_are_what_the_interval_needs() -> None:
    assert figures(1.2, 0.4).minutes_needed(4) == pytest.approx(16)
    assert figures(1.01, 0.4).minutes_needed(4) is None
    assert figures(1.5, inf).minutes_needed(4) == 4
