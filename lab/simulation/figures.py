"""Simulate one arm under one load, and sum it up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import ceil
from statistics import fmean, median_low

from stepspec.api import Solver
from stepspec.evals.grading.graders import Answer
from stepspec.evals.sample import Arm, Task
from stepspec.orchestrator.budget import Budget
from stepspec.orchestrator.chain import Role
from stepspec.orchestrator.endpoints import GREEDY
from stepspec.orchestrator.errors import ConfigurationError
from stepspec.orchestrator.solution import Solution
from stepspec.settings import Settings

from ..crowd import Block, Crowd, attempt
from ..script import Script
from ..virtual_clock import run
from .costs import ServerCosts
from .models import SimulatedEndpoint
from .server import Card, SimulatedServer

DEADLINE = 1e7  # seconds of a simulated problem
QUANTILES: Mapping[str, float] = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
BUDGET = Budget(tokens=10**6, answer=10**4)


@dataclass(frozen=True, slots=True)
class Figures:
    """
    The figures of one arm under one load, over *n* counted problems.

    *seconds* are the quantiles p50, p95 and p99 of the time from arrival to answer, and *mean* its
    mean. *first_step* is the median until the first verified step.
    """

    n: int
    seconds: Mapping[str, float]
    mean: float
    first_step: float | None
    problems_per_second: float


class SimulatedSolver(Solver):
    """A solver whose models answer from scripts."""

    def __init__(self, small: SimulatedEndpoint, large: SimulatedEndpoint) -> None:
        super().__init__(Settings(small=small.settings, large=large.settings, sampling=GREEDY))
        self.small = small
        self.large = large


def start_servers(
    small: ServerCosts, large: ServerCosts, *, shared: bool = False
) -> dict[Role, SimulatedServer]:
    """
    Make servers with these costs, of which none has done anything, on a *shared* card or on two.
    """
    card = Card() if shared else None
    return {"small": SimulatedServer(small, card), "large": SimulatedServer(large, card)}


async def simulate_block(
    concurrency: int,
    arm: Arm,
    counted: Sequence[Script],
    others: Sequence[Script],
    servers: Mapping[Role, SimulatedServer],
    seed: int = 0,
) -> Block:
    """Run one block as `Crowd` does, on *servers*, on the clock of the running event loop."""
    scripts = {
        f"{kind} {number}": each
        for kind, some in (("counted", counted), ("other", others))
        for number, each in enumerate(some)
    }
    tasks = {name: Task(name, Answer("")) for name in scripts}
    small, large = (SimulatedEndpoint(role, servers[role], scripts) for role in servers)
    async with SimulatedSolver(small, large) as solver:
        solving = partial(attempt, solver, arm, count_as_right, DEADLINE, None, BUDGET)
        own = [tasks[name] for name in tasks if name.startswith("counted")]
        more = [tasks[name] for name in tasks if name.startswith("other")]
        return await Crowd(concurrency, own, more, solving, seed, 0).run()


async def count_as_right(solution: Solution, task: Task) -> bool:
    return True


def simulate(
    concurrency: int,
    arm: Arm,
    scripts: Sequence[Script],
    small: ServerCosts,
    large: ServerCosts,
    *,
    problems: int = 48,
    seed: int = 0,
    shared: bool = False,
) -> Figures:
    """
    Simulate *problems* counted problems, *concurrency* at once, solved as *arm* does, on servers
    with these costs.

    The problems are those of *scripts*, in turn; *seed* is that of the runs. On a *shared* card the
    passes of both servers take turns. The same arguments give the same figures. Not for use within
    a running event loop: it runs one of its own, on a virtual clock. Raise `ConfigurationError` if
    there is no script, and for a problem that no server can hold.
    """
    if not scripts:
        raise ConfigurationError("a simulation needs the script of at least one problem")
    counted = [scripts[number % len(scripts)] for number in range(problems)]
    servers = start_servers(small, large, shared=shared)
    block, _ = run(simulate_block(concurrency, arm, counted, scripts[::-1], servers, seed))
    solved = [timing for timing in block if not timing.failure]
    latencies = sorted(timing.latency for timing in solved)
    mean = fmean(latencies)
    first_steps = [timing.first_step for timing in solved if timing.first_step is not None]
    return Figures(
        n=len(solved),
        seconds={name: rank(latencies, share) for name, share in QUANTILES.items()},
        mean=mean,
        first_step=median_low(first_steps) if first_steps else None,
        problems_per_second=concurrency / mean,
    )


def rank(ordered: Sequence[float], share: float) -> float:
    """The *share* quantile of *ordered* values, by nearest rank."""
    return ordered[max(0, ceil(len(ordered) * share - 1e-9) - 1)]
