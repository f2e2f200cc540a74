"""A solver over the miniature pair, for whoever measures or shows it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager

from rich.console import Console

from ...api import Solver
from ...orchestrator.endpoints import Sampling
from ...orchestrator.serving import Speculation
from ..arms import Arm, measure
from .servers import NOTHING, endpoint, running
from .tasks import fresh


@asynccontextmanager
async def pair_solver(
    profile: str,
    console: Console,
    warm_up: tuple[Arm, ...],
    seed: int,
    problems: int,
    speculation: Mapping[str, Speculation] = NOTHING,
) -> AsyncGenerator[Solver]:
    """
    Start the pair and yield a greedy solver over it, warmed up by each arm on some *problems* of *seed*.

    *speculation* is by role.
    """
    async with running(profile, console=console, speculation=speculation) as served:
        small, large = endpoint(served["small"], "small"), endpoint(served["large"], "large")
        async with Solver(small, large, sampling=Sampling()) as solver:
            await measure(solver, warm_up, fresh(problems, seed))
            yield solver
