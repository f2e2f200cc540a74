"""
Sampling with a seed did not repeat: a kept-open stream depends on timing, and without one every run
used seed 0.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from stepspec import Endpoint, Sampling, Solution, Solver
from stepspec.orchestrator import Chain
from stepspec.orchestrator.backends.vllm import VllmEndpoint
from stepspec.orchestrator.chain import Message, Role, Step
from stepspec.orchestrator.concurrency import at_once
from stepspec.orchestrator.endpoints import GREEDY
from stepspec.orchestrator.errors import ConfigurationError
from stepspec.orchestrator.events import Event, Started
from stepspec.orchestrator.prior import Prior
from stepspec.settings import load

from ..stand_in import Break
from .drawing import DrawingVllm

pytestmark = pytest.mark.usefixtures("nowhere")
PROBLEM = "What is 1 + 1?"
CHAIN = Chain.of(PROBLEM)
ROLES: tuple[Role, ...] = ("small", "large")


@asynccontextmanager
async def servers(
    **settings: Any,
) -> AsyncGenerator[tuple[DrawingVllm, DrawingVllm, Endpoint, Endpoint]]:
    small = DrawingVllm()
    large = replace(small, requests=[])
    async with small.serve("small") as one, large.serve("large") as two:
        yield small, large, one, two


def seeds(server: DrawingVllm) -> list[int]:
    return [
        body["seed"]
        for path, body in server.requests
        if path == "/v1/completions" and body.get("stream")
    ]


def kept(solution: Solution) -> tuple[Any, ...]:
    return (
        *[(step.author, step.text) for step in solution.steps if step.fate == "kept"],
        solution.text,
        solution.seed,
    )


@pytest.mark.parametrize("method", ["specreason", "large", "small", "bild", "random"])
async def test_with_a_seed_a_chain_is_the_same_however_far_the_run_works_ahead(method: str) -> None:
    async with servers() as (_, _, small, large), Solver(small, large, seed=7) as solver:
        chains = {
            kept(await solver.solve(PROBLEM, policy=method, ahead=ahead, hedge=hedge))
            for ahead, hedge in ((0, 0.0), (1, 0.0), (3, 0.0), (3, 1.0), (2, 0.0))
        }
        assert len(chains) == 1
        others = {
            kept(await solver.solve(PROBLEM, policy=method, seed=seed))[:-1] for seed in range(5)
        }
        assert len(others) == 5


async def test_without_a_seed_each_run_draws_one_that_brings_the_run_back() -> None:
    events: list[Event] = []
    async with servers() as (_, _, small, large), Solver(small, large, auto=False) as solver:
        first = await solver.solve(PROBLEM, observe=events.append)
        second = await solver.solve(PROBLEM, observe=events.append)
        assert first.seed is not None
        assert kept(first)[:-1] != kept(second)[:-1]
        assert kept(await solver.solve(PROBLEM, seed=first.seed, ahead=0)) == kept(first)
        greedy = await solver.solve(PROBLEM, sampling=GREEDY)
    assert [event.seed for event in events if isinstance(event, Started)] == [
        first.seed,
        second.seed,
    ]
    assert greedy.seed is None


async def test_every_sampled_step_is_a_request_with_a_seed_of_its_own() -> None:
    async with servers() as (drafting, _, small, large), Solver(small, large, seed=7) as solver:
        await solver.solve(PROBLEM, policy="small", ahead=2)
        sampled = len(seeds(drafting))
        assert len(set(seeds(drafting))) == sampled == drafting.length + 1  # and the answer
        drafting.requests.clear()
        drafting.rng = None
        await solver.solve(PROBLEM, policy="small", ahead=2, sampling=GREEDY)
        assert sum(path == "/v1/completions" for path, _ in drafting.requests) < sampled


async def test_a_run_that_decides_who_writes_has_no_seed_and_one_request_for_many_steps() -> None:
    never = Prior(accept_rate=0.0, verdict_seconds=9.0)
    async with (
        servers() as (_, writing, small, large),
        Solver(load(small=small, large=large, seed=7, auto=True, prior=never)) as solver,
    ):
        solutions = [await solver.solve(PROBLEM), await solver.solve(PROBLEM)]
    assert [(solution.seed, solution.share_alone) for solution in solutions] == [(None, 1.0)] * 2
    assert kept(solutions[0]) != kept(solutions[1])
    sent = [
        body for path, body in writing.requests if path == "/v1/completions" and body.get("stream")
    ]
    assert not any("seed" in body for body in sent)
    assert len(sent) < 2 * writing.length


async def test_a_request_that_is_repeated_keeps_its_seed() -> None:
    async with servers() as (drafting, _, small, large), Solver(small, large, seed=7) as solver:
        full = await solver.solve(PROBLEM, policy="small", ahead=0)
        drafting.requests.clear()
        drafting.faults = deque([None, Break(0), Break(0)])
        again = await solver.solve(PROBLEM, policy="small", ahead=0)
        first, *others = seeds(drafting)
    assert kept(again) == kept(full)
    assert others[0] == others[1] == others[2] != first


@pytest.mark.parametrize("seed", [7, None])
async def test_rivals_have_seeds_of_their_own(seed: int | None) -> None:
    server = DrawingVllm()
    async with server.serve("small") as settings, VllmEndpoint(settings) as endpoint:
        model = endpoint.model(Sampling(seed=seed))

        async def written() -> list[Step]:
            words = (" one", " two", " three")
            return await at_once(model.write(CHAIN, opening=word) for word in words)

        steps = await written()
        bodies = [body for path, body in server.requests if path == "/v1/completions"]
        assert [step.text.split()[0].strip(".") for step in steps] == ["one", "two", "three"]
        # without one, each draws by itself
        assert len({body.get("seed") for body in bodies}) == (3 if seed else 1)
        assert seed is None or await written() == steps


def test_seeds_follow_from_the_run_the_role_and_the_place_alone() -> None:
    chains = [
        CHAIN,
        Chain.of("Another?"),
        Chain((Message("system", "Be brief."), *CHAIN.messages)),
        CHAIN.extend(Step("So.\n\n", "small")),
        CHAIN.extend(Step("No.\n\n", "small")),
        CHAIN.extend(Step("So.", "small")).extend(Step("\n\n", "small")),
    ]
    keys: list[tuple[Sampling, Role, Chain, str]] = [
        (Sampling(seed=seed), role, chain, opening)
        for seed in (0, 1)
        for role in ROLES
        for chain in chains
        for opening in ("", "Wait")
    ]
    found = {
        sampling.seed_for(role, "write", chain, opening) for sampling, role, chain, opening in keys
    }
    assert len(found) == len(keys)
    assert Sampling().seed_for("small", "write", CHAIN) is None


def test_a_seed_is_set_wherever_a_run_is(monkeypatch: pytest.MonkeyPatch) -> None:
    assert load().sampling.seed is None
    assert load(seed=7).sampling == Sampling(seed=7)
    monkeypatch.setenv("STEPSPEC_SAMPLING__TEMPERATURE", "1.0")
    assert load(seed=7).sampling == Sampling(temperature=1.0, seed=7)
    with pytest.raises(ConfigurationError, match="seed: a whole number"):
        load(seed="often")  # type: ignore[arg-type]
