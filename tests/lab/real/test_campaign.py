"""The plan of a campaign, its commands, its table, and the page that it is written into."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from lab.real import __main__ as program
from lab.real.campaign import Cell, measure, plan, table, write_section
from stepspec.evals.cli import arm
from stepspec.evals.results import Result
from stepspec.orchestrator.errors import ConfigurationError

CELL = Cell("gsm8k", 0.6, ("reading", "bild:scale=step"), 40, True, "main")


def summary(name: str, **more: Any) -> dict[str, Any]:
    result = Result(
        name, 40, 0.75, (0.598, 0.858), 2.5, 0.5, (0.4, 0.6), None, 0.25, 0.9, 0.1, 123.4
    )
    return {"result": asdict(replace(result, **more))}


def test_every_cell_is_planned_once_with_methods_that_exist() -> None:
    cells = list(plan(40, 12))
    assert [cell.folder for cell in cells[:4]] == [
        "gsm8k-0-main",
        "math500-0-main",
        "gsm8k-0.6-main",
        "math500-0.6-main",
    ]
    assert len({cell.folder for cell in cells}) == len(cells) == 8
    assert {cell.limit for cell in cells[4:]} == {12}
    for method in {method for cell in cells for method in cell.methods}:
        arm(method)


def test_the_command_of_a_cell() -> None:
    command = CELL.command(
        {"small": "http://s", "large": "http://l"}, Path("runs"), Path("data"), 8
    )
    assert (
        " ".join(command[3:])
        == "eval gsm8k --json --small http://s --large http://l -p reading -p bild:scale=step"
        " --baseline large --baseline small --temperature 0.6 --max-tokens 1024 -n 40"
        " --concurrency 8 --output runs/gsm8k-0.6-main --data data/gsm8k.jsonl"
    )


def test_the_table_has_a_row_for_each_arm() -> None:
    rest = Cell("gsm8k", 0.6, ("specreason",), 12, False, "rest")
    large = summary("large alone", accept_rate=None, ratio=1.0, ratio_interval=(1.0, 1.0))
    lines = table({CELL: [large, summary("reading")], rest: [large]}).splitlines()
    assert lines[0] == "**gsm8k, temperature 0.6**"
    assert (
        lines[4]
        == "| large alone | 40 | 75.0% [59.8%, 85.8%] | 2.50 | 1.00 [1.00, 1.00] |  | 25% | 123 |"
    )
    assert (
        lines[5]
        == "| reading | 40 | 75.0% [59.8%, 85.8%] | 2.50 | 0.50 [0.40, 0.60] | 90% | 25% | 123 |"
    )
    assert lines[6].startswith("| large alone, on these | ")


def test_a_section_replaces_itself_and_nothing_else(tmp_path: Path) -> None:
    page = tmp_path / "results.md"
    page.write_text("# Figures\n\nAbout.\n\n## Worlds\n\nOld.\n")
    write_section(page, "pair", "A real pair", "first")
    write_section(page, "smol", "Another", "other")
    write_section(page, "pair", "A real pair", "second")
    text = page.read_text()
    assert "first" not in text
    assert text.index("second") < text.index("## Worlds")
    assert text.count("## A real pair") == text.count("## Another") == 1
    assert text.endswith("## Worlds\n\nOld.\n")
    assert [path.name for path in tmp_path.iterdir()] == ["results.md"]


def test_a_failed_evaluation_says_that_nothing_is_lost() -> None:
    with pytest.raises(
        ConfigurationError, match=r"gsm8k-0.6-main: .* exit code 3 .*a new run goes on from there"
    ):
        measure(CELL, ["python3", "-c", "raise SystemExit(3)"])
    assert measure(CELL, ["python3", "-c", "print('[{\"result\": 1}]')"]) == [{"result": 1}]


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"small": "http://a"}, "--small and --large belong together"),
        ({"small": "http://a", "large": "http://a"}, "are the same server"),
        ({"models": Path("nowhere")}, "no model in nowhere/small"),
    ],
)
def test_wrong_use_is_refused_before_anything_is_fetched(
    options: dict[str, Any], complaint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    everything: dict[str, Any] = {
        "folder": tmp_path,
        "models": None,
        "small": None,
        "large": None,
        **options,
    }
    with pytest.raises(ConfigurationError, match=complaint):
        program.command(**everything)
