"""
What `stepspec estimate` predicts of simulated servers, and the gain that a simulation of whole
problems gives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from lab.virtual_clock import run
from stepspec.api import Solver
from stepspec.evals.arms import LARGE
from stepspec.evals.estimate import measuring
from stepspec.evals.estimate.prediction import Estimate, predict
from stepspec.evals.sample import Arm
from stepspec.orchestrator.budget import Budget
from stepspec.orchestrator.chain import Chain
from stepspec.orchestrator.endpoints import Sampling

from .figures import SimulatedSolver, start_servers
from .grid import Chains, Pair, simulate_cell
from .models import SimulatedEndpoint

MINUTES, PROBLEMS = 2.0, 20


class _Solver(SimulatedSolver):
    async def warm_up(self) -> None:
        pass


class _Endpoint(SimulatedEndpoint):
    """An endpoint whose capabilities are not known."""

    async def capabilities(self) -> Any:
        return None


async def _plain(
    solver: Solver, problem: str, sampling: Sampling, budget: Budget, clock: Callable[[], float]
) -> tuple[None, dict[str, float]]:
    began = clock()
    written = await solver.large.model().write(Chain.of(problem), stop=(), limit=budget.tokens)
    return None, {"large": (clock() - began) / len(written.tokens)}


def estimate(
    pair: Pair, arms: Sequence[Arm], chains: Chains, accepted: float, users: Sequence[int]
) -> Estimate:
    """Let `stepspec estimate` measure the simulated *pair*, on a virtual clock."""
    problems = {
        f"{number}": script for number, script in enumerate(chains.scripts(accepted, PROBLEMS))
    }

    async def work() -> Estimate:
        servers = start_servers(pair.small, pair.large, shared=pair.shared)
        small, large = (_Endpoint(role, servers[role], problems) for role in servers)
        small.name = "small"
        async with _Solver(small, large) as solver:
            return predict(
                await measuring.measure(solver, arms, list(problems), users, MINUTES), users
            )

    with patch.object(measuring, "solve_plain", _plain):
        return run(work())[0]


def compared(
    pair: Pair, arms: Sequence[Arm], chains: Chains, accepted: float, users: Sequence[int]
) -> Iterator[dict[str, Any]]:
    """
    The estimated and the simulated gain of the first of *arms* for each number of *users*, for a
    table.
    """
    arm, *_ = arms
    methods = estimate(pair, arms, chains, accepted, users).methods
    for gain in next(method for method in methods if method.arm == arm).gains:
        hedged = replace(arm, run=arm.run.with_overrides({"hedge": gain.hedge}))
        cells = [
            simulate_cell(pair, each, gain.concurrency, chains, share, max(8, 2 * gain.concurrency))
            for each, share in ((LARGE, 1.0), (hedged, accepted))
        ]
        simulated = cells[0].figures.mean / cells[1].figures.mean
        yield {
            "pair": pair.name,
            "accepted": accepted,
            "users": gain.concurrency,
            "hedge": gain.hedge,
            "estimated": gain.gain.value,
            "simulated": simulated,
            "over": gain.gain.value / simulated,
        }
