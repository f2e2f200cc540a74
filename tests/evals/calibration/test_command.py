"""
The calibrated configuration is the served one: the arm, its seeds, and the file with the scope of
the guarantee.
"""

from __future__ import annotations

import asyncio
import os
import tomllib
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

pytest.importorskip("scipy")

from stepspec import Sampling, Solver, settings
from stepspec.cli.eval import arm
from stepspec.evals.arms import LARGE
from stepspec.evals.calibration.policy_file import find_threshold, served_arm, solve_on_servers
from stepspec.evals.grading.graders import Answer, Graders
from stepspec.evals.sample import Arm, Task
from stepspec.orchestrator.errors import ConfigurationError
from stepspec.orchestrator.events import Observer
from stepspec.orchestrator.run_options import RunOptions
from stepspec.orchestrator.trace import Stopwatch
from stepspec.settings import Settings

from ...stand_in import FakeVllm
from ...test_cli import call
from ..scripted import solution

pytestmark = pytest.mark.usefixtures("nowhere")
KNOB = find_threshold("specreason")
NON_DEFAULT = Settings.model_validate(
    {
        "options": {"threshold": 3, "read": "greedy"}, "ahead": 1, "hedge": 0.5, "lead": 2,
        "sampling": {"temperature": 0.8, "seed": 5},
    }
)  # fmt: skip


class Noting:
    """A solver that records the arguments of each call."""

    def __init__(self) -> None:
        self.settings = NON_DEFAULT
        self.calls: list[dict[str, Any]] = []

    async def solve(
        self, problem: str, run: RunOptions, *, observe: Observer, clock: Stopwatch
    ) -> Any:
        self.calls.append({"problem": problem, **dict(run)})
        return solution("7")


async def recorded_calls(base: int, *places: tuple[int, float | None]) -> list[dict[str, Any]]:
    """The calls of the solver for these *places*: a problem and a value."""
    noting, tasks = Noting(), [Task(f"What is {n} + 7?", Answer("7", "exact")) for n in range(9)]
    solver = cast("Solver", noting)
    solve = solve_on_servers(solver, tasks, KNOB, Graders(), base)
    for problem, value in places:
        assert (await solve(problem, value)).right
    return noting.calls


def test_the_calibrated_arm_has_the_settings_except_for_the_threshold() -> None:
    assert served_arm(NON_DEFAULT, KNOB, 8) == Arm.of(
        "specreason", "specreason", {"threshold": 8, "read": "greedy"}, ahead=1, hedge=0.5, lead=2,
    )  # fmt: skip


async def test_the_method_gets_the_settings_and_the_large_model_runs_alone() -> None:
    large, method = await recorded_calls(0, (3, None), (3, 8.5))
    expected = {name: getattr(NON_DEFAULT, name) for name in ("ahead", "hedge", "lead")}
    assert {name: method[name] for name in expected} == expected
    assert method["options"] == {"threshold": 8.5, "read": "greedy"}
    assert {name: large[name] for name in expected} == {
        name: getattr(LARGE.run, name) for name in expected
    }
    assert large["policy"] == "large"


async def test_the_seed_is_that_of_the_sampling() -> None:
    places = ((0, None), (0, 9.0), (0, 8.0), (1, 9.0), (2, 9.0))
    first, again, other = [
        [each["sampling"] for each in await recorded_calls(base, *places)] for base in (4, 4, 5)
    ]
    assert first == again
    assert len({one.seed for one in first[:3]}) == 1
    assert len({one.seed for one in (*first, *other)}) == 6
    expected = Sampling(temperature=0.8, top_p=0.95)
    assert all(one == expected.model_copy(update={"seed": one.seed}) for one in first)


FILE = """
lead = 1
ahead = 1

[options]
read = "greedy"
threshold = 3

[sampling]
temperature = 0.7

[budget]
tokens = 200
"""
SCRIPT = ("So", " one", ".\n\n", "Then", " two", ".\n\n", "Done", "</think>", "\n\n\\boxed{2}")


@asynccontextmanager
async def urls() -> AsyncGenerator[tuple[tuple[str, ...], FakeVllm]]:
    small = FakeVllm(SCRIPT, digits={"9": -0.1})
    large = replace(small, requests=[])
    async with small.serve("small") as s, large.serve("large") as one:
        yield ("--small", s.url, "--large", one.url), large


async def calibrate(capfd: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    """
    Run the command beside the servers of this loop; return its exit code and its standard error, as
    one line.
    """
    code = await asyncio.to_thread(call, "calibrate", *words)
    return code, " ".join(capfd.readouterr().err.split())


async def test_the_file_serves_the_calibrated_method_and_states_the_scope_of_its_guarantee(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "stepspec.toml").write_text(FILE)
    words = ("arithmetic", "--limit", "3", "--max-loss", "0.9", "--values", "9,0.5")
    async with urls() as (servers, _):
        code, output = await calibrate(capfd, *words, *servers)
        assert code == 0, output
        path = tmp_path / "policy.toml"
        monkeypatch.setenv("STEPSPEC_CONFIG", str(path))
        async with Solver(servers[1], servers[3]) as solver:
            promise = solver.settings.calibration
            assert promise is not None
            assert promise.differences(solver.conditions(solver.settings)) == ()
            assert solver.models == promise.models == {"small": "fake", "large": "fake"}
    loaded = settings.load()
    assert loaded.options == {"read": "greedy", "threshold": 0.5}
    assert (loaded.lead, loaded.ahead) == (1, 1)
    assert (loaded.sampling, loaded.budget.tokens) == (Sampling(temperature=0.7, top_p=0.95), 200)
    assert loaded.calibration is not None
    conditions = loaded.conditions()
    assert conditions["options"].pop("threshold") == 0.5
    assert loaded.calibration.conditions == conditions
    calibration, models = loaded.calibration, loaded.calibration.models
    unled = loaded.with_overrides({"lead": 0}).conditions()
    run = {"policy": "specreason", "models": models}
    assert calibration.differences({**run, **unled}) == ("lead",)
    other = {**run, "models": {"small": "fake", "large": "other"}, **loaded.conditions()}
    assert calibration.differences(other) == ("models.large",)
    assert arm(str(path)) == replace(served_arm(loaded, KNOB, 0.5), name="policy")
    assert tomllib.loads(path.read_text())["sampling"] == {"temperature": 0.7}


async def test_trials_with_other_settings_are_refused(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ("arithmetic", "--limit", "3", "--max-loss", "0.9", "--values", "9")
    async with urls() as (servers, large):
        assert (await calibrate(capfd, *words, *servers))[0] == 0
        before = len(large.requests)
        (tmp_path / "stepspec.toml").write_text("lead = 1\n")
        code, output = await calibrate(capfd, *words, *servers)
        assert (code, "holds another run (other: besides, conditions)" in output) == (
            2,
            True,
        ), output
        for changed in ("--seed", "1"), ("--values", "8"):
            code, output = await calibrate(capfd, *words, *servers, *changed)
            assert (code, f"other: {changed[0].removeprefix('--')}" in output) == (2, True), output
        assert not [path for path, _ in large.requests[before:] if path == "/v1/completions"]


async def test_too_few_problems_are_refused_before_the_first_run(
    capfd: pytest.CaptureFixture[str],
) -> None:
    words = ("arithmetic", "--max-loss", "0.9", "--values", "9,0.5", "--limit", "1")
    async with urls() as (servers, large):
        code, output = await calibrate(capfd, *words, *servers)
        assert code == 2
        assert "too few problems, 1: this promise takes 2 even if none is lost" in output
        assert not [path for path, _ in large.requests if path == "/v1/completions"]
        assert "policy.trials.jsonl" not in os.listdir()  # it would refuse other settings


async def test_one_file_of_trials_makes_one_promise(capfd: pytest.CaptureFixture[str]) -> None:
    words = ("arithmetic", "--values", "9,0.5")
    first = ("--max-loss", "0.9", "--limit", "3")
    async with urls() as (servers, large):
        code, output = await calibrate(capfd, *words, *first, *servers)
        assert code == 0, output
        before = len(large.requests)
        assert (await calibrate(capfd, *words, *first, *servers))[0] == 0
        for other, changed in (
            (("--max-loss", "0.9", "--limit", "8"), "problems"),
            (("--max-loss", "0.8", "--limit", "3"), "max_loss"),
            ((*first, "--confidence", "0.8"), "confidence"),
        ):
            code, output = await calibrate(capfd, *words, *other, *servers)
            assert code == 2
            assert f"other: {changed}): one calibration makes one promise" in output
        assert not [path for path, _ in large.requests[before:] if path == "/v1/completions"]
        code, output = await calibrate(capfd, *words, *first, "--fresh", *servers)
        assert code == 0, output
    assert [path for path, _ in large.requests[before:] if path == "/v1/completions"]


def test_values_are_refused_unless_the_strictest_comes_first() -> None:
    assert find_threshold("specreason", None, [9, 5, 1]).values == (9, 5, 1)
    assert find_threshold("bild", None, [1, 2, 4]).values == (1, 2, 4)
    for policy, values, right in (("specreason", [1, 5, 9], "9,5,1"), ("bild", [4, 1], "1,4")):
        with pytest.raises(ConfigurationError, match=f"the strictest comes first, as in {right}"):
            find_threshold(policy, None, values)
    assert find_threshold("specreason", "other", [1, 5]).values == (1, 5)
    with pytest.raises(ConfigurationError, match="the strictest comes first"):
        find_threshold("specreason", "other", [1, 9, 5])
