"""The miniature pair's problems as tasks that can be measured."""

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
from ..sample import Arm, Task
from .problems import DEFAULT, Difficulty, generate
from .servers import NO_SPECULATION, PAIR, TINY, endpoint, running


def fresh_tasks(count: int, seed: int, difficulty: Difficulty = DEFAULT) -> list[Task]:
    """Return *count* problems that no model was trained on."""
    return [Task(problem.text, str(problem.answer)) for problem in islice(generate(seed, "test", difficulty), count)]


NO_NESTING: Mapping[str, Mapping[str, Any]] = {}


@asynccontextmanager
async def pair_solver(
    profile: str,
    console: Console,
    warm_up: tuple[Arm, ...],
    seed: int,
    problems: int,
    speculation: Mapping[str, TokenSpeculation] = NO_SPECULATION,
) -> AsyncGenerator[Solver]:
    """
    Start the pair and yield a greedy solver over it, warmed up by each arm on some *problems* of *seed*.

    *speculation* is by role.
    """
    async with solvers(profile, console, warm_up, seed, problems, speculation) as (solver, _):
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
) -> AsyncGenerator[tuple[Solver, Mapping[str, Solver]]]:
    """
    Yield besides a solver for each of the arms that *nested* names, whose small model is a pair of the tiny one and the
    small one, with these settings. The tiny one is only started if there is one.
    """
    roles = (*PAIR, TINY) if nested else PAIR
    async with AsyncExitStack() as stack:
        starting = running(profile, roles, console=console, speculation=speculation)
        served = await stack.enter_async_context(starting)
        large = endpoint(served["large"], "large")
        plain = await stack.enter_async_context(Solver(endpoint(served["small"], "small"), large, sampling=GREEDY))
        others: dict[str, Solver] = {}
        for name, settings in nested.items():
            pair = {**settings, "small": endpoint(served[TINY], "small"), "large": endpoint(served["small"], "large")}
            others[name] = await stack.enter_async_context(Solver(pair, large, sampling=GREEDY))
        await measure(plain, warm_up, fresh_tasks(problems, seed), solvers=others)
        yield plain, others
