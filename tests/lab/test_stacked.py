"""
Token-level speculation underneath: every arm over every method, each pair started once, nothing
measured twice.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from lab import bench as module
from lab.bench import arms, measure_stacked
from stepspec import Solution
from stepspec.evals.arms import LARGE, SHIPPED
from stepspec.evals.store import SampleStore
from stepspec.evals.testbed.servers import SPECULATIONS, Speculation

from ..evals.scripted import ScriptedSolver, SolveCall, solution

CONSOLE = Console(quiet=True)


@dataclass
class Pairs:
    """
    Scripted pairs in the place of real ones; *started* tells over what, and with which arms to warm
    up.
    """

    started: list[tuple[Speculation, tuple[str, ...]]] = field(
        default_factory=list[tuple[Speculation, tuple[str, ...]]]
    )
    solved: int = 0

    @asynccontextmanager
    async def solvers(
        self,
        profile: str,
        console: Console,
        warm_up: Any,
        seed: int,
        speculation: Any,
    ) -> AsyncGenerator[Any]:
        self.started.append((speculation, tuple(arm.name for arm in warm_up)))
        yield ScriptedSolver(self.solve)

    def solve(self, call: SolveCall) -> Solution:
        self.solved += 1
        return solution("1", seconds=2.0 if call.policy == "large" else 1.0)


@pytest.fixture
def pairs(monkeypatch: pytest.MonkeyPatch) -> Pairs:
    pairs = Pairs()
    monkeypatch.setattr(module, "solvers", pairs.solvers)
    return pairs


async def test_every_arm_is_measured_over_every_method_on_the_same_problems(
    pairs: Pairs, tmp_path: Path
) -> None:
    results = await measure_stacked(3, "paced", 1, SampleStore(tmp_path / "s.jsonl", {}), CONSOLE)
    assert [result.name for result in results] == [
        *(LARGE.name, SHIPPED.name, f"{LARGE.name} + ngram", f"{SHIPPED.name} + ngram"),
        *(f"{LARGE.name} + draft_model", f"{SHIPPED.name} + draft_model"),
    ]
    assert {result.n for result in results} == {3}
    assert [sorted(speculation) for speculation, _ in pairs.started] == [
        [],
        ["large", "small"],
        ["large"],
    ]
    assert results[3].ratio.value == 0.5  # to the plain large model, over which nothing is stacked


async def test_a_measured_method_is_skipped_and_its_pair_is_not_started(
    pairs: Pairs, tmp_path: Path
) -> None:
    path = tmp_path / "s.jsonl"
    first = await measure_stacked(2, "paced", 1, SampleStore(path, {}), CONSOLE)
    assert await measure_stacked(2, "paced", 1, SampleStore(path, {}), CONSOLE) == first
    assert (len(pairs.started), pairs.solved) == (3, 12)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-1]))
    assert await measure_stacked(2, "paced", 1, SampleStore(path, {}), CONSOLE) == first
    assert pairs.started[3:] == [pairs.started[2]]
    assert pairs.solved == 13


def test_every_method_has_settings_of_the_servers() -> None:
    assert SPECULATIONS["none"] == {}
    assert SPECULATIONS["draft_model"]["large"]["num_speculative_tokens"] == 4
    assert [arm.name for arm in arms("none")] == [LARGE.name, SHIPPED.name]
