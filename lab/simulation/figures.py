"""Simulate one arm under one load, and sum it up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import ceil
from statistics import fmean, median_low
from typing import cast

from stepspec.api import Solver
from stepspec.evals.grading.graders import Answer
from stepspec.evals.sample import Arm, Task
from stepspec.orchestrator.budget import Budget
from stepspec.orchestrator.chain import Role
from stepspec.orchestrator.endpoints import GREEDY, ReplicatedEndpoint
from stepspec.orchestrator.errors import ConfigurationError
from stepspec.settings import Settings

from ..crowd import Block, attempt, run_block
from ..script import Script
from ..virtual_clock import run
from .costs import ServerCosts
from .models import SimulatedEndpoint
from .server import Card, SimulatedServer

BUDGET = Budget(tokens=10**6, answer=10**4)
QUANTILES: Mapping[str, float] = {"p50": 0.5, "p95": 0.95, "p99": 0.99}


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of one arm under one load."""

    n: int
    """Counted problems."""
    seconds: Mapping[str, float]
    """The quantiles p50, p95 and p99 of the seconds from arrival to answer."""
    mean: float
    """Their mean."""
    first_step: float | None
    """The median of the seconds until the first verified step; None: there is no such step."""
    problems_per_second: float
    """The throughput."""


class SimulatedSolver(Solver):
    """A solver whose models answer from *scripts* on *servers*."""

    def __init__(
        self,
        servers: Mapping[Role, SimulatedServer],
        scripts: Mapping[str, Script],
    ) -> None:
        small, large = (SimulatedEndpoint(role, servers[role], scripts) for role in servers)
        super().__init__(
            Settings(
                small=small.settings,
                large=large.settings,
                sampling=GREEDY,
                budget=BUDGET,
            ),
        )
        self.small = cast("ReplicatedEndpoint", small)
        self.large = cast("ReplicatedEndpoint", large)

    async def warm_up(self) -> None:
        """Do nothing: a simulated server compiles nothing."""


def start_servers(
    small: ServerCosts,
    large: ServerCosts,
    *,
    shared: bool = False,
) -> dict[Role, SimulatedServer]:
    """Return new servers with these costs, on one *shared* card or on two."""
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
    """Run one block on *servers*, on the clock of the running event loop."""
    scripts = [*counted, *others]
    tasks = [Task(f"{number}", Answer("", "exact")) for number in range(len(scripts))]
    by_text = {task.problem: script for task, script in zip(tasks, scripts, strict=True)}
    async with SimulatedSolver(servers, by_text) as solver:
        solving = partial(attempt, solver, arm)
        own = tasks[: len(counted)]
        more = tasks[len(counted) :]
        return await run_block(concurrency, own, more, solving, seed)


def simulate(
    concurrency: int,
    arm: Arm,
    scripts: Sequence[Script],
    servers: Mapping[Role, SimulatedServer],
    *,
    problems: int = 48,
    seed: int = 0,
) -> Figures:
    """
    Simulate *problems* counted problems, *concurrency* at once, solved by *arm* on new *servers*.

    The problems are those of *scripts*, in turn. *seed* is the seed of the runs. Equal arguments
    give equal figures. The simulation runs an event loop of its own, on a virtual clock. Raise
    `ConfigurationError` if there is no script, and for a problem that no server can hold.
    """
    if not scripts:
        raise ConfigurationError("a simulation needs the script of at least one problem")
    counted = [scripts[number % len(scripts)] for number in range(problems)]
    block, _ = run(
        simulate_block(
            concurrency,
            arm,
            counted,
            scripts[::-1],
            servers,
            seed,
        )
    )
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
    """Return the *share* quantile of *ordered* values, by nearest rank."""
    return ordered[max(0, ceil(len(ordered) * share - 1e-9) - 1)]
