"""The figures of targets for the large model's share, from solutions; wrong arguments are named at once."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer import Typer
from typer.testing import CliRunner

from stepspec.evals.experiments.spend_target import figures, main, table
from stepspec.evals.sample import Task
from stepspec.orchestrator.ledger import Account, Ledger
from stepspec.orchestrator.solution import Solution, Spending


def solution(large: int, small: int, threshold: float, *, missed: bool = False, answer: str = "1") -> Solution:
    ledger = Ledger(Account("small", small), Account("large", large))
    return Solution(answer, "", "", (), ledger, "stop", 1.0, spending=Spending(0.3, threshold, 0.3, missed))


def test_the_share_is_one_of_tokens_and_the_first_quarter_is_apart() -> None:
    task = Task("What is 1?", "1")
    runs = [solution(100, 0, 9.0, answer="2"), *[solution(30, 70, 5.0, missed=True)] * 3]
    cell = figures(0.3, [(task, each) for each in runs])
    assert (cell.n, cell.share, cell.correct, cell.missed) == (4, 190 / 400, 0.75, 3)
    assert (cell.settled.value, cell.settled.low, cell.settled.high) == pytest.approx((0.3, 0.3, 0.3))
    assert cell.thresholds == (5.0,)
    assert table([cell], "specreason").row_count == 1


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [(["--targets", "0.5,1.5"], "--targets 1.5: a share is from 0 to 1"), (["--world", "nowhere"], "nowhere")],
)
def test_wrong_arguments_are_named_before_a_server_starts(
    arguments: list[str], complaint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    app = Typer()
    app.command()(main)
    result = CliRunner().invoke(app, [*arguments, "--output", "figures.json"])
    assert complaint in str(result.exception)
