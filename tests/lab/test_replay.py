"""Logged runs of real models: what is read, drawn and replayed."""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path
from statistics import fmean

import orjson
import pytest
from typer.testing import CliRunner

from lab.replay import AHEAD, PACES, SEQUENTIAL, app, script_of, seconds_of
from lab.simulation.choosing import Choice, interval
from lab.simulation.grid import GPUS, find_pair
from lab.specreason_log import (
    LOG,
    accept_rate,
    draw_lengths,
    draw_quality,
    read_runs,
    step_lengths,
)
from stepspec.evals.arms import LARGE
from stepspec.orchestrator.errors import ConfigurationError

HEADER = LOG.read_text(encoding="utf-8").splitlines()[0]
ROWS = [
    "7,easy,0,,,,,0,50,2.0,",  # the large model's, by order
    "7,easy,1,20,0.2,9,0.16,1,,,",
    "7,easy,2,30,0.3,2,0.16,0,40,1.6,0",
]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A log of one run of three steps."""
    path = tmp_path / "log.csv"
    path.write_text("\n".join([HEADER, *ROWS]) + "\n", encoding="utf-8")
    return path


def test_the_log_has_the_published_numbers_of_runs_and_steps() -> None:
    runs = read_runs()
    assert (len(runs), sum(len(run.steps) for run in runs)) == (25, 2773)
    assert len({run.problem for run in runs}) == 7
    assert accept_rate(runs) == pytest.approx(0.79, abs=0.005)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a,b\n1,2\n", "cannot read the log"),
        (HEADER + "\n", "has no step"),
        (f"{HEADER}\n7,easy,0,-3,,,,1,,,\n", "cannot read the log"),
    ],
)
def test_a_file_that_is_no_log_is_refused(text: str, why: str, tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigurationError, match=why):
        read_runs(path)
    with pytest.raises(ConfigurationError, match="cannot read the log"):
        read_runs(tmp_path / "absent.csv")


def persistence() -> float:
    """
    Return the correlation of a verdict with the next one, over all runs of the log.

    Each verdict is taken relative to the mean of its run, so that easy and hard problems alone give
    no correlation.
    """
    products = list[float]()
    squares = list[float]()
    for run in read_runs():
        rate = fmean(run.verdicts)
        deviations = [verdict - rate for verdict in run.verdicts]
        products += [first * second for first, second in pairwise(deviations)]
        squares += [deviation * deviation for deviation in deviations[1:]]
    return sum(products) / sum(squares)


def test_drawn_verdicts_persist_as_those_of_the_log() -> None:
    drawn = random.Random(0)
    products = list[float]()
    squares = list[float]()
    for _ in range(100):
        quality = draw_quality(drawn, 110)
        limit = sorted(quality)[22]  # 80% are accepted
        deviations = [(each >= limit) - 0.8 for each in quality]
        products += [first * second for first, second in pairwise(deviations)]
        squares += [each * each for each in deviations]
    assert persistence() == pytest.approx(0.47, abs=0.005)
    assert sum(products) / sum(squares) == pytest.approx(persistence(), abs=0.06)


def test_drawn_lengths_have_the_mean_that_is_asked_for_and_vary_as_in_the_log() -> None:
    lengths = draw_lengths(random.Random(3), 500, 100)
    assert fmean(lengths) == pytest.approx(100, rel=0.01)
    assert min(lengths) >= 1
    logged = step_lengths()
    spread = fmean(abs(each - fmean(logged)) for each in logged) / fmean(logged)
    assert fmean(abs(each - 100) for each in lengths) / 100 == pytest.approx(spread, abs=0.2)


def test_a_run_is_replayed_step_by_step(log: Path) -> None:
    (run,) = read_runs(log)
    led, accepted, rejected, *_ = script_of(run).turns
    assert (led.draft, led.kept) == (50, 50)
    assert (accepted.draft, accepted.kept) == (20, 20)
    assert (rejected.draft, rejected.kept, rejected.repair) == (30, 0, 40)


def test_the_seconds_of_a_replay_are_arithmetic(log: Path) -> None:
    """Tokens take 40 and 9.5 ms, a verdict 160 ms; the last steps are its end and its answer."""
    runs = dict(enumerate(read_runs(log)))
    pair = find_pair(GPUS, PACES["logs"])
    alone, script, ahead = (seconds_of(runs, arm, pair, 1)[0] for arm in (LARGE, SEQUENTIAL, AHEAD))
    assert alone == pytest.approx((50 + 20 + 40 + 2) * 0.04, abs=0.001)
    written = (50 + 40) * 0.04 + (20 + 30) * 0.0095 + 2 * 0.16
    end_and_answer = 0.0095 + 0.04 + 0.0095 + 0.16
    assert script == pytest.approx(written + end_and_answer, abs=0.001)
    assert ahead < script


def test_the_command_prints_every_arm_and_draws_them(log: Path, tmp_path: Path) -> None:
    figure = tmp_path / "replay.svg"
    flags = [str(log), "--json", "--orders", "1", "--figure", str(figure)]
    result = CliRunner().invoke(app, flags)
    assert result.exit_code == 0, result.output
    printed = orjson.loads(result.stdout)
    assert list(printed) == list(PACES)
    for found in printed.values():
        assert {"sequential", "ahead", "auto", "oracle", "auto_1", "auto_4", "auto_16"} <= set(
            found["all"]
        )
        assert found["all"]["oracle"] == pytest.approx(min(1.0, found["all"]["ahead"]))
        assert found["problems"]["easy"]["accept_rate"] == 0.5
    assert "50% accepted" in figure.read_text(encoding="utf-8")


def test_a_choice_is_compared_with_the_better_of_both_seed_by_seed() -> None:
    choice = Choice("pair", 8, 0.5, method=[0.5, 2.0], auto=[0.6, 1.1])
    assert choice.over_the_better == pytest.approx([1.2, 1.1])
    assert interval([1.0]) == (1.0, 1.0)
    assert interval([1.0, 2.0, 3.0]) == pytest.approx((2 - 2.484, 2 + 2.484), abs=0.001)
