"""The command: wrong use, what it prints and writes, its exit codes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson
import pytest

from stepspec import Solver
from stepspec import settings as configuration
from stepspec.evals.estimate import command as module
from stepspec.evals.estimate.measurements import Measurements
from stepspec.evals.problems import PROBLEMS
from stepspec.evals.sample import Arm

from ...test_cli import call
from ..scripted import DEAD, Connected
from .made import BAD, GOOD, measured

pytestmark = pytest.mark.usefixtures("nowhere")


def estimate(*arguments: str) -> int:
    return call("estimate", *arguments)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Sequence[Any]]:
    """
    Have the command estimate from measurements made by hand; the list gets what was to be measured.
    """
    calls: list[Sequence[Any]] = []

    async def measure(
        solver: Solver,
        methods: Sequence[Arm],
        problems: Sequence[str],
        loads: Sequence[int],
        *more: Any,
    ) -> Measurements:
        calls.append((methods, problems, loads, more))
        trial = GOOD if methods[0].options.get("threshold") != 9 else BAD
        return measured(0, 0, arms=(methods[0],), trials={methods[0].name: (trial,) * 10})

    monkeypatch.setattr(module, "measure", measure)
    monkeypatch.setattr(module, "Solver", Connected)
    return calls


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "no small model and no large model: pass --small "),
        (
            ["--small", "http://h:1", "--large", "http://h:1/v1"],
            "--small and --large are the same server, http://h:1",
        ),
        ([*DEAD, "-p", "specreasn"], "did you mean 'specreason'"),
        ([*DEAD, "-p", "specreason:threshold=high"], "a number from 0 to 9"),
        ([*DEAD, "-p", "bild:ahead=1"], "an estimate knows no ahead"),
        ([*DEAD, "-p", "bild", "-p", "bild"], "a method is there twice"),
        ([*DEAD, "-p", "large"], "large, small and plain are no methods"),
        ([*DEAD, "-p", "reward"], "needs a reward model"),
        ([*DEAD, "--users", "4,x"], "--users '4,x': write numbers"),
        ([*DEAD, "--users", "0"], "every number has to be above 0"),
        ([*DEAD, "--problems", "nowhere.txt"], "no problems in nowhere.txt"),
        ([*DEAD, "--output", "."], "no file that can be written"),
        ([*DEAD, "--temperature", "9"], "--temperature"),
        (["--testbed", *DEAD], "leave out either it or --small"),
        (["--testbed", "--problems", "x.txt"], "leave out either it or --problems"),
    ],
)
def test_wrong_use_is_one_line_and_exit_code_2(
    arguments: list[str], complaint: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert estimate(*arguments) == 2
    printed = capfd.readouterr()
    assert complaint in printed.err
    assert "Traceback" not in printed.err
    assert printed.out == ""


def test_a_nested_pair_is_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "stepspec.toml").write_text(
        'large = "http://a:1"\n[small]\nlarge = "http://b:1"\nsmall = "http://c:1"\n'
    )
    assert estimate() == 2
    assert "a nested pair cannot be measured" in capfd.readouterr().err


def test_a_dead_server_is_named_and_exit_code_1(capfd: pytest.CaptureFixture[str]) -> None:
    assert estimate(*DEAD) == 1
    # the small one may be
    assert "the large model at http://127.0.0.1:19: no connection" in capfd.readouterr().err


def test_the_verdict_comes_first_and_the_settings_are_written(
    asked: list[Sequence[Any]], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (
        estimate(*DEAD, "-p", "specreason", "--users", "4", "--output", "settings.toml", "-n", "7")
        == 0
    )
    printed = capfd.readouterr()
    assert printed.out.startswith("It pays: specreason")
    assert "wrote settings.toml" in printed.err
    ((methods, problems, loads, (minutes, *_)),) = asked
    assert [arm.policy for arm in methods] == ["specreason"]
    assert (problems, loads, minutes) == (list(PROBLEMS[:7]), [4], 2.0)
    assert len(set(PROBLEMS)) == len(PROBLEMS) == 20
    monkeypatch.setenv("STEPSPEC_CONFIG", "settings.toml")
    read = configuration.load()
    assert read.policy == "specreason"
    assert read.large is not None
    assert read.large.max_concurrency == 64  # The measurement's own, unlimited one is not written.


def test_problems_come_from_a_file(asked: list[Sequence[Any]], tmp_path: Path) -> None:
    lines = ["first", "", '{"problem": "second", "answer": "2"}', '{"question": "third"}', "fourth"]
    (tmp_path / "problems.txt").write_text("\n".join(lines))
    assert estimate(*DEAD, "--problems", "problems.txt", "-n", "3", "--users", "") == 0
    ((methods, problems, loads, _),) = asked
    assert [arm.policy for arm in methods] == list(module.POLICIES)
    assert (problems, loads) == (["first", "second", "third"], [])


def test_json_is_one_object_and_the_exit_code_says_that_nothing_pays(
    asked: list[Sequence[Any]], capfd: pytest.CaptureFixture[str]
) -> None:
    assert estimate(*DEAD, "-p", "specreason:threshold=9", "--json") == 1
    made = orjson.loads(capfd.readouterr().out)
    assert (made["pays"], made["best"]) == (False, None)
    assert made["headline"].startswith("It does not pay")
    assert made["methods"][0]["options"] == {"threshold": 9}
