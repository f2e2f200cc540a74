"""The command: wrong use, what it prints and writes, its exit codes."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from stepspec import Solver
from stepspec.cli import tune as module
from stepspec.cli.problems import PROBLEMS
from stepspec.cli.tune import CANDIDATES, read_texts
from stepspec.evals.sample import Arm
from stepspec.evals.tune.drafts import LargeChain, Trial
from stepspec.evals.tune.measuring import Measured
from stepspec.evals.tune.paces import PairPaces, ServerPace
from stepspec.orchestrator.chain import Chain, Step, Token

from ...test_cli import call
from ..scripted import DEAD, Connected
from .world import BAD, GOOD

pytestmark = pytest.mark.usefixtures("nowhere")


def tune(*arguments: str) -> int:
    return call("tune", *arguments)


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
        ([*DEAD, "-p", "bild", "-p", "bild"], "a method is there twice"),
        ([*DEAD, "-p", "large"], "large, small and plain are no methods"),
        ([*DEAD, "-p", "reward"], "needs a reward model"),
        ([*DEAD, "--users", "1"], "--users"),
        ([*DEAD, "--minutes", "inf"], "--minutes inf: a finite number"),
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
    assert tune(*arguments) == 2
    printed = capfd.readouterr()
    assert complaint in printed.err
    assert "Traceback" not in printed.err
    assert printed.out == ""


def test_a_dead_server_is_named_and_exit_code_1(capfd: pytest.CaptureFixture[str]) -> None:
    assert tune(*DEAD) == 1
    assert "the large model at http://127.0.0.1:19: no connection" in capfd.readouterr().err


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """
    Have the command report measurements made by hand; the list gets what was to be measured.

    The method accepts everything, unless its threshold is 9 (nothing) or 8 (half of the problems).
    """
    calls: list[Any] = []

    class Made:
        def __init__(
            self,
            solver: Solver,
            arms: Sequence[Arm],
            problems: Sequence[str],
            users: int,
            part: Any,
        ) -> None:
            self.arms = arms
            calls.append((arms, problems, users))

        async def measure(self, minutes: float) -> Measured:
            calls.append(minutes)
            found = Measured.of(self.arms)
            found.paces = PairPaces(
                ServerPace((0.003,), 0.01), ServerPace((0.02,), 0.03), 0.03, users=8, ahead=2
            )
            for method in found.methods.values():
                strict = method.arm.options.get("threshold")
                for problem in range(8):
                    bad = strict == 9 or (strict == 8 and problem % 2)
                    round = replace(BAD if bad else GOOD, verdict_seconds=0.02)
                    method.trials += [Trial(problem, (round,), 10)] * 4
            start = Chain.of("x")
            written = start
            for text in ("It is 41.\n\n", "41"):
                written = written.extend(Step(text, "large", "end", (Token("w"),) * 20))
            found.chains = {number: LargeChain(start, written) for number in range(8)}
            return found

    monkeypatch.setattr(module, "Measuring", Made)
    monkeypatch.setattr(module, "Solver", Connected)
    monkeypatch.setattr(Connected, "require_both", lambda _: None)  # pyright: ignore
    return calls


def test_the_headline_comes_first_and_the_settings_are_written(
    asked: list[Any], capfd: pytest.CaptureFixture[str]
) -> None:
    assert tune(*DEAD, "-p", "specreason", "-o", "stepspec.toml", "-n", "8", "--users", "4") == 0
    printed = capfd.readouterr().out.splitlines()
    assert printed[0].startswith("Use specreason: ")
    assert "Problems: 8 built-in ones; give yours. Wrote stepspec.toml." in printed
    (arms, problems, users), minutes = asked
    assert [arm.policy for arm in arms] == ["specreason"]
    assert (problems, users, minutes) == (PROBLEMS[:8], 4, 4.0)
    written = tomllib.loads(Path("stepspec.toml").read_text())
    assert (written["policy"], written["small"]["url"]) == ("specreason", DEAD[1])
    assert written["prior"]["accept_rate"] == 1.0
    assert "max_concurrency" not in written["large"], "the measurement's own is not written"


@pytest.mark.parametrize(
    ("threshold", "code", "begins"),
    [
        (7, 0, "Use specreason:threshold=7: "),
        (9, 1, "It does not pay: "),
        (8, 2, "Not known yet: "),
    ],
)
def test_the_exit_code_is_the_verdict(
    asked: list[Any], threshold: int, code: int, begins: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert tune(*DEAD, "-p", f"specreason:threshold={threshold}", "--json") == code
    made = orjson.loads(capfd.readouterr().out)
    assert made["headline"].startswith(begins)
    assert made["methods"][0]["options"] == {"threshold": threshold}
    assert made["settings"].startswith("# ")


def test_details_are_printed_on_request(
    asked: list[Any], capfd: pytest.CaptureFixture[str]
) -> None:
    tune(*DEAD)
    short = capfd.readouterr().out
    tune(*DEAD, "-v")
    long = capfd.readouterr().out
    assert "large model: 20.0 ms a token" in long
    assert "ms a token" not in short
    (arms, _, _), *_ = asked
    assert tuple(arm.name for arm in arms) == CANDIDATES


def test_problems_are_built_in_or_of_a_file_or_a_benchmark(tmp_path: Path) -> None:
    assert read_texts(None, 3) == (PROBLEMS[:3], "3 built-in ones; give yours")
    assert len(set(PROBLEMS)) == len(PROBLEMS) == 20
    lines = tmp_path / "problems.txt"
    lines.write_text("first\n\nsecond\nthird\n")
    assert read_texts(lines, 2) == (("first", "second"), f"2 of {lines}")
    rows = tmp_path / "problems.jsonl"
    rows.write_text('{"question": "What is 6 x 7?", "answer": "42"}\n')
    assert read_texts(rows, 5)[0] == ("What is 6 x 7?",), "no problem of a benchmark"
    rows.write_text('{"problem": "What is 6 x 7?", "answer": "42"}\n')
    ((put,), _) = read_texts(rows, 5)
    assert put.startswith("What is 6 x 7?")
    assert "boxed" in put
    made, words = read_texts(Path("arithmetic"), 4)
    assert (len(made), words) == (4, "4 of arithmetic")
