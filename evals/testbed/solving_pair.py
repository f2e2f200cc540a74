"""Solvers on the running miniature pair, and its problems as tasks."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import islice
from typing import Any

from rich.console import Console

from stepspec.api import Solver
from stepspec.orchestrator.endpoints import GREEDY
from stepspec.orchestrator.launcher import TokenSpeculation

from ..experiments.arms import measure
from ..experiments.published_specreason import PUBLISHED, PublishedSpecReason
from ..sample import Arm, Task
from . import accounts, tool_problems
from .problems import DEFAULT, Difficulty, generate
from .servers import LONG, NO_SPECULATION, PAIR, SHORT, TINY, TOOLS, endpoint, find_world, running


def fresh_tasks(count: int, seed: int, difficulty: Difficulty = DEFAULT, *, world: str = SHORT) -> list[Task]:
    """
    Return *count* problems of the test split of *world*, on which no model was trained.

    *difficulty* is of the short world. Those of the tools world are the ones that need no tools. Raise
    `ConfigurationError` for an unknown world.
    """
    find_world(world)
    if world == LONG:
        return long_tasks(count, seed)
    if world == TOOLS:
        stated = tool_problems.generate(seed, "test", tool_problems.NO_CALLS)
        return [Task(problem.text, str(problem.answer)) for problem in islice(stated, count)]
    return [Task(problem.text, str(problem.answer)) for problem in islice(generate(seed, "test", difficulty), count)]


def long_tasks(count: int, seed: int, difficulty: accounts.Difficulty = accounts.DEFAULT) -> list[Task]:
    """
    Return *count* problems of the test split of the long world.

    Their reference is the worked reasoning, in which every step is the only right one.
    """
    return [
        Task(problem.text, str(problem.answer), reference="".join(accounts.worked_steps(problem)))
        for problem in islice(accounts.generate(seed, "test", difficulty), count)
    ]


WARMING = accounts.Difficulty(steps=(3, 6))  # the first problems need not be long
NO_NESTING: Mapping[str, Mapping[str, Any]] = {}


@asynccontextmanager
async def pair_solver(
    profile: str,
    console: Console,
    warm_up: tuple[Arm, ...],
    seed: int,
    problems: int,
    speculation: Mapping[str, TokenSpeculation] = NO_SPECULATION,
    *,
    world: str = SHORT,
) -> AsyncGenerator[Solver]:
    """
    Start the pair and yield a greedy solver that uses it, after a warm-up: each arm solves *problems* tasks of *seed*.

    *speculation* is by role. The tasks and the models are those of *world*.
    """
    async with solvers(profile, console, warm_up, seed, problems, speculation, world=world) as (solver, _):
        yield solver


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
        starting = running(profile, roles, console=console, world=world, speculation=speculation)
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
