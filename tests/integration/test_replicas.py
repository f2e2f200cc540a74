"""Two real servers of one large model, of which one is killed under a run."""

from __future__ import annotations

import asyncio

import pytest

from stepspec import Endpoint, Solution, Solver
from stepspec.evals.testbed.solving_pair import fresh_tasks
from stepspec.orchestrator.endpoints import GREEDY, ReplicatedEndpoint
from stepspec.orchestrator.events import Called, Committed, Event, Moved
from stepspec.orchestrator.launcher import Served

from .conftest import Pair
from .test_dying import doomed, kill
from .test_solve import until_idle

pytestmark = pytest.mark.servers
TASKS = fresh_tasks(3, 5)


async def solve(pair: Pair, victim: Served, policy: str) -> tuple[list[Solution], list[Solution], list[Event]]:
    """Solve problems on one server, and on two of which one dies after the first committed step of them all."""
    large = Endpoint(role="large", url=victim.base_url, replicas=(pair.large.base_url,))
    events: list[Event] = []

    def watch(event: Event) -> None:
        if isinstance(event, Committed) and not any(isinstance(before, Committed) for before in events):
            kill(victim)
        events.append(event)

    async with Solver(pair.small.base_url, pair.large.base_url, sampling=GREEDY, policy=policy) as solver:
        plain = [await solver.solve(task.problem) for task in TASKS]
    async with Solver(pair.small.base_url, large, sampling=GREEDY, policy=policy) as solver:
        solutions = await asyncio.gather(*(solver.solve(task.problem, observe=watch) for task in TASKS))
        assert isinstance(solver.large, ReplicatedEndpoint)
        assert list(solver.large.down) == [victim.base_url.removesuffix("/v1")]
        later = await solver.solve(TASKS[0].problem)  # It does not try the dead one.
        assert (later.answer, later.ledger.large.failed) == (plain[0].answer, 0)
    return plain, solutions, events


def test_runs_on_a_server_that_dies_go_on_at_the_other_one_and_end_the_same(
    paced_pair: Pair, forked: tuple[str, ...]
) -> None:
    with doomed("large", forked) as victim:
        plain, solutions, events = asyncio.run(solve(paced_pair, victim, "large"))
        assert [solution.thinking for solution in solutions] == [solution.thinking for solution in plain]
        assert [solution.answer for solution in solutions] == [task.answer for task in TASKS]
        moved = [event for event in events if isinstance(event, Moved)]
        assert len(moved) == 2  # Two of the three runs began there.
        dead, alive = (url.removesuffix("/v1") for url in (victim.base_url, paced_pair.large.base_url))
        assert {(move.role, move.url, move.to) for move in moved} == {("large", dead, alive)}
        fates = {(event.url, event.fate) for event in events if isinstance(event, Called)}
        assert {(dead, "failed"), (alive, "done")} <= fates
        assert (alive, "failed") not in fates
        asyncio.run(until_idle(paced_pair.large))


def test_a_judge_that_dies_is_judged_by_its_replica(paced_pair: Pair, forked: tuple[str, ...]) -> None:
    with doomed("large", forked) as victim:
        plain, solutions, events = asyncio.run(solve(paced_pair, victim, "specreason"))
        assert [solution.thinking for solution in solutions] == [solution.thinking for solution in plain]
        assert all(not solution.degraded for solution in solutions)
        assert any(isinstance(event, Moved) for event in events)
