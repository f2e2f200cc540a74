"""Solvers on the running miniature pair, with those of nested pairs and of the published SpecReason."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from rich.console import Console

from stepspec.api import Solver
from stepspec.evals.arms import measure
from stepspec.evals.sample import Arm
from stepspec.evals.testbed.servers import NO_SPECULATION, PAIR, TINY, endpoint, running
from stepspec.orchestrator.endpoints import GREEDY
from stepspec.orchestrator.launcher import TokenSpeculation

from .published_specreason import PUBLISHED, PublishedSpecReason
from .worlds import LONG, SHORT, accounts, find_world, fresh_tasks, long_tasks

WARMING = accounts.Difficulty(steps=(3, 6))  # the first problems need not be long
NO_NESTING: Mapping[str, Mapping[str, Any]] = {}


@asynccontextmanager
async def solvers(
    profile: str,
    console: Console,
    warm_up: tuple[Arm, ...],
    seed: int,
    problems: int,
    speculation: Mapping[str, TokenSpeculation] = NO_SPECULATION,
    nested: Mapping[str, Mapping[str, Any]] = NO_NESTING,
    *,
    world: str = SHORT,
) -> AsyncGenerator[tuple[Solver, Mapping[str, Solver]]]:
    """
    Start the pair and yield a solver as `pair_solver` does, and solvers with a nested pair by the name of their arm.

    Their small model is a pair of the tiny and the small model; *nested* has its settings by arm. The tiny model is
    started only if *nested* has an arm. The arm `PUBLISHED` has a solver of its own too.
    """
    roles = (*PAIR, TINY) if nested else PAIR
    async with AsyncExitStack() as stack:
        starting = running(profile, roles, console=console, world=find_world(world), speculation=speculation)
        served = await stack.enter_async_context(starting)
        large = endpoint(served["large"], "large")
        plain = await stack.enter_async_context(Solver(endpoint(served["small"], "small"), large, sampling=GREEDY))
        nested_solvers: dict[str, Solver] = {}
        for name, settings in nested.items():
            pair = {**settings, "small": endpoint(served[TINY], "small"), "large": endpoint(served["small"], "large")}
            nested_solvers[name] = await stack.enter_async_context(Solver(pair, large, sampling=GREEDY))
        if PUBLISHED in warm_up:
            peer = await stack.enter_async_context(PublishedSpecReason(plain.settings))
            nested_solvers[PUBLISHED.name] = peer
        tasks = long_tasks(problems, seed, WARMING) if world == LONG else fresh_tasks(problems, seed, world=world)
        await measure(plain, warm_up, tasks, solvers=nested_solvers)
        yield plain, nested_solvers
