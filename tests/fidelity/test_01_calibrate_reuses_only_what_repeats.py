"""A calibration reused runs that do not repeat, so that a true loss q was measured as about q squared."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lab import calibration_simulation as simulation
from lab.calibration_simulation import SimulatedRuns, search, search_missed
from stepspec.evals.calibration.policy_file import decisions
from stepspec.evals.calibration.risk_bound import LossTest
from stepspec.evals.calibration.search import (
    REPEATED,
    AttemptEnd,
    CalibrationResult,
    CalibrationRun,
    CalibrationSearch,
    Decision,
    RunMemory,
    RunStore,
    repeats,
)
from stepspec.orchestrator import Accept, Rollback, Step
from stepspec.orchestrator.errors import ConfigurationError
from stepspec.orchestrator.events import Committed, Event, Judged, Lost, Repaired
from stepspec.policies import Threshold

KNOB = Threshold("threshold", (9.0, 7.0, 5.0), compared=True)
LIMIT, LEVEL, PROBLEMS, TRUE_LOSS = 0.04, 0.05, 400, 0.12


class Sampled:
    """
    Problems whose runs draw their drafts anew: in a share of `TRUE_LOSS` one is bad and has the score 7.

    *flaky* problems, from the first on, do so; the others have no bad draft.
    """

    def __init__(self, seed: int, flaky: int = PROBLEMS) -> None:
        self._rng, self._flaky = np.random.default_rng(seed), flaky
        self.runs: list[tuple[int, float | None]] = []

    async def solve(self, problem: int, value: float | None) -> CalibrationRun:
        self.runs.append((problem, value))
        if value is None:
            return CalibrationRun(problem, None, right=True)
        flaky = problem < self._flaky
        text = str(self._rng.random()) if flaky else "the same"
        bad = flaky and self._rng.random() < TRUE_LOSS
        decided = (Decision(9.0, text), *((Decision(7.0, text),) if bad else ()))
        return CalibrationRun(problem, value, not (bad and value <= 7), decided, text)

    def calibrate(self, *, trials: RunMemory | None = None) -> tuple[CalibrationResult, list[CalibrationRun]]:
        different: list[CalibrationRun] = []
        known = RunMemory() if trials is None else trials
        calibration = CalibrationSearch(
            self.solve, PROBLEMS, KNOB, LossTest(LIMIT, LEVEL), known, on_difference=different.append
        )
        return asyncio.run(calibration.run()), different


def test_runs_that_do_not_repeat_are_not_reused() -> None:
    """No calibration takes a loss of 12% for one of 4%; with reuse all of them did."""
    for seed in range(6):
        result, different = Sampled(seed).calibrate()
        assert [tested.threshold for tested in result.tested if tested.holds] == [9]
        assert result.tested[1].paired.loss == pytest.approx(TRUE_LOSS, abs=0.05)
        assert (result.reused, len(different)) == (0, 1)


def test_at_the_first_difference_everything_that_was_reused_is_run() -> None:
    world = Sampled(1, flaky=120)
    _, different = world.calibrate()
    assert len(different) == 1
    assert len(world.runs) == len(set(world.runs)) == 3 * PROBLEMS  # large alone, 9, and 7, which fails


def test_runs_that_repeat_are_reused_and_a_sample_of_them_is_checked() -> None:
    world = Sampled(1, flaky=0)
    result, different = world.calibrate()
    assert different == []
    assert result.reused == 2 * (PROBLEMS - REPEATED)
    assert len(world.runs) == 2 * PROBLEMS + 2 * REPEATED


def test_a_resumed_calibration_detects_a_difference(tmp_path: Path) -> None:
    with RunStore(tmp_path / "trials.jsonl", {}) as trials:
        first, _ = (world := Sampled(1, flaky=120)).calibrate(trials=trials)
    with RunStore(tmp_path / "trials.jsonl", {}) as trials:
        again, different = (resumed := Sampled(2, flaky=120)).calibrate(trials=trials)
    assert (again, len(different), resumed.runs) == (first, 1, [])
    assert len(world.runs) == 3 * PROBLEMS


EARLIER = CalibrationRun(0, 9, True, (Decision(9, "a"), Decision(7, "ab"), Decision(2, "abc")), "end")


@pytest.mark.parametrize(
    ("later", "same"),
    [
        (replace(EARLIER, value=8), True),
        (replace(EARLIER, value=8, text="other"), False),
        (replace(EARLIER, value=8, right=False), False),
        (replace(EARLIER, value=8, decisions=EARLIER.decisions[:2]), False),
        (replace(EARLIER, value=8, decisions=(Decision(9.3, "a"), *EARLIER.decisions[1:])), True),
        (replace(EARLIER, value=8, decisions=(Decision(8.9, "a"), *EARLIER.decisions[1:])), False),
        (replace(EARLIER, value=8, decisions=(Decision(None, "a"), *EARLIER.decisions[1:])), False),
        (CalibrationRun(0, 7, False, (Decision(9, "a"), Decision(7, "ab")), "another end"), True),
        (CalibrationRun(0, 7, False, (Decision(9, "a"), Decision(7, "xy")), "another end"), False),
        (CalibrationRun(0, 7, False, (Decision(9, "a"),), "another end"), False),
    ],
)
def test_a_run_repeats_another_up_to_the_first_decision_that_their_values_make_differently(
    later: CalibrationRun, same: bool
) -> None:
    assert repeats(EARLIER, later, (9, 8, 7)) is same


def test_decisions_are_the_verdicts_on_committed_and_repaired_steps() -> None:
    """Not those on lost bets; and also that of a run that ends with its repair, or before it."""
    a, b, c, r = (Step(text, "small") for text in "abcr")
    low, high = Rollback(reason="grade", score=2.0), Accept(8.0)
    events: list[Event] = [
        Judged(0, a, high), Judged(1, b, low), Judged(2, c, high), Committed(0, a, 8.0), Lost(2, c),
        Repaired(1, r, low), Committed(1, r), Judged(2, c, Rollback(reason="grade")),
    ]  # fmt: skip
    assert [decision.score for decision in decisions(events)] == [8.0, 2.0, None]
    assert [decision.score for decision in decisions([*events, Repaired(2, r, low)])] == [8.0, 2.0, None]
    chains = [decision.chain for decision in decisions(events)]
    assert len({*chains}) == 3
    assert chains == [decision.chain for decision in decisions([*events[:2], *events[3:4], *events[5:]])]


def test_half_of_a_draft_that_is_kept_is_decided_once() -> None:
    a, r, bet = Step("ab", "small"), Step("r", "large"), Step("bet", "small")
    verdict = Rollback(keep=1, reason="grade", score=3.0)
    events: list[Event] = [
        Judged(0, a, verdict), Judged(1, bet, Accept(9.0)), Committed(0, a.cut(1), 3.0), Lost(1, bet),
        Repaired(1, r, verdict), Committed(1, r),
    ]  # fmt: skip
    assert [decision.score for decision in decisions(events)] == [3.0]


def test_a_further_attempt_counts_and_a_repeated_one_does_not(tmp_path: Path) -> None:
    path, digests = tmp_path / "trials.jsonl", [str(problem) for problem in range(9)]
    first, second = (AttemptEnd(problems, LIMIT, LEVEL, KNOB.values) for problems in (4, 8))
    with RunStore(path, {}) as trials:
        trials.start_attempt(digests[:5])
        assert (trials.attempt_number(first), trials.attempt_number(second)) == (1, 1)
        trials.end_attempt(first)
        assert (trials.attempt_number(first), trials.attempt_number(second)) == (1, 2)
        assert trials.attempt_number(replace(second, limit=0.1)) == 1
    with RunStore(path, {}) as trials:
        trials.start_attempt(digests)
        trials.end_attempt(second)
        trials.end_attempt(first)
        assert (trials.attempt_number(first), trials.attempt_number(second)) == (1, 2)
        with pytest.raises(ConfigurationError, match=r"runs on 8 problems, and these are 4.*--fresh"):
            trials.start_attempt(digests[:5])
        with pytest.raises(ConfigurationError, match=r"holds runs on other problems.*--work"):
            trials.start_attempt([*digests[:8], "other", "9"])
    assert len(path.read_text().splitlines()) == 1 + 2 + 2


def test_the_level_is_that_of_all_attempts_together() -> None:
    """Twice as many problems after every attempt that failed, and the promise is kept all the same."""
    for kind in simulation.ATTEMPT_KINDS:
        assert search_missed([search(kind, 60, 0.1, 60, 0.0, attempts=3)]) == []


def unchecked_reuse(
    self: CalibrationSearch, value: float, before: Mapping[int, CalibrationRun]
) -> dict[int, CalibrationRun]:
    """The old rule: a run in which no score lies between two values is the same run for both."""
    return {
        problem: replace(tried, value=value)
        for problem, tried in before.items()
        if tried.first_change(value) is None and (problem, value) not in self.store.done
    }


def nothing_checked(self: CalibrationSearch, runs: object, before: object) -> None:
    pass


@pytest.fixture
def _old_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CalibrationSearch, "_reusable", unchecked_reuse)
    monkeypatch.setattr(CalibrationSearch, "_check", nothing_checked)


@pytest.mark.parametrize("repeating", [1.0, 0.95, 0.0])
def test_the_search_keeps_its_promise_with_runs_that_repeat_and_with_runs_that_do_not(repeating: float) -> None:
    row = search("at the edge from the second", 60, 0.1, 25, repeating)
    assert search_missed([row]) == []
    assert (row.reused > 0.3) is (repeating == 1)


@pytest.mark.usefixtures("_old_rule")
def test_the_old_rule_breaks_the_promise_where_runs_do_not_repeat() -> None:
    assert search_missed([search("at the edge from the second", 60, 0.1, 25, 1.0)]) == []
    row = search("at the edge from the second", 300, 0.02, 25, 0.0)
    assert row.broken > 0.9
    assert "0% of the problems repeat, 1 attempts: broken in" in search_missed([row])[0]


def test_where_all_runs_repeat_and_none_is_reused_the_row_shows_nothing() -> None:
    row = search("a cliff", 60, 0.1, 3, 1.0)
    assert search_missed([row]) == []
    assert search_missed([replace(row, reused=0.0)]) == ["missed: a cliff: all runs repeat, and none is reused"]


def test_the_runs_of_a_population_have_its_loss() -> None:
    rng = np.random.default_rng(0)
    population = simulation.Population(np.array([0.05, 0.2]), np.array([0.01, 0.03]))

    async def loss(repeating: float, place: int) -> float:
        runs, n = SimulatedRuns(population, rng, 4_000, repeating), 4_000
        right = [
            [(await runs.solve(p, v)).right for p in range(n)] for v in (None, SimulatedRuns.threshold.values[place])
        ]
        return (sum(right[0]) - sum(right[1])) / n

    for repeating in (0.0, 1.0):
        for place in (0, 1):
            expected = population.loss[place]
            assert asyncio.run(loss(repeating, place)) == pytest.approx(expected, abs=0.03)
