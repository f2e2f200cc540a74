"""A run whose real server dies, or whose user cancels it."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress

import pytest

from stepspec import Solution, Solver
from stepspec.evals.testbed.servers import miniature_servers
from stepspec.evals.testbed.solving_pair import fresh_tasks
from stepspec.orchestrator.endpoints import GREEDY
from stepspec.orchestrator.errors import EndpointUnavailable, ServerDied
from stepspec.orchestrator.events import Committed, Event
from stepspec.orchestrator.launcher import Served

from .conftest import Pair, serving
from .test_solve import until_idle

pytestmark = pytest.mark.servers
(TASK,) = fresh_tasks(1, 5)


@contextmanager
def doomed(role: str, forked: tuple[str, ...]) -> Generator[Served]:
    """Start a server that is going to be killed."""
    with suppress(ServerDied), serving(miniature_servers("paced", [role]), forked, doomed=True) as served:
        yield served[role]


def kill(served: Served) -> None:
    """Kill a forked server's engine; the rest of it notices, and ends."""
    os.kill(served.pid, signal.SIGUSR1)


async def solve(small: Served, large: Served, victim: Served) -> Solution:
    """Solve a problem; after its first step *victim* is killed."""
    killed = False

    def watch(event: Event) -> None:
        nonlocal killed
        if isinstance(event, Committed) and not killed:
            killed = True
            kill(victim)

    async with Solver(small.base_url, large.base_url, sampling=GREEDY, auto=False) as solver:
        return await solver.solve(TASK.problem, observe=watch)


def test_a_run_whose_small_model_dies_is_finished_by_the_large_one(paced_pair: Pair, forked: tuple[str, ...]) -> None:
    with doomed("small", forked) as small:
        solution = asyncio.run(solve(small, paced_pair.large, small))
        assert (solution.answer, solution.finish_reason) == (str(TASK.gold), "stop")
        assert solution.degraded == ("small",)
        authors = [step.author for step in solution.steps if step.fate == "kept"]
        assert authors[0] == "small"
        assert authors[-1] == "large"


def test_the_death_of_the_large_model_ends_the_run_without_open_requests(
    paced_pair: Pair, forked: tuple[str, ...]
) -> None:
    with doomed("large", forked) as large:
        with pytest.raises(EndpointUnavailable, match=large.base_url.removesuffix("/v1")) as caught:
            asyncio.run(solve(paced_pair.small, large, large))
        assert caught.value.role == "large"
        asyncio.run(until_idle(paced_pair.small))


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
