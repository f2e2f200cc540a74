"""Runs on real servers that select among calibrated methods, from the policy files of two of them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from stepspec import Solver
from stepspec.evals.testbed.solving_pair import fresh_tasks
from stepspec.orchestrator.endpoints import GREEDY
from stepspec.orchestrator.errors import ConfigurationError
from stepspec.orchestrator.events import Event, Started
from stepspec.orchestrator.feedback.method_selection import FIRST, LONGEST
from stepspec.orchestrator.toml import document

from .conftest import Pair

pytestmark = pytest.mark.servers


async def policy_file(pair: Pair, folder: Path, policy: str, option: str, value: float) -> None:
    """Write what a calibration of *policy* on this pair would."""
    async with Solver(pair.small.base_url, pair.large.base_url, sampling=GREEDY, policy=policy) as solver:
        conditions, models = solver.settings.conditions(), dict(solver.models)
    del conditions["options"][option]
    known = {"policy": policy, "option": option, "value": value, "max_loss": 0.02, "confidence": 0.95}
    tables: dict[str, Any] = {
        "policy": policy,
        "options": {option: value},
        "calibration": known,
        "calibration.models": models,
        "calibration.told": conditions,
    }
    (folder / f"{policy}.toml").write_text(document(tables), encoding="utf-8")


async def test_runs_select_among_two_policy_files(
    paced_pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    await policy_file(paced_pair, tmp_path, "bild", "rollback", 4.0)
    await policy_file(paced_pair, tmp_path, "specreason", "threshold", 7.0)
    monkeypatch.setenv("STEPSPEC_CONFIG", "specreason.toml")
    urls = paced_pair.small.base_url, paced_pair.large.base_url
    tasks = fresh_tasks(2 * FIRST, 5)
    events: list[Event] = []
    async with Solver(*urls, sampling=GREEDY, auto=True, alternatives=["bild.toml"]) as solver:
        begun = await asyncio.gather(*(solver.solve(task.problem, observe=events.append) for task in tasks[:FIRST]))
        later = [await solver.solve(task.problem, observe=events.append) for task in tasks[FIRST:]]
        other = await solver.solve(tasks[0].problem, policy="reflective")
    solutions = [*begun, *later]
    selected = [solution.selected for solution in solutions]
    assert all(selected)
    assert other.selected is None
    policies = [each.policy for each in selected if each]
    assert policies[: FIRST + LONGEST] == ["specreason"] * FIRST + ["bild"] * LONGEST
    assert sorted(event.policy for event in events if isinstance(event, Started)) == sorted(policies)
    probe, after = selected[FIRST], selected[FIRST + LONGEST]
    assert probe is not None
    assert probe.probe
    assert after is not None
    assert dict(after.seconds).keys() == {"specreason", "bild"}
    right = [solution.answer == task.answer for solution, task in zip(solutions, tasks, strict=True)]
    assert sum(right) >= 2 * FIRST - 2

    with pytest.raises(ConfigurationError, match=r"what bild was calibrated for .*sampling\.temperature"):
        async with Solver(*urls, auto=True, alternatives=["bild.toml"]):
            pass
