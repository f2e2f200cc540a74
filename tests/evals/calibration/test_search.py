"""
A calibration makes only the trials that it needs, keeps them, and finds the result of their
outcomes.
"""

import asyncio
import random
from pathlib import Path

import pytest

from stepspec.evals.calibration.risk_bound import LossTest, Paired
from stepspec.evals.calibration.search import (
    CalibrationResult,
    CalibrationRun,
    RunStore,
    limited,
    search,
)
from stepspec.orchestrator.errors import ConfigurationError
from stepspec.policies import Threshold

from ...fakes import run

KNOB = Threshold("threshold", (9.0, 7.0, 5.0, 3.0, 1.0))


class World:
    """
    Problems whose worst accepted grade decides: below 5 the answer is wrong. Grades are fixed for
    each problem.
    """

    def __init__(self, problems: int, seed: int = 0) -> None:
        rng = random.Random(seed)
        self.grades = [tuple(float(rng.randint(1, 9)) for _ in range(3)) for _ in range(problems)]
        self.runs: list[tuple[int, float | None]] = []
        self.open = self.most = 0

    async def solve(self, problem: int, value: float | None) -> CalibrationRun:
        self.runs.append((problem, value))
        self.open += 1
        self.most = max(self.most, self.open)
        await asyncio.sleep(1)
        self.open -= 1
        if value is None:
            return CalibrationRun(problem, None, True)
        accepted = [grade for grade in self.grades[problem] if grade >= value]
        return CalibrationRun(problem, value, min(accepted, default=9) >= 5)

    def calibrate(self, path: Path, concurrency: int = 4) -> CalibrationResult:
        with RunStore(path, {"knob": "threshold"}) as trials:
            return run(
                search(
                    limited(self.solve, concurrency),
                    len(self.grades),
                    KNOB,
                    LossTest(0.1, 0.05),
                    trials,
                )
            )[0]


def test_the_loosest_value_that_loses_nothing_is_found(tmp_path: Path) -> None:
    world = World(80)
    found = world.calibrate(tmp_path / "trials.jsonl")
    assert [each.threshold for each in found.tested] == [9, 7, 5, 3]
    assert [each.holds for each in found.tested] == [True, True, True, False]
    assert world.most == 4
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
    path, first, second = tmp_path / "trials.jsonl", World(80), World(80)
    expected = first.calibrate(path)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:100]) + lines[100][:7])
    assert second.calibrate(path) == expected
    assert len(second.runs) == len(first.runs) - 99
    assert sorted(path.read_bytes().splitlines()) == sorted(line.rstrip(b"\n") for line in lines)


def test_trials_of_something_else_and_foreign_lines_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "trials.jsonl"
    with RunStore(path, {"knob": "threshold"}) as trials:
        trials.add(CalibrationRun(0, 9, True))
    with pytest.raises(
        ConfigurationError,
        match=r"other: knob\): one calibration makes one promise.*--output.*--fresh",
    ):
        RunStore(path, {"knob": "p"})
    with path.open("ab") as file:
        file.write(b'{"problem": 1}\n')
    with pytest.raises(ConfigurationError, match="line 3: no trial"):
        RunStore(path, {"knob": "threshold"})


def test_what_another_process_added_before_the_lock_is_read(tmp_path: Path) -> None:
    store = RunStore(tmp_path / "trials.jsonl", {})
    with RunStore(tmp_path / "trials.jsonl", {}) as other:
        other.add(CalibrationRun(0, 9, True))
    with store:
        assert list(store.done) == [(0, 9)]


async def test_a_failure_ends_all_of_it(tmp_path: Path) -> None:
    world = World(9)

    async def solve(problem: int, value: float | None) -> CalibrationRun:
        if problem == 4:
            raise RuntimeError("the server is gone")
        return await world.solve(problem, value)

    with (
        RunStore(tmp_path / "trials.jsonl", {}) as trials,
        pytest.raises(RuntimeError, match="the server is gone"),
    ):
        await search(solve, 9, KNOB, LossTest(0.02, 0.05), trials)
    assert len(asyncio.all_tasks()) == 1
