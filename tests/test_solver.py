"""A solver over servers that are real but for their models: what it tells the engine, and what it outlives."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from stepspec import Endpoint, Sampling, Solver
from stepspec.orchestrator.endpoints import ReplicatedEndpoint
from stepspec.orchestrator.errors import EndpointUnavailable
from stepspec.orchestrator.events import Called, Event, Moved
from stepspec.orchestrator.load import Load

from .orchestrator.endpoints.server import Break, FakeVllm, Refuse

SCRIPT = ("So", " one", ".\n\n", "Then", " two", ".\n\n", "Done", "</think>", "\n\n\\boxed{2}")
PROBLEM = "What is 1 + 1?"


@dataclass
class Servers:
    """A small model, and a large one on two servers."""

    small: FakeVllm
    large: tuple[FakeVllm, FakeVllm]
    endpoints: tuple[Endpoint, Endpoint]
    urls: tuple[str, str]

    def solver(self, **settings: Any) -> Solver:
        return Solver(*self.endpoints, sampling=Sampling(), **settings)


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty working directory."""
    monkeypatch.chdir(tmp_path)


@asynccontextmanager
async def serving() -> AsyncGenerator[Servers]:
    small = FakeVllm(SCRIPT, digits={"9": -0.1})
    first, second = (replace(small, faults=deque(), requests=[]) for _ in range(2))  # All share their token ids.
    async with small.serve("small") as s, first.serve("large", retries=0) as one, second.serve("large") as two:
        large = one.model_copy(update={"replicas": (two.url,)})
        yield Servers(small, (first, second), (s, large), (one.url, two.url))


async def test_a_replica_that_dies_under_a_run_costs_nothing_but_time() -> None:
    events: list[Event] = []
    async with serving() as servers, servers.solver() as solver:
        plain = await solver.solve(PROBLEM)
        servers.large[0].faults.extend([Break(after=0)] * 99)
        solution = await solver.solve(PROBLEM, observe=events.append)
        assert isinstance(solver.large, ReplicatedEndpoint)
        assert list(solver.large.down) == [servers.urls[0]]
        assert set(solver.large.runs.values()) == {0}
    assert (
        (solution.thinking, solution.answer)
        == (plain.thinking, plain.answer)
        == ("So one.\n\nThen two.\n\nDone</think>", "2")
    )
    assert solution.degraded == ()
    assert [(event.url, event.to) for event in events if isinstance(event, Moved)] == [servers.urls]
    asked = [event for event in events if isinstance(event, Called) and event.role == "large"]
    assert {event.url for event in asked} == set(servers.urls)
    assert [event.fate for event in asked if event.url == servers.urls[1]] == ["done"] * 4


async def test_runs_are_spread_over_the_replicas() -> None:
    async with serving() as servers, servers.solver() as solver:
        await asyncio.gather(solver.solve(PROBLEM), solver.solve(PROBLEM))
        asked = [sum(path == "/v1/completions" for path, _ in each.requests) for each in servers.large]
    assert asked == [4, 4]


async def test_without_any_replica_of_the_small_model_the_large_one_goes_on_alone() -> None:
    async with serving() as servers, servers.solver() as solver:
        servers.small.faults.extend([Refuse(500, "dead")] * 99)
        solution = await solver.solve(PROBLEM)
    assert (solution.degraded, solution.answer) == (("small",), "2")


async def test_when_every_large_replica_is_gone_the_error_names_them() -> None:
    async with serving() as servers, servers.solver() as solver:
        for each in servers.large:
            each.faults.extend([Break(after=0)] * 99)
        with pytest.raises(EndpointUnavailable) as caught:
            await solver.solve(PROBLEM, policy="large")
    assert all(f"{url}: " in str(caught.value) for url in servers.urls)


@pytest.mark.parametrize(
    ("chosen", "authors"),
    [
        ({}, ["small"] * 3),
        ({"lead": 2}, ["large", "large", "small"]),
        ({"plan": True}, ["large", "small", "small"]),
        ({"lead": 1, "policy": "small"}, ["small"] * 3),
    ],
)
@pytest.mark.parametrize("where", ["the solver", "the run"])
async def test_the_large_model_leads_if_wanted_but_never_a_baseline(
    where: str, chosen: dict[str, Any], authors: list[str]
) -> None:
    plan = ("Plan:", " one", ".\n\n", *SCRIPT[3:])
    async with serving() as servers:
        if "plan" in chosen:
            for each in (servers.small, *servers.large):
                each.script = plan
        async with servers.solver(**chosen if where == "the solver" else {}) as solver:
            solution = await solver.solve(PROBLEM, **chosen if where == "the run" else {})
    assert [step.author for step in solution.steps if step.fate == "kept"] == authors


@pytest.mark.parametrize(
    ("settings", "chosen", "depths"),
    [({}, {}, [2, 0]), ({}, {"load": "ignore"}, [2, 2]), ({"load": "ignore"}, {}, [2, 2]), ({}, {"ahead": 8}, [8, 0])],
)
async def test_all_runs_of_a_solver_share_the_load_unless_told_to_ignore_it(
    settings: dict[str, Any], chosen: dict[str, Any], depths: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def depth(load: Load, most: int) -> int:
        asked.append(int(most * load.share))
        return asked[-1]

    monkeypatch.setattr(Load, "depth", depth)
    async with serving() as servers, servers.solver(**settings) as solver:
        begun = solver._ahead(chosen.get("ahead"), None, chosen.get("load"))  # pyright: ignore[reportPrivateUsage]
        assert (begun.depth(), begun.calm()) == (depths[0], True)
        solver.load.share = 0.1
        assert (begun.depth(), begun.calm()) == (depths[1], depths[1] > 0)
        await solver.solve(PROBLEM, **chosen)
    assert bool(asked) == (depths[1] == 0)
