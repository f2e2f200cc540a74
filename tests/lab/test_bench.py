"""
The command of the bench: the file of its figures, the notes in that file, and refused options.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
import pytest
from rich.console import Console

from lab import bench
from stepspec import Solution, Solver
from stepspec.evals.sample import Arm
from stepspec.evals.testbed import Profile
from stepspec.orchestrator.errors import ConfigurationError
from stepspec.settings import Settings

from ..evals.scripted import ScriptedSolver, SolveCall, solution
from ..evals.test_runner import SETTINGS

FIGURES = Path("build/bench.json")
STACKED = Path("build/bench-stacked.json")


@dataclass
class Pair(ScriptedSolver):
    """A solver that has settings."""

    settings: Settings = SETTINGS


def script(call: SolveCall) -> Solution:
    sequential = call.policy == "specreason" and call.ahead == 0
    if call.policy == "large":
        return solution("1", seconds=4.0)
    return solution("1", seconds=2.0 if sequential else 1.0)


@dataclass
class Servers:
    """
    Replaces the servers; *warmed* has the arms of each start, *solver* solves for all.
    """

    warmed: list[list[str]] = field(default_factory=list[list[str]])
    solver: Pair = field(default_factory=lambda: Pair(script))

    @asynccontextmanager
    async def solvers(
        self,
        profile: str,
        console: Console,
        warm_up: tuple[Arm, ...],
        *more: Any,
    ) -> AsyncGenerator[Solver]:
        self.warmed.append([arm.name for arm in warm_up])
        yield self.solver.solver


@pytest.fixture
def servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Servers:
    servers = Servers()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(bench, "solvers", servers.solvers)
    return servers


def measured(*arm: str, problems: int = 2, profile: Profile = "paced", **changed: Any) -> None:
    usual: dict[str, Any] = {
        "baselines": not arm,
        "stacked": False,
        "sampling": "greedy",
        "fresh_start": False,
        "output": None,
    }
    options: dict[str, Any] = {**usual, **changed}
    bench.main(problems, profile, list(arm) or None, **options)


def notes(path: Path) -> set[str]:
    return {arm["note"] for arm in orjson.loads(path.read_bytes())}


def samples(path: Path) -> Path:
    return path.with_suffix(".samples.jsonl")


def test_a_pair_is_measured_once(servers: Servers) -> None:
    measured()
    assert len(servers.solver.calls) == 12
    measured("choose")
    measured("choose", "choose")
    assert len(servers.solver.calls) == 12 + 2
    assert [arm["name"] for arm in orjson.loads(FIGURES.read_bytes())][-1] == "choose"
    assert {arm["n"] for arm in orjson.loads(FIGURES.read_bytes())} == {2}


def test_stacked_arms_have_files_of_their_own_and_nothing_else_is_lost(servers: Servers) -> None:
    measured("choose", "cascade")
    before = FIGURES.read_bytes(), samples(FIGURES).read_bytes()
    measured(stacked=True, baselines=False)
    assert (FIGURES.read_bytes(), samples(FIGURES).read_bytes()) == before
    assert samples(STACKED).is_file()


@pytest.mark.parametrize(
    ("others", "message"),
    [
        (
            {"profile": "slow"},
            r"bench\.samples\.jsonl holds another run \(other: profile\): .*--output, .*--fresh",
        ),
        (
            {"stacked": True, "baselines": False, "output": FIGURES},
            r"holds another run \(other: stacked\)",
        ),
    ],
)
def test_samples_of_something_else_are_kept_and_no_server_is_started(
    servers: Servers, others: dict[str, Any], message: str
) -> None:
    measured()
    before = samples(FIGURES).read_bytes()
    with pytest.raises(ConfigurationError, match=message):
        measured(**others)
    assert samples(FIGURES).read_bytes() == before
    assert len(servers.warmed) == 1


def test_samples_of_other_problems_are_refused_and_discarded_with_fresh(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured()
    monkeypatch.setattr(bench, "SEED", 7)
    with pytest.raises(ConfigurationError, match=r"other: seed"):
        measured()
    measured(fresh_start=True)
    assert len(servers.solver.calls) == 24
    assert orjson.loads(samples(FIGURES).read_bytes().partition(b"\n")[0])["seed"] == 7


@pytest.mark.parametrize("also", [{"baselines": True}, {"arm": "choose"}])
def test_stacked_arms_are_no_others(servers: Servers, also: dict[str, Any]) -> None:
    arm = [also.pop("arm")] if "arm" in also else []
    with pytest.raises(ConfigurationError, match="--stacked has arms of its own"):
        measured(*arm, stacked=True, **also)
