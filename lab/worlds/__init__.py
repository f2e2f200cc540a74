"""
The worlds that the miniature models are trained on: short problems, long ones, and problems for
tools.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

from stepspec.evals.grading.graders import Answer
from stepspec.evals.sample import Task
from stepspec.evals.testbed import servers
from stepspec.evals.testbed.servers import JUDGE, World, read_pace
from stepspec.evals.testbed.solving_pair import fresh_tasks as short_tasks
from stepspec.orchestrator.errors import ConfigurationError

from . import accounts, tool_problems

MODELS = Path(__file__).parents[1] / "models"
SHORT = "short"
LONG = "long"
TOOLS = "tools"
_SHORT = replace(servers.SHORT, folders=(*servers.SHORT.folders, MODELS))
"""The world of the package, and its models that no user needs: ``small-other`` and ``tiny``."""

_LONG = World(
    LONG,
    (MODELS / "long",),
    context=8192,
    cache=768,
    trainer="`python -m lab.training train --world long`",
)
_TOOLS = World(
    TOOLS,
    (MODELS / "tools",),
    context=4096,
    cache=384,
    trainer="`python -m lab.training train --world tools`",
)
WORLDS: Mapping[str, World] = {world.name: world for world in (_SHORT, _LONG, _TOOLS)}
SIZES: Mapping[str, str] = {
    SHORT: "0.1 and 1.3 million",
    LONG: "0.5 and 2.9 million",
    TOOLS: "0.4 and 1.3 million",
}
"""The parameters of the small and the large model of each world."""
JUDGES: Mapping[str, Sequence[str]] = {
    SHORT: (JUDGE,),
    LONG: (JUDGE, "judge-90", "judge-75"),
    TOOLS: (JUDGE,),
}
"""
The large models of each world; the number in a name is the AUROC, in per cent, that its verdicts
are near.
"""


def find_world(name: str) -> World:
    """Return the world called *name*. Raise ConfigurationError for an unknown name."""
    if name not in WORLDS:
        raise ConfigurationError(
            f"--world: there is no world {name!r} of miniature models; there are:"
            f" {', '.join(WORLDS)}"
        )
    return WORLDS[name]


def with_judge(world: str, judge: str) -> World:
    """Return *world* with another judge. Raise ConfigurationError if it has none called *judge*."""
    found = find_world(world)
    if judge not in JUDGES[world]:
        raise ConfigurationError(
            f"the world {world!r} has no judge {judge!r}; it has: {', '.join(JUDGES[world])}"
        )
    return replace(found, judge=judge)


def describe_pace(profile: str, *roles: str) -> str:
    """Describe the pace of each of *roles* in words, for the small print of tables."""
    paces = [(role, pace) for role in roles if (pace := read_pace(profile, role)) is not None]
    if not paces:
        return "passes are not paced"
    parts = (
        f"{role} {p.seconds_per_pass * 1e3:g} ms + {p.seconds_per_token * 1e6:g} us a token"
        for role, p in paces
    )
    return (
        f"only the cost of a forward pass is set ({', '.join(parts)}), to have the shape of a GPU's"
    )


def fresh_tasks(count: int, seed: int, *, world: str = SHORT) -> list[Task]:
    """
    Return *count* problems of the test split of *world*, on which no model was trained.

    Those of the tools world are the ones that need no tools. Raise `ConfigurationError` for an
    unknown world.
    """
    find_world(world)
    if world == LONG:
        return long_tasks(count, seed)
    if world == TOOLS:
        stated = tool_problems.generate(seed, "test", tool_problems.NO_CALLS)
        return [
            Task(problem.text, Answer(str(problem.answer), "exact"))
            for problem in islice(stated, count)
        ]
    return short_tasks(count, seed)


def long_tasks(
    count: int, seed: int, difficulty: accounts.Difficulty = accounts.DEFAULT
) -> list[Task]:
    """
    Return *count* problems of the test split of the long world.

    Their reference is the worked reasoning, in which every step is the only right one.
    """
    return [
        Task(
            problem.text,
            Answer(str(problem.answer), "exact"),
            reference="".join(accounts.worked_steps(problem)),
        )
        for problem in islice(accounts.generate(seed, "test", difficulty), count)
    ]
