"""Three real models: the tiny one drafts for the small one, and both of them for the large one."""

from __future__ import annotations

import asyncio

import pytest

from lab.bench import NESTED, THREE
from stepspec import Solution, Solver
from stepspec.evals.testbed.servers import endpoint
from stepspec.evals.testbed.solving_pair import fresh_tasks
from stepspec.orchestrator.endpoints import GREEDY
from stepspec.orchestrator.events import Called, Event
from stepspec.servers.launcher import Served

from .conftest import Pair
from .test_solve import until_idle

pytestmark = pytest.mark.servers
TASKS = fresh_tasks(6, seed=66)


@pytest.fixture
def solver(pair: Pair, tiny: Served) -> Solver:
    small = {
        **NESTED[THREE.name],
        "small": endpoint(tiny, "small"),
        "large": endpoint(pair.small, "large"),
    }
    return Solver(small, endpoint(pair.large, "large"), sampling=GREEDY, auto=False)


async def test_three_models_solve_problems_and_the_lookahead_changes_no_word(
    solver: Solver, pair: Pair, tiny: Served
) -> None:
    events: list[Event] = []

    async def solve(problem: str, ahead: int) -> Solution:
        return await solver.solve(problem, ahead=ahead, observe=events.append)

    async with solver:
        plain = [await solve(task.problem, 0) for task in TASKS]
        ahead = [await solve(task.problem, 2) for task in TASKS]
    right = sum(one.answer == str(task.gold) for one, task in zip(ahead, TASKS, strict=True))
    assert right >= len(TASKS) - 1
    assert (
        sum(one.thinking == other.thinking for one, other in zip(plain, ahead, strict=True))
        >= len(TASKS) - 1
    )
    for solution in (*plain, *ahead):
        paths = {account.path: account for account in solution.ledger.nested}
        assert set(paths) == {"small.small", "small.large"}
        for fact in ("kept", "discarded", "judging", "requests"):
            assert sum(getattr(account, fact) for account in paths.values()) == getattr(
                solution.ledger.small, fact
            )
        assert paths["small.large"].judging > 0
        assert solution.degraded == ()
    assert sum(one.ledger.nested[1].kept for one in plain) > sum(
        one.ledger.nested[0].kept for one in plain
    )
    assert all(call.fate != "failed" for call in events if isinstance(call, Called))
    for server in (pair.large, pair.small, tiny):
        await until_idle(server)


async def test_a_run_that_is_cancelled_leaves_no_request_at_any_of_the_three(
    solver: Solver, pair: Pair, tiny: Served
) -> None:
    """
    Cancelled where it begins, while the pair drafts, and after a few steps: a fast machine solves
    it in 0.3 s.
    """
    async with solver:
        for last in (1, 4, 12):
            events = asyncio.Queue[Event]()
            run = asyncio.create_task(solver.solve(TASKS[0].problem, observe=events.put_nowait))
            for _ in range(last):
                await events.get()
            run.cancel()
            with pytest.raises(asyncio.CancelledError):
                await run
    for server in (pair.large, pair.small, tiny):
        await until_idle(server)
