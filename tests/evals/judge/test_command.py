"""The command over two stand-in servers: wrong use, what it prints and writes, its exit codes."""

from __future__ import annotations

import tomllib
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest

from stepspec import Solver
from stepspec.evals.judge import command as module
from stepspec.evals.judge.cases import Case, built_in
from stepspec.evals.judge.figures import DraftFigures, JudgedStep
from stepspec.evals.judge.measuring import FEWEST, JudgedSteps, judge_cases, make_cases, try_drafts
from stepspec.evals.results import Interval
from stepspec.orchestrator.errors import ConfigurationError, MissingCapability, StepspecError

from ...stand_in import StandIn
from ...test_cli import call
from ..scripted import DEAD, Connected

pytestmark = pytest.mark.usefixtures("nowhere")


@asynccontextmanager
async def pair(large: StandIn | None = None, **settings: Any) -> AsyncGenerator[Solver]:
    small, large = StandIn(names=("small",)), large or StandIn(names=("large",))
    async with (
        small.serve("small") as first,
        large.serve("large") as second,
        Solver(first, second, **settings) as solver,
    ):
        yield solver


def nothing(name: str, total: int) -> Any:
    return lambda: None


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "no small model and no large model: pass --small "),
        (
            ["--small", "http://h:1", "--large", "http://h:1/v1"],
            "--small and --large are the same server, http://h:1",
        ),
        ([*DEAD, "--problems", "nowhere.txt"], "no problems in nowhere.txt"),
        ([*DEAD, "--minutes", "inf"], "--minutes inf: a finite number"),
        ([*DEAD, "--output", "."], "no file that can be written"),
        ([*DEAD, "--testbed"], "--testbed starts a pair of its own"),
    ],
)
def test_wrong_use_is_refused_before_anything_is_asked(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("judge", *arguments) == 2
    assert complaint in capsys.readouterr().err


async def test_all_cases_are_read_in_every_way_and_the_first_ones_are_timed() -> None:
    cases = built_in()[:8]
    async with pair() as solver:
        judged = await judge_cases(solver, cases, 5, 0, nothing)
    assert (judged.cases, len(judged.steps), sum(step.right for step in judged.steps)) == (8, 16, 8)
    assert {request: len(times) for request, times in judged.seconds.items()} == dict.fromkeys(
        ("score", "grade", "check", "reflect"), 12
    )
    assert judged.skipped == {}


async def test_a_deadline_leaves_too_few_steps() -> None:
    async with pair() as solver:
        with pytest.raises(
            StepspecError, match=r"only 0 steps were judged in 0 minutes.*more --minutes"
        ):
            await judge_cases(solver, built_in(), 0, 0, nothing)


async def test_one_server_for_both_is_refused() -> None:
    async with (
        StandIn().serve("small") as small,
        StandIn().serve("large") as large,
        Solver(small, large) as solver,
    ):
        with pytest.raises(ConfigurationError, match="both servers serve 'stand-in': no model"):
            await judge_cases(solver, built_in(), 5, 0, nothing)


async def test_a_server_that_cannot_score_is_refused_with_the_cure() -> None:
    class NoScores(StandIn):
        def answer(self, body: dict[str, Any]) -> dict[str, Any]:
            reply = super().answer(body)
            for choice in reply["choices"]:
                choice.pop("prompt_logprobs", None)
            return reply

    async with pair(NoScores(names=("large",))) as solver:
        with pytest.raises(MissingCapability, match=r"does not score text.*stepspec doctor"):
            await judge_cases(solver, built_in(), 5, 0, nothing)


async def test_steps_of_own_chains_need_something_to_slip_on() -> None:
    async with pair() as solver:  # a stand-in writes words alone
        with pytest.raises(
            ConfigurationError, match=rf"only 0 steps to judge, and {FEWEST} are needed"
        ):
            await make_cases(solver, ["What is 1 + 1?"], 0, nothing)


async def test_drafts_of_the_small_model_are_judged_by_the_method_that_fits() -> None:
    async with pair() as solver:  # both stand-ins write the same
        drafts = await try_drafts(solver, built_in(), "reading", {"threshold": 1}, 5, nothing)
        assert (drafts.drafts, drafts.accepted.value) == (40, 1.0)
        rejected = await try_drafts(solver, built_in()[:8], "random", {"p": 0}, 5, nothing)
        assert (rejected.drafts, rejected.accepted.value) == (8, 0.0)
        # no time is left
        assert (await try_drafts(solver, built_in(), "random", {"p": 1}, 0, nothing)).drafts == 1


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """
    Have the command print figures of steps made by hand; what the dictionary holds is the largest
    gap of slips.
    """
    slip = {"gap": 9.0}

    async def judge(solver: Solver, cases: Sequence[Case], *more: Any) -> JudgedSteps:
        def step(at: int, right: bool) -> JudgedStep:
            gap = 1.0 if right else slip["gap"]
            return JudgedStep(at, right, {"largest gap, digits": -gap, "grade, mean": 5.0 + at % 3})

        steps = [step(at, right) for at in range(20) for right in (True, False)]
        return JudgedSteps(
            20, steps, {"score": [0.02], "grade": [0.01]}, {"reflect": "no top tokens"}
        )

    async def drafts(*more: Any) -> DraftFigures:
        return DraftFigures(40, Interval(0.75, 0.6, 0.86), 0.02, 0.9)

    for name, value in {"judge_cases": judge, "try_drafts": drafts, "Solver": Connected}.items():
        monkeypatch.setattr(module, name, value)
    return slip


def test_a_method_that_fits_is_named_last_and_its_settings_are_written(
    measured: dict[str, float], capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("judge", *DEAD, "--output", "fit.toml") == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[1].split("  ")[0] == "largest gap, digits"
    assert "- reflect was left out: no top tokens" in printed
    assert (
        printed[-1]
        == "The method reading with threshold = 1.0, tokens = digits, words = 1.0 fits this pair:"
        " it accepts 100% of the right steps and lets 0% of the slips through, and it accepts"
        " 75% [60%, 86%] of 40 drafts of the small model, which writes a token in 90% of the"
        " large model's time: no draft can save time, choose a smaller model. Only slips were"
        " tried: `stepspec eval` measures whether answers stay right."
    )
    written = tomllib.loads(Path("fit.toml").read_text())
    assert written["options"] == {"threshold": 1.0, "tokens": "digits", "words": 1.0}
    assert written["prior"] == {"accept_rate": 0.75, "verdict_seconds": 0.02, "pace": 0.9}
    assert (written["policy"], written["small"]["url"]) == ("reading", DEAD[1])


def test_where_none_fits_the_exit_code_is_1_and_the_large_model_alone_is_written(
    measured: dict[str, float], capsys: pytest.CaptureFixture[str]
) -> None:
    measured["gap"] = 1.0
    assert call("judge", *DEAD, "--output", "fit.toml", "--json") == 1
    printed = orjson.loads(capsys.readouterr().out)
    assert printed["conclusion"].startswith("No method fits this pair: the best reading, ")
    assert (printed["fits"], printed["policy"], printed["steps"]) == (False, None, 20)
    assert [one["name"] for one in printed["readings"]] == ["grade, mean", "largest gap, digits"]
    assert tomllib.loads(Path("fit.toml").read_text())["policy"] == "large"
