"""The experiment that compares selecting runs with each method: its settings and its figures."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer import Typer
from typer.testing import CliRunner

from stepspec.api import check_policies
from stepspec.evals.experiments.method_selection import SELECTING, main, selecting, summarise
from stepspec.evals.sample import Arm
from stepspec.settings import load

ARMS = [Arm.of(name, name, options) for name, options in (("specreason", {"threshold": 8}), ("reflective", {}))]


def test_the_selecting_runs_may_choose_every_method(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    settings = selecting(load(), ARMS)
    check_policies(settings)
    assert (settings.policy, settings.options, settings.auto) == ("specreason", {"threshold": 8}, True)
    assert settings.calibration is not None
    assert settings.calibration.value == 8
    assert [(each.policy, each.calibration.policy) for each in settings.alternatives] == [("reflective",) * 2]


def test_the_first_block_is_apart_and_the_best_method_is_a_fixed_one() -> None:
    latencies = {"a": [[4.0, 4.0], [2.0, 4.0]], "b": [[1.0, 1.0], [5.0, 5.0]], SELECTING: [[6.0, 2.0], [1.0, 2.0]]}
    cells = summarise(8, latencies, {"a": 4, "b": 3, SELECTING: 2}, {"a": 3, "b": 1})
    assert [(cell.name, cell.n, cell.seconds) for cell in cells] == [("a", 2, 3.0), ("b", 2, 5.0), (SELECTING, 2, 1.5)]
    assert [cell.to_best.value for cell in cells] == [1.0, pytest.approx(5 / 3), 0.5]
    assert [cell.first_block.value for cell in cells] == [1.0, 0.25, 1.0]
    assert [(cell.correct, cell.selected) for cell in cells] == [(1.0, {}), (0.75, {}), (0.5, {"a": 3, "b": 1})]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["-p", "bild"], "one method leaves nothing to select"),
        (["--problems", "4", "--blocks", "5"], "every block needs a problem"),
        (["--world", "wide"], "wide"),
    ],
)
def test_wrong_arguments_are_named_before_a_server_starts(
    arguments: list[str], complaint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    app = Typer()
    app.command()(main)
    result = CliRunner().invoke(app, [*arguments, "--output", "figures.json"])
    assert complaint in str(result.exception)
