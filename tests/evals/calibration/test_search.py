"""
A calibration makes only the trials that it needs, keeps them, and finds the result of their
outcomes.
"""

import asyncio
import random
from pathlib import Path

import pytest

from stepspec import Sampling, Solution
from stepspec.evals.arms import LARGE
from stepspec.evals.calibration.policy_file import served_arms
from stepspec.evals.calibration.risk_bound import LossTest, Paired
from stepspec.evals.calibration.search import CalibrationResult, TrialStore, search
from stepspec.evals.grading.graders import Answer
from stepspec.evals.plan import Plan
from stepspec.evals.runner import WARM_UP
from stepspec.evals.sample import Task
from stepspec.orchestrator.budget import Budget
from stepspec.orchestrator.errors import ConfigurationError
from stepspec.policies import Threshold
from stepspec.settings import Settings

from ...fakes import run
from ..scripted import ScriptedSolver, SolveCall, sample, solution

KNOB = Threshold("threshold", (9.0, 7.0, 5.0, 3.0, 1.0))


class World:
    """
    Problems whose worst accepted grade decides: below 5 the answer is wrong. Grades are fixed for
    each problem.
    """

    def __init__(self, problems: int, seed: int = 0) -> None:
        rng = random.Random(seed)
        self.grades = [tuple(float(rng.randint(1, 9)) for _ in range(3)) for _ in range(problems)]
        self.scripted = ScriptedSolver(self.solve)

    @property
    def runs(self) -> list[tuple[int, float | None]]:
        """The problem and the value of each run, without those to warm up."""
        return [
            (int(call.problem), call.options.get("threshold"))
            for call in self.scripted.calls
            if call.problem != WARM_UP
        ]

    def solve(self, call: SolveCall) -> Solution:
        if call.policy == "large" or call.problem == WARM_UP:
            return solution("7")
        value = call.options["threshold"]
        accepted = [grade for grade in self.grades[int(call.problem)] if grade >= value]
        return solution("7" if min(accepted, default=9) >= 5 else "8")

    async def search(self, trials: TrialStore, concurrency: int = 4) -> CalibrationResult:
        plan = Plan(
            tuple(Task(f"{number}", Answer("7", "exact")) for number in range(len(self.grades))),
            (LARGE, *served_arms(Settings(), KNOB)),
            Sampling(),
            Budget(),
            concurrency=concurrency,
        )
        return await search(self.scripted.solver, plan, KNOB, LossTest(0.1, 0.05), trials)

    def calibrate(self, path: Path) -> CalibrationResult:
        with TrialStore(path, {"knob": "threshold"}) as trials:
            return run(self.search(trials))[0]


def test_the_loosest_value_that_loses_nothing_is_found(tmp_path: Path) -> None:
    world = World(80)
    found = world.calibrate(tmp_path / "trials.jsonl")
    assert [each.threshold for each in found.tested] == [9, 7, 5, 3]
    assert [each.holds for each in found.tested] == [True, True, True, False]
    assert world.scripted.most == 4
    # the large model alone, and four values
    assert len(world.runs) == len(set(world.runs)) == 5 * 80
    assert found.loosest is not None
    assert (found.loosest.threshold, found.loosest.paired) == (5, Paired(80, 0, 0))
    assert found.problems_needed is None  # at 3 it loses far more than may be


def test_too_few_problems_give_no_guarantee_and_state_the_number_needed(tmp_path: Path) -> None:
    found = World(20).calibrate(tmp_path / "trials.jsonl")
    assert found.loosest is None
    assert [each.threshold for each in found.tested] == [9]
    assert found.problems_needed is not None
    assert found.problems_needed > 20


def test_an_interrupted_search_does_not_repeat_trials(tmp_path: Path) -> None:
    path, first, second, third = tmp_path / "trials.jsonl", World(80), World(80), World(80)
    expected = first.calibrate(path)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:100]) + lines[100][:7])
    assert second.calibrate(path) == expected
    assert len(second.runs) == len(first.runs) - 99
    assert sorted(path.read_bytes().splitlines()) == sorted(line.rstrip(b"\n") for line in lines)
    assert third.calibrate(path) == expected
    assert third.scripted.calls == []  # Nothing is missing, so that nothing has to warm up.


def test_trials_of_something_else_and_foreign_lines_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "trials.jsonl"
    with TrialStore(path, {"knob": "threshold"}) as trials:
        trials.add(0, sample(LARGE.name, 1.0))
    with pytest.raises(
        ConfigurationError,
        match=r"other: knob\): one calibration makes one promise.*--output.*--fresh",
    ):
        TrialStore(path, {"knob": "p"})
    with path.open("ab") as file:
        file.write(b'{"problem": 1}\n')
    with pytest.raises(ConfigurationError, match="line 3: no sample"):
        TrialStore(path, {"knob": "threshold"})


def test_what_another_process_added_before_the_lock_is_read(tmp_path: Path) -> None:
    store = TrialStore(tmp_path / "trials.jsonl", {})
    with TrialStore(tmp_path / "trials.jsonl", {}) as other:
        other.add(0, sample(LARGE.name, 1.0))
    with store:
        assert list(store.done) == [(0, LARGE.name)]


async def test_a_failure_ends_all_of_it(tmp_path: Path) -> None:
    world = World(9)
    solve = world.scripted.script

    def fails(call: SolveCall) -> Solution:
        if call.problem == "4":
            raise RuntimeError("the server is gone")
        return solve(call)

    world.scripted.script = fails
    with (
        TrialStore(tmp_path / "trials.jsonl", {}) as trials,
        pytest.raises(RuntimeError, match="the server is gone"),
    ):
        await world.search(trials)
    assert len(asyncio.all_tasks()) == 1
