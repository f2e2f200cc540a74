"""
The check of the grader: a benchmark's own solutions are right, and those of other problems are not.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import typer

from lab.grading import check
from stepspec.evals.grading.graders import LIBRARY
from stepspec.orchestrator.errors import ConfigurationError

pytest.importorskip(LIBRARY)
DATA = Path(__file__).parents[1] / "evals" / "data"


@pytest.mark.parametrize(("name", "n"), [("math500", 3), ("gsm8k", 2)])
def test_solutions_agree_with_their_own_answers_only(
    name: str, n: int, capsys: pytest.CaptureFixture[str]
) -> None:
    check(name, DATA / f"{name}.jsonl", n)
    first, *others = capsys.readouterr().out.splitlines()
    assert first.startswith(f"{n} of {n} solutions agree with the answer, in ")
    assert others == ["against the next problem's answer: 0 agree, of which 0 have the same answer"]


def test_disagreements_are_listed_with_the_reason_and_fail(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "wrong.jsonl"
    path.write_bytes(
        (DATA / "math500.jsonl").read_bytes().replace(b'"answer": "(-2,2)"', b'"answer": "(-2,3)"')
    )
    with pytest.raises(typer.Exit):
        check("math500", path)
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].startswith("2 of 3 solutions agree")
    assert printed[1] == "  own/3: the solution gives '(-2,2)', the answer is '(-2,3)'"


def test_solutions_are_needed(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"question": "q", "answer": "1"}\n')
    with pytest.raises(
        ConfigurationError,
        match="amc23 comes without worked solutions: there is nothing to compare",
    ):
        check("amc23", path)
    with pytest.raises(ConfigurationError, match="arithmetic comes without worked solutions"):
        check("arithmetic")
