"""The main job, on real servers."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from stepspec import Budget, Endpoint, Solver
from stepspec.evals.testbed.solving_pair import fresh_tasks
from stepspec.orchestrator import trace
from stepspec.orchestrator.chain import THINK_END
from stepspec.orchestrator.endpoints import GREEDY
from stepspec.orchestrator.errors import EndpointRejected, EndpointUnavailable
from stepspec.orchestrator.events import Committed, Judged
from stepspec.orchestrator.interfaces import answered_by
from stepspec.policies import BASELINES, METHODS
from stepspec.servers.launcher import Served
from tests.fakes import replay

from .conftest import Pair, running_requests

pytestmark = pytest.mark.servers


def solver(pair: Pair, **settings: Any) -> Solver:
    """A greedy solver over the pair."""
    return Solver(pair.small.base_url, pair.large.base_url, sampling=GREEDY, auto=False, **settings)


async def until_idle(server: Served) -> None:
    """Wait until the server's own gauges say that it works on nothing."""
    for _ in range(100):
        if not await running_requests(server):
            return
        await asyncio.sleep(0.05)
    raise AssertionError(f"{server.name} still works on a request that nobody waits for")


async def test_specreason_solves_and_both_models_have_their_share(pair: Pair) -> None:
    tasks = fresh_tasks(8, 1)
    async with solver(pair) as solving:
        solutions = await asyncio.gather(*(solving.solve(task.problem) for task in tasks))
    right = [
        solution.answer == str(task.gold) for solution, task in zip(solutions, tasks, strict=True)
    ]
    assert sum(right) >= 6
    assert all(solution.finish_reason == "stop" for solution in solutions)
    kept = [step for solution in solutions for step in solution.steps if step.fate == "kept"]
    assert {step.author for step in kept} == {"small", "large"}
    assert any(
        step.fate == "rejected" and step.grade is not None for s in solutions for step in s.steps
    )
    for solution in solutions:
        full = "".join(s.text for s in solution.steps if s.fate == "kept")
        assert full.startswith(solution.thinking)
        assert full.removeprefix(solution.thinking).strip() == solution.text
        assert solution.ledger.large.judging > 0


async def test_a_trace_replays_to_the_same_chain(pair: Pair, tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    async with solver(pair) as solving:
        solution = await solving.solve(fresh_tasks(1, 3)[0].problem, trace_to=path)
    moments = trace.read(path)
    chain = replay(moment.event for moment in moments)
    thinking, answer = chain.parts()
    assert (thinking.text, answer.text.strip()) == (solution.thinking, solution.text)
    assert [moment.at for moment in moments] == sorted(moment.at for moment in moments)


async def test_steps_are_streamed_during_the_run(pair: Pair) -> None:
    async with solver(pair) as solving, solving.stream(fresh_tasks(1, 4)[0].problem) as events:
        kinds = [type(event) async for event in events]
        assert kinds.index(Committed) < len(kinds) - 1 - kinds[::-1].index(Judged)
        assert events.solution.finish_reason == "stop"


async def test_cancelling_a_run_leaves_no_request_on_either_server(pair: Pair) -> None:
    async with solver(pair) as solving:
        running = asyncio.create_task(solving.solve(fresh_tasks(1, 5)[0].problem))
        await asyncio.sleep(0.1)
        running.cancel()
        await asyncio.wait([running])
        assert running.cancelled()
        for server in (pair.small, pair.large):
            await until_idle(server)


@pytest.mark.parametrize(
    "budget", [Budget(tokens=60, answer=20), Budget(steps=2), Budget(tokens=41, answer=1)]
)
async def test_budgets_hold_exactly_and_leave_room_for_an_answer(
    pair: Pair, budget: Budget
) -> None:
    async with solver(pair) as solving:
        solution = await solving.solve(fresh_tasks(1, 6)[0].problem, budget=budget)
    kept = [step for step in solution.steps if step.fate == "kept"]
    written = solution.ledger.small.kept + solution.ledger.large.kept
    assert solution.finish_reason == "length"
    assert written <= budget.tokens
    ends = next(place for place, step in enumerate(kept) if step.text.endswith(THINK_END))
    assert (kept[ends].author, kept[ends].reason) == ("large", "closed")
    assert budget.steps is None or ends == budget.steps
    assert solution.text


@pytest.mark.parametrize(
    "policy", [name for name, method in METHODS.items() if not method.takes("critic")]
)
async def test_a_small_model_of_another_vocabulary_drafts_for_every_method(
    pair: Pair, small_other: Pair, policy: str
) -> None:
    tasks = fresh_tasks(4, 7)[2:]  # one that it solves by itself, and one that it does not
    options = (
        {"cues": ["On Monday", "Alternatively,", "Let me check:"]} if policy == "relay" else {}
    )
    async with Solver(
        small_other.small.base_url, pair.large.base_url, sampling=GREEDY, auto=False
    ) as solving:
        assert solving.small.vocabulary != solving.large.vocabulary
        solutions = await asyncio.gather(
            *(solving.solve(task.problem, policy=policy, options=options) for task in tasks)
        )
    right = [
        solution.answer == str(task.gold) for solution, task in zip(solutions, tasks, strict=True)
    ]
    # these two have nobody read what it wrote
    assert right == [True, policy not in ("small", "glimpse")]
    for solution in solutions:
        kept = [step for step in solution.steps if step.fate == "kept"]
        assert solution.finish_reason == "stop"
        full = "".join(step.text for step in kept)
        goes_on = policy not in BASELINES and answered_by(METHODS[policy].build) == "method"
        assert full.startswith(solution.thinking)
        assert full.removeprefix(solution.thinking).strip() == (solution.text if goes_on else "")
        assert policy == "large" or any(step.author == "small" for step in kept)


async def test_bad_endpoints_are_named(pair: Pair) -> None:
    dead = "http://127.0.0.1:9/v1"
    with pytest.raises(EndpointUnavailable, match=r"large model at http://127\.0\.0\.1:9"):
        async with Solver(pair.small.base_url, dead):
            pass
    wrong = Endpoint(role="small", url=pair.small.base_url, model="nobody")
    with pytest.raises(EndpointRejected, match="nobody"):
        async with Solver(wrong, pair.large.base_url):
            pass
