"""A solver on the running miniature pair, and the pair's problems as tasks."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from rich.console import Console

from stepspec.api import Solver
from stepspec.orchestrator.endpoints import GREEDY

from ..benchmarks.built_in import made
from ..sample import Task
from . import Profile
from .servers import endpoint, running


def fresh_tasks(count: int, seed: int) -> list[Task]:
    """Return *count* problems of the test split, on which no model was trained."""
    return made(seed, count)


@asynccontextmanager
async def pair_solver(profile: Profile, console: Console) -> AsyncGenerator[Solver]:
    """Start the pair, and yield a greedy solver that uses it."""
    async with (
        running(profile, console=console) as served,
        Solver(
            endpoint(served["small"], "small"),
            endpoint(served["large"], "large"),
            sampling=GREEDY,
        ) as solver,
    ):
        yield solver
