"""Measuring two stand-in servers over real HTTP, whose pace is set."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from stepspec import Solver
from stepspec.evals.arms import LARGE, SHIPPED
from stepspec.evals.estimate import measuring
from stepspec.evals.estimate.measuring import Clock, measure
from stepspec.evals.estimate.prediction import count_drafts
from stepspec.evals.sample import Arm
from stepspec.orchestrator.endpoints import GREEDY
from stepspec.orchestrator.errors import ConfigurationError, MissingCapability, StepspecError

from ...stand_in import Latency, StandIn

PROBLEMS = [f"What is {number} + {number}?" for number in range(3)]
BILD = Arm.of("bild", "bild", {"scale": "step"})


@pytest.fixture(autouse=True)
def few_repeats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "REPEATS", 2)
    monkeypatch.setattr(measuring, "TOKENS", 12)


def server(name: str, token: float, **changes: Any) -> StandIn:
    latency = Latency(first=token, token=token, prompt_token=token / 50)
    return StandIn(names=(name,), steps=4, step_tokens=8, latency=latency, **changes)


@asynccontextmanager
async def pair(small: StandIn, large: StandIn) -> AsyncGenerator[Solver]:
    async with (
        small.serve("small") as one,
        large.serve("large") as other,
        Solver(one, other, sampling=GREEDY) as solver,
    ):
        yield solver


async def test_a_pair_is_measured_within_the_deadline() -> None:
    parts: dict[str, list[int]] = {}

    def on_part(name: str, total: int) -> Any:
        parts[name] = [total, 0]

        def unit() -> None:
            parts[name][1] += 1

        return unit

    small, large = server("tiny", 0.001), server("big", 0.008, accept=0.6)
    async with pair(small, large) as solver:
        measured = await measure(solver, [SHIPPED, BILD], PROBLEMS, [1, 3], 1.0, on_part=on_part)
    assert [arm.name for arm in measured.arms] == [LARGE.name, SHIPPED.name, BILD.name]
    assert {len(runs) for runs in measured.runs.values()} == {len(PROBLEMS)}
    assert [run.alone for run in measured.runs[SHIPPED.name]] == [True, True, False]
    assert not any(run.cut for runs in measured.runs.values() for run in runs)
    # The paces are eight to one; this machine may be slow, but equally for both.
    assert measured.large.token > 1.5 * measured.small.token
    assert (measured.small.model, measured.large.model) == ("tiny", "big")
    assert measured.small.sequences is None
    assert set(measured.large.between) == {1, 3}
    # The stand-in's prompts are read at 50 tokens in the time of one; what is cached is not read.
    assert sum(measured.large.uncached) > 2 * sum(measured.large.cached)
    assert measured.large.prefix_cache
    assert max(measured.verdict.read) < measured.verdict.chain // 2
    assert measured.verdict.understood > 0.9
    accepted, drafts = count_drafts([run.script for run in measured.runs[SHIPPED.name]])
    assert 0 < accepted < drafts
    assert sum(turn.draft for turn in measured.runs[LARGE.name][0].script.turns) >= 4 * 8
    assert parts["servers"] == [5, 5]
    assert parts["runs"] == [9, 9]
    assert parts["loads"] == [2, 2]


async def test_runs_that_do_not_end_before_the_deadline_are_not_used() -> None:
    async with pair(server("tiny", 0.001), server("big", 0.001)) as solver:
        recording = measuring.Recording(solver, (LARGE,), PROBLEMS, 200, 0, lambda: None)
        await recording.alone(Clock(0.0))
        await recording.together(Clock(0.0))
        assert recording.complete() == {LARGE.name: ()}


async def test_too_little_time_is_an_error_that_says_what_to_change(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "SHARES", {"servers": 0.0, "alone": 0.0, "together": 0.0, "loads": 0.0})
    async with pair(server("tiny", 0.001), server("big", 0.001)) as solver:
        with pytest.raises(StepspecError, match=r"no problem was solved by all of large alone, SpecReason.* --minutes"):
            await measure(solver, [SHIPPED], PROBLEMS, [], 1.0)


async def test_one_model_twice_is_refused() -> None:
    async with pair(server("same", 0.0), server("same", 0.0)) as solver:
        with pytest.raises(ConfigurationError, match=r"both servers serve 'same'.*--small"):
            await measure(solver, [SHIPPED], PROBLEMS, [], 1.0)


async def test_a_judge_that_answers_nothing_leaves_methods_without_grades() -> None:
    def silent() -> StandIn:
        return server("big", 0.001, digits={"9": -8.0, "1": -9.0})

    async with pair(server("tiny", 0.001), silent()) as solver:
        measured = await measure(solver, [SHIPPED, BILD], PROBLEMS[:1], [], 0.5)
        assert [arm.name for arm in measured.arms] == [LARGE.name, BILD.name]
        assert "does not understand the question" in measured.skipped[SHIPPED.name]
        with pytest.raises(MissingCapability, match="no method can be measured: SpecReason: asked for a grade"):
            await measure(solver, [SHIPPED], PROBLEMS[:1], [], 0.5)


async def test_methods_that_score_are_left_out_where_the_server_cannot() -> None:
    large = server("big", 0.001, lacks=frozenset({"prompt_logprobs"}))
    async with pair(server("tiny", 0.001), large) as solver:
        measured = await measure(solver, [SHIPPED, BILD], PROBLEMS[:1], [], 0.5)
    assert "does not score text" in measured.skipped[BILD.name]
    assert measured.runs.keys() == {LARGE.name, SHIPPED.name}


async def test_a_server_without_a_prefix_cache_is_recognised() -> None:
    async with pair(server("tiny", 0.001), server("big", 0.004, block=0)) as solver:
        measured = await measure(solver, [SHIPPED], PROBLEMS[:1], [], 0.5)
    assert measured.large.prefix_cache is False
    assert measured.small.prefix_cache
    assert measured.runs[SHIPPED.name][0].script.uncached
