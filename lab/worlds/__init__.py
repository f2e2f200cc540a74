"""The worlds that the miniature models are trained on: short problems, long ones, and problems for tools."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import islice
from pathlib import Path

from stepspec.evals.grading.graders import Answer
from stepspec.evals.sample import Task
from stepspec.evals.testbed import servers
from stepspec.evals.testbed.servers import JUDGE, World
from stepspec.evals.testbed.solving_pair import fresh_tasks as short_tasks
from stepspec.orchestrator.errors import ConfigurationError

from . import accounts, tool_problems

MODELS = Path(__file__).parents[1] / "models"
SHORT, LONG, TOOLS = "short", "long", "tools"
_SHORT = replace(servers.SHORT, folders=(*servers.SHORT.folders, MODELS))
"""The world of the package, and its models that no user needs: ``small-other`` and ``tiny``."""

_LONG = World(
    LONG,
    (MODELS / "long",),
    "0.5 and 2.9 million",
    context=8192,
    cache=768,
    judges={JUDGE: 0.99, "judge-90": 0.9, "judge-75": 0.75},
    trainer="`python -m lab.training train --world long`",
)
_TOOLS = World(
    TOOLS,
    (MODELS / "tools",),
    "0.4 and 1.3 million",
    context=4096,
    cache=384,
    judges={JUDGE: 0.99},
    trainer="`python -m lab.training train --world tools`",
)
WORLDS: Mapping[str, World] = {world.name: world for world in (_SHORT, _LONG, _TOOLS)}


def find_world(name: str) -> World:
    """Return the world called *name*. Raise ConfigurationError for an unknown name."""
    if name not in WORLDS:
        raise ConfigurationError(
            f"--world: there is no world {name!r} of miniature models; there are: {', '.join(WORLDS)}"
        )
    return WORLDS[name]


def fresh_tasks(count: int, seed: int, *, world: str = SHORT) -> list[Task]:
    """
    Return *count* problems of the test split of *world*, on which no model was trained.

    Those of the tools world are the ones that need no tools. Raise `ConfigurationError` for an unknown world.
    """
    find_world(world)
    if world == LONG:
        return long_tasks(count, seed)
    if world == TOOLS:
        stated = tool_problems.generate(seed, "test", tool_problems.NO_CALLS)
        return [Task(problem.text, Answer(str(problem.answer), "exact")) for problem in islice(stated, count)]
    return short_tasks(count, seed)


def long_tasks(count: int, seed: int, difficulty: accounts.Difficulty = accounts.DEFAULT) -> list[Task]:
    """
    Return *count* problems of the test split of the long world.

    Their reference is the worked reasoning, in which every step is the only right one.
    """
    return [
        Task(problem.text, Answer(str(problem.answer), "exact"), reference="".join(accounts.worked_steps(problem)))
        for problem in islice(accounts.generate(seed, "test", difficulty), count)
    ]
