"""``stepspec trace`` makes a page of a trace, or prints the error."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepspec.orchestrator.service.watch.page import html

from .orchestrator.service.watch.page.made import made
from .test_cli import call


@pytest.fixture(autouse=True)
def trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["stepspec"])
    (tmp_path / "run.jsonl").write_bytes(made())
    return tmp_path / "run.jsonl"


@pytest.mark.parametrize(
    ("arguments", "written"),
    [([], "run.html"), (["-o", "page"], "page"), (["--output", "run.jsonl.htm"], "run.jsonl.htm")],
)
def test_the_page_is_written(
    arguments: list[str], written: str, trace: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert call("trace", "run.jsonl", *arguments) == 0
    assert (trace.parent / written).read_text(encoding="utf-8") == html(made())
    printed = capfd.readouterr()
    assert (printed.out, written in printed.err) == ("", True)


def test_the_page_is_written_to_standard_output(capfd: pytest.CaptureFixture[str], trace: Path) -> None:
    assert call("trace", "run.jsonl", "-o", "-") == 0
    assert capfd.readouterr().out == html(made())
    assert [path.name for path in trace.parent.iterdir()] == ["run.jsonl"]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["nowhere.jsonl"], "nowhere.jsonl: No such file"),
        (["notes.txt"], "notes.txt: not a line of a trace"),
        (["empty.jsonl"], "empty.jsonl: not a trace: it does not begin with the event Started"),
        (["."], "Is a directory"),
        (["run.jsonl", "-o", "nowhere/page.html"], "nowhere/page.html: No such file"),
    ],
)
def test_an_error_is_one_line(
    arguments: list[str], complaint: str, trace: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (trace.parent / "notes.txt").write_text("hello")
    (trace.parent / "empty.jsonl").touch()
    assert call("trace", *arguments) == 2
    printed = capfd.readouterr()
    assert complaint in printed.err
    assert "Traceback" not in printed.err
    assert printed.out == ""
    assert not list(trace.parent.glob("*.html"))


def test_it_has_help(capfd: pytest.CaptureFixture[str]) -> None:
    assert call("trace", "--help") == 0
    assert "Usage" in capfd.readouterr().out
