"""Two real servers of one large model, of which one is killed under a run."""

from __future__ import annotations

import asyncio

import pytest

from stepspec import Budget, Endpoint, Solution, Solver
from stepspec.evals.testbed.solving_pair import fresh_tasks
from stepspec.orchestrator.endpoints import GREEDY, ReplicatedEndpoint
from stepspec.orchestrator.endpoints.client import separate_cache
from stepspec.orchestrator.endpoints.replicas import in_order
from stepspec.orchestrator.events import Called, Committed, Event, Moved
from stepspec.orchestrator.launcher import Served

from .conftest import Pair
from .test_dying import doomed, kill
from .test_solve import until_idle

pytestmark = pytest.mark.servers
TASKS = fresh_tasks(3, 5)
RULES = "Work out one quantity at a time. " * 20  # longer than a block of the prefix cache


async def solve(pair: Pair, victim: Served, policy: str) -> tuple[list[Solution], list[Solution], list[Event]]:
    """Solve problems on one server, and on two of which one dies after the first committed step of them all."""
    large = Endpoint(role="large", url=victim.base_url, replicas=(pair.large.base_url,))
    events: list[Event] = []

    def watch(event: Event) -> None:
        if isinstance(event, Committed) and not any(isinstance(before, Committed) for before in events):
            kill(victim)
        events.append(event)

    async with Solver(pair.small.base_url, pair.large.base_url, sampling=GREEDY, auto=False, policy=policy) as solver:
        plain = [await solver.solve(task.problem) for task in TASKS]
    async with Solver(pair.small.base_url, large, sampling=GREEDY, auto=False, policy=policy) as solver:
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
        assert [solution.answer for solution in solutions] == [str(task.gold) for task in TASKS]
        moved = [event for event in events if isinstance(event, Moved)]
        assert len(moved) == 2  # Two of the three runs began there.
        dead, alive = (url.removesuffix("/v1") for url in (victim.base_url, paced_pair.large.base_url))
        assert {(move.role, move.url, move.to) for move in moved} == {("large", dead, alive)}
        fates = {(event.url, event.fate) for event in events if isinstance(event, Called)}
        assert {(dead, "failed"), (alive, "done")} <= fates
        assert (alive, "failed") not in fates
        asyncio.run(until_idle(paced_pair.large))


async def converse(pair: Pair, other: Served) -> list[list[Called]]:
    """Let three sessions solve a problem twice each, in turn; return the judge's calls of each run."""
    large = Endpoint(role="large", url=other.base_url, replicas=(pair.large.base_url,))
    calls: list[list[Called]] = []
    async with Solver(pair.small.base_url, large, sampling=GREEDY, auto=False, policy="specreason", ahead=0) as solver:
        for _ in range(2):
            for number, task in enumerate(TASKS):
                events: list[Event] = []
                with separate_cache("sessions"):
                    await solver.solve(
                        task.problem,
                        session=f"session {number}",
                        system=f"Turn {number}. {RULES}",
                        budget=Budget(40),
                        observe=events.append,
                    )
                calls.append([event for event in events if isinstance(event, Called) and event.verb == "ask"])
    return calls


def test_the_second_turn_of_a_session_finds_the_first_in_the_prefix_cache_of_its_replica(
    paced_pair: Pair, forked: tuple[str, ...]
) -> None:
    with doomed("large", forked) as other:
        calls = asyncio.run(converse(paced_pair, other))
    first, second = calls[: len(TASKS)], calls[len(TASKS) :]
    for before, after in zip(first, second, strict=True):
        assert len({call.url for call in (*before, *after)}) == 1
        assert min(after, key=lambda call: call.started).cached > min(before, key=lambda call: call.started).cached


def test_a_session_whose_replica_dies_goes_on_at_the_other(paced_pair: Pair, forked: tuple[str, ...]) -> None:
    async def turns(victim: Served) -> tuple[Solution, Solution, set[str]]:
        urls = [server.base_url.removesuffix("/v1") for server in (victim, paced_pair.large)]
        session = next(name for name in map(str, range(99)) if in_order(urls, name)[0] == urls[0])
        large = Endpoint(role="large", url=paced_pair.large.base_url, replicas=(victim.base_url,))
        async with Solver(paced_pair.small.base_url, large, sampling=GREEDY, auto=False, policy="large") as solver:
            events: list[Event] = []
            one = await solver.solve(TASKS[0].problem, session=session, observe=events.append)
            assert {event.url for event in events if isinstance(event, Called)} == {urls[0]}
            kill(victim)
            events.clear()
            other = await solver.solve(TASKS[0].problem, session=session, observe=events.append)
            done = {event.url for event in events if isinstance(event, Called) and event.fate == "done"}
            return one, other, done

    with doomed("large", forked) as victim:
        one, other, done = asyncio.run(turns(victim))
    assert done == {paced_pair.large.base_url.removesuffix("/v1")}
    assert other.answer == one.answer == str(TASKS[0].gold)


def test_a_judge_that_dies_is_judged_by_its_replica(paced_pair: Pair, forked: tuple[str, ...]) -> None:
    with doomed("large", forked) as victim:
        plain, solutions, events = asyncio.run(solve(paced_pair, victim, "specreason"))
        assert [solution.thinking for solution in solutions] == [solution.thinking for solution in plain]
        assert all(not solution.degraded for solution in solutions)
        assert any(isinstance(event, Moved) for event in events)
