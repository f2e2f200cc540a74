"""The command: wrong use, what it prints and writes, its exit codes."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import orjson
import pytest

from stepspec import Solver
from stepspec.cli import eval as eval_cli
from stepspec.cli import tune as module
from stepspec.cli.problems import ANSWERS, PROBLEMS
from stepspec.cli.tune import CANDIDATES, read_set, states, with_answers
from stepspec.evals.calibration.risk_bound import Paired
from stepspec.evals.sample import Arm, Task
from stepspec.evals.tune.accuracy import Accuracy, compare_answers
from stepspec.evals.tune.drafts import Trial
from stepspec.evals.tune.measuring import Measured
from stepspec.evals.tune.paces import PairPaces, ServerPace
from stepspec.orchestrator.chain import Chain, Step, Token
from stepspec.orchestrator.endpoints import GREEDY
from stepspec.orchestrator.errors import StepspecError

from ...stand_in import StandIn
from ...test_cli import call
from ..scripted import DEAD, Connected
from .world import BAD, GOOD, SPECREASON

pytestmark = pytest.mark.usefixtures("nowhere")


def tune(*arguments: str) -> int:
    return call("tune", *arguments)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "no small model and no large model: pass --small "),
        ([*DEAD, "-p", "specreasn"], "did you mean 'specreason'"),
        ([*DEAD, "-p", "specreason:threshold=high"], "a number from 0 to 9"),
        ([*DEAD, "-p", "bild", "-p", "bild"], "the arm 'bild' is there twice"),
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
            written = Chain.of("x")
            for text in ("It is 41.\n\n", "41"):
                written = written.extend(Step(text, "large", "end", (Token("w"),) * 20))
            found.chains = dict.fromkeys(range(8), written)
            return found

    monkeypatch.setattr(module, "Measuring", Made)
    monkeypatch.setattr(eval_cli, "Solver", Connected)
    monkeypatch.setattr(Connected, "require_both", lambda _: None)  # pyright: ignore
    return calls


def test_the_headline_comes_first_and_the_settings_are_written(
    asked: list[Any], capfd: pytest.CaptureFixture[str]
) -> None:
    assert tune(*DEAD, "-p", "specreason", "-o", "stepspec.toml", "-n", "8", "--users", "4") == 0
    printed = capfd.readouterr().out.splitlines()
    assert printed[0].startswith("Use specreason: ")
    assert "Problems: 8 built-in ones; give yours. Wrote stepspec.toml." in printed
    assert "The large model solved none of the 8 problems" in printed[3]
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
    assert read_set(None, 3).texts == PROBLEMS[:3]
    assert len(set(PROBLEMS)) == len(PROBLEMS) == len(ANSWERS) == 20
    lines = tmp_path / "problems.txt"
    lines.write_text("first\n\nsecond\nthird\n")
    found = read_set(lines, 2)
    assert (found.texts, found.answers, found.tasks) == (("first", "second"), (), ())
    rows = tmp_path / "problems.jsonl"
    rows.write_text('{"question": "What is 6 x 7?", "answer": "42"}\n')
    assert read_set(rows, 5).answers == (), "no problem of a benchmark"
    rows.write_text('{"problem": "What is 6 x 7?", "answer": "42"}\n')
    answered = read_set(rows, 5)
    assert (answered.answers, len(answered.tasks)) == (("42",), 1)
    assert "What is 6 x 7?" in answered.texts[0]
    own = with_answers(
        (replace(answered.tasks[0], gold=cast("Any", Gold())), *answered.tasks), "a benchmark"
    )
    assert (own.answers, len(own.tasks)) == ((), 2)
    made = read_set(Path("arithmetic"), 4)
    assert len(made.tasks) == len(made.texts) == 4


def test_an_answer_stands_at_the_end_of_a_chain() -> None:
    assert states("So it arrives at 16:47.", "16:47")
    assert states("The area is 84 and the radius 4.", "84, 4")
    assert not states("The area is 84.", "84, 4")
    assert not states("48" + " " * 400, "48")


class Gold:
    """Takes one text for right."""

    async def grade(self, text: str, graders: Any) -> str:
        return "right" if text else "wrong"


async def test_answers_of_both_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    gold: Any = Gold()
    tasks = [Task(f"How many, {number}?", gold) for number in range(3)]
    async with (
        StandIn(names=("small",)).serve("small") as one,
        StandIn(names=("large",)).serve("large") as other,
        Solver(one, other, sampling=GREEDY) as solver,
    ):
        found = await compare_answers(solver, SPECREASON, tasks, 2, 60)
        assert found == Accuracy(3, Paired(3, lost=0, gained=0))
        none = await compare_answers(solver, SPECREASON, tasks, 2, 0)
        assert none.paired.n == 0

        async def fails(*_: Any, **__: Any) -> Any:
            raise StepspecError("no")

        monkeypatch.setattr("stepspec.evals.tune.accuracy.sample_once", fails)
        assert (await compare_answers(solver, SPECREASON, tasks, 2, 60)).paired.n == 0
