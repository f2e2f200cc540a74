"""Runs whose real server dies, with and without a replica, and a run that its user cancels."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress

import pytest

from stepspec import Budget, Endpoint, Solution, Solver
from stepspec.evals.testbed.servers import MODELS, miniature_servers
from stepspec.evals.testbed.solving_pair import fresh_tasks
from stepspec.orchestrator.endpoints import GREEDY
from stepspec.orchestrator.endpoints.replicas import in_order
from stepspec.orchestrator.endpoints.request_context import separate_cache
from stepspec.orchestrator.errors import EndpointUnavailable, ServerDied
from stepspec.orchestrator.events import Called, Committed, Event, Moved
from stepspec.servers.launcher import Served

from .conftest import Pair, serving
from .test_solve import until_idle

pytestmark = pytest.mark.servers
TASKS = fresh_tasks(3, 5)
TASK = TASKS[0]
RULES = "Work out one quantity at a time. " * 20  # longer than a block of the prefix cache


@contextmanager
def doomed(role: str, forked: tuple[str, ...]) -> Generator[Served]:
    """Start a server that is going to be killed."""
    with (
        suppress(ServerDied),
        serving(miniature_servers("paced", [MODELS / role]), forked, doomed=True) as served,
    ):
        yield served[role]


def kill(served: Served) -> None:
    """Kill a forked server's engine; the rest of it notices, and ends."""
    os.kill(served.pid, signal.SIGUSR1)


def root(served: Served) -> str:
    return served.base_url.removesuffix("/v1")


def connect(small: Served, *large: Served) -> Solver:
    """A greedy solver; the servers of *large* are replicas."""
    urls = ",".join(server.base_url for server in large)
    endpoint = Endpoint(role="large", url=urls)
    return Solver(small.base_url, endpoint, sampling=GREEDY, auto=False)


def test_a_run_whose_small_model_dies_is_finished_by_the_large_one(
    paced_pair: Pair, forked: tuple[str, ...]
) -> None:
    async def solve(small: Served) -> Solution:
        killed = False

        def watch(event: Event) -> None:
            nonlocal killed
            if isinstance(event, Committed) and not killed:
                killed = True
                kill(small)

        async with connect(small, paced_pair.large) as solver:
            return await solver.solve(TASK.problem, observe=watch)

    with doomed("small", forked) as small:
        solution = asyncio.run(solve(small))
    assert (solution.answer, solution.finish_reason) == (str(TASK.gold), "stop")
    assert solution.degraded == ("small",)
    authors = [step.author for step in solution.steps if step.fate == "kept"]
    assert authors[0] == "small"
    assert authors[-1] == "large"


def test_when_the_large_model_dies_runs_go_on_at_its_replica_or_end_without_open_requests(
    paced_pair: Pair, forked: tuple[str, ...]
) -> None:
    """
    Both writing and judging go on; the server dies after the first step that the large model has
    written.
    """
    events: dict[str, list[Event]] = {"large": [], "specreason": []}

    async def alone(victim: Served) -> None:
        async with connect(paced_pair.small, victim) as solver:
            with pytest.raises(EndpointUnavailable, match=root(victim)) as caught:
                await solver.solve(TASK.problem)
        assert caught.value.role == "large"

    async def replicated(victim: Served, policy: str) -> list[Solution]:
        def watch(event: Event) -> None:
            if policy == "large" and isinstance(event, Committed) and not committed(events[policy]):
                kill(victim)
            events[policy].append(event)

        async with connect(paced_pair.small, victim, paced_pair.large) as solver:
            runs = (solver.solve(task.problem, policy=policy, observe=watch) for task in TASKS)
            solutions = await asyncio.gather(*runs)
            assert list(solver.large.down) == [root(victim)]
            later = await solver.solve(TASK.problem, policy=policy)  # It does not try the dead one.
            assert (later.answer, later.ledger.large.failed) == (solutions[0].answer, 0)
        return solutions

    async def solve(victim: Served) -> None:
        async with connect(paced_pair.small, paced_pair.large) as solver:
            solving = (
                solver.solve(task.problem, policy=policy) for policy in events for task in TASKS
            )
            plain = await asyncio.gather(*solving)
        written, verified, _ = await asyncio.gather(
            replicated(victim, "large"), replicated(victim, "specreason"), alone(victim)
        )
        solutions = [*written, *verified]
        assert [solution.thinking for solution in solutions] == [
            solution.thinking for solution in plain
        ]
        assert [solution.answer for solution in written] == [str(task.gold) for task in TASKS]
        assert all(not solution.degraded for solution in solutions)
        for server in (paced_pair.small, paced_pair.large):
            await until_idle(server)

    with doomed("large", forked) as victim:
        asyncio.run(solve(victim))
    dead = root(victim)
    alive = root(paced_pair.large)
    for policy, seen in events.items():
        moved = {(event.role, event.url, event.to) for event in seen if isinstance(event, Moved)}
        assert moved == {("large", dead, alive)}, policy
        fates = {(event.url, event.fate) for event in seen if isinstance(event, Called)}
        assert (alive, "done") in fates
        assert (alive, "failed") not in fates
    assert (dead, "failed") in {
        (event.url, event.fate) for event in events["large"] if isinstance(event, Called)
    }
    # Two of the three runs began there.
    assert sum(isinstance(event, Moved) for event in events["large"]) == 2


def committed(events: list[Event]) -> bool:
    return any(isinstance(event, Committed) for event in events)


def test_a_session_stays_at_its_replica_whose_prefix_cache_it_reads_until_that_one_dies(
    paced_pair: Pair, forked: tuple[str, ...]
) -> None:
    async def judged(solver: Solver, number: int) -> list[Called]:
        """Solve a problem as a turn of session *number*; return the judge's calls."""
        events: list[Event] = []
        system = f"Turn {number}. {RULES}"
        session = f"session {number}"
        with separate_cache("sessions"):
            await solver.solve(
                TASKS[number].problem,
                session=session,
                system=system,
                budget=Budget(40),
                ahead=0,
                observe=events.append,
            )
        return [event for event in events if isinstance(event, Called) and event.verb == "ask"]

    async def turns(victim: Served) -> None:
        async with connect(paced_pair.small, victim, paced_pair.large) as solver:
            first, second = [
                [await judged(solver, number) for number in range(len(TASKS))] for _ in range(2)
            ]
            for before, after in zip(first, second, strict=True):
                assert len({call.url for call in (*before, *after)}) == 1
                assert (
                    min(after, key=lambda call: call.started).cached
                    > min(before, key=lambda call: call.started).cached
                )
        urls = [root(victim), root(paced_pair.large)]
        session = next(name for name in map(str, range(99)) if in_order(urls, name)[0] == urls[0])
        async with connect(paced_pair.small, paced_pair.large, victim) as solver:
            events: list[Event] = []

            async def turn() -> Solution:
                return await solver.solve(
                    TASK.problem, policy="large", session=session, observe=events.append
                )

            one = await turn()
            assert {event.url for event in events if isinstance(event, Called)} == {urls[0]}
            kill(victim)
            events.clear()
            other = await turn()
            done = {
                event.url for event in events if isinstance(event, Called) and event.fate == "done"
            }
        assert done == {urls[1]}
        assert other.answer == one.answer == str(TASK.gold)

    with doomed("large", forked) as victim:
        asyncio.run(turns(victim))


async def test_ctrl_c_ends_a_run_at_once_and_leaves_no_request(paced_pair: Pair) -> None:
    urls = ("--small", paced_pair.small.base_url, "--large", paced_pair.large.base_url)
    program = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "stepspec", "solve", TASK.problem, *urls),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    assert program.stdout is not None
    first = await program.stdout.readline()
    program.send_signal(signal.SIGINT)
    rest = await program.stdout.read()
    assert await program.wait() == 130
    assert b"Traceback" not in first + rest
    for server in (paced_pair.small, paced_pair.large):
        await until_idle(server)
