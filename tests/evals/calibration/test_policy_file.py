"""The summary of a calibration, and its settings file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from stepspec.cli.calibrate import problems
from stepspec.evals.benchmarks import find, half, load, own
from stepspec.evals.calibration import risk_bound
from stepspec.evals.calibration.policy_file import CalibrationSettings, find_threshold
from stepspec.evals.calibration.search import CalibrationResult
from stepspec.evals.sample import Task
from stepspec.orchestrator.errors import ConfigurationError


def found(*outcomes: tuple[float, int, int, bool], n: int = 500) -> CalibrationResult:
    rows = [
        risk_bound.ThresholdTest(value, risk_bound.Paired(n, lost, gained), 0.01, holds)
        for value, lost, gained, holds in outcomes
    ]
    return CalibrationResult(risk_bound.LossTest(0.02, 0.05), tuple(rows))


def promise(calibrated: CalibrationResult, **more: Any) -> CalibrationSettings:
    return CalibrationSettings(
        "specreason",
        find_threshold("specreason"),
        "gsm8k, calibration half",
        calibrated,
        more,
        {},
        {},
        {},
    )


def test_a_promise_is_one_sentence() -> None:
    summary = promise(found((9, 0, 0, True))).summary()
    assert summary.startswith("With threshold = 9, specreason loses at most 2.0% ")
    assert "95% confidence" in summary


def test_without_a_guarantee_there_is_no_file_and_the_needed_number_of_problems_is_printed() -> (
    None
):
    made = promise(found((9, 1, 0, False), n=100))
    needed = made.result.problems_needed
    assert f"At these rates {needed} problems would do: a new calibration" in made.summary()
    with pytest.raises(ConfigurationError, match="No threshold of specreason can be promised"):
        made.toml()


def test_a_loss_that_no_sample_can_talk_away_is_called_that() -> None:
    assert "Nor would more problems" in promise(found((9, 30, 0, False))).summary()


def test_neither_the_seed_nor_the_template_moves_a_problem_to_the_other_half(
    tmp_path: Path,
) -> None:
    wrong = {f"Incorrect Answer {at}": f"wrong {at}" for at in (1, 2, 3)}
    rows = [
        {"Question": f"What is it, {n}?", "Correct Answer": "right", **wrong} for n in range(60)
    ]
    path = tmp_path / "gpqa.jsonl"
    path.write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))

    def questions(seed: int, part: str, prompt: str | None) -> set[str]:
        benchmark = replace(find("gpqa_diamond"), prompt=prompt)
        return {task.question for task in load(benchmark, path, seed=seed) if half(task) == part}

    calibrated = questions(0, "calibration", "eval.choice")
    assert 10 < len(calibrated) < 50
    for seed, prompt in ((0, "eval.choice"), (1, "eval.choice"), (0, None), (7, "eval.boxed")):
        assert questions(seed, "calibration", prompt) == calibrated
        assert not questions(seed, "report", prompt) & calibrated


def test_only_the_calibration_half_of_a_file_is_used(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text(
        "".join(f'{{"problem": "What is {n} + {n}?", "answer": "{2 * n}"}}\n' for n in range(40))
    )
    tasks = problems(own(path), path, seed=0, count=None)
    assert 0 < len(tasks) < 40
    assert {half(task) for task in tasks} == {"calibration"}
    assert problems(own(path), path, seed=0, count=3) == tasks[:3]


def test_made_problems_are_others_than_those_reported_on() -> None:
    arithmetic = find("arithmetic")
    assert arithmetic.made is not None
    reported: list[Task] = arithmetic.made(0, 200)
    mine = problems(arithmetic, None, seed=0, count=200)
    assert len(mine) == 200
    assert not {task.problem for task in reported} & {task.problem for task in mine}


def test_the_calibrated_option_can_be_named() -> None:
    assert find_threshold("specreason").option == "threshold"
    with pytest.raises(
        ConfigurationError, match=r"no policy 'specreasn' .did you mean 'specreason'"
    ):
        find_threshold("specreasn")
    assert find_threshold("specreason", values=[8, 7]).values == (8, 7)
    assert find_threshold("bild", "fallback", [0.9, 0.5]).option == "fallback"
    with pytest.raises(
        ConfigurationError, match=r"'relay' has no known threshold.*known threshold: specreason"
    ):
        find_threshold("relay")
    with pytest.raises(ConfigurationError, match="needs --values"):
        find_threshold("bild", "fallback")
