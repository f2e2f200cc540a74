"""
``stepspec judge`` on real servers: without labels it ranks the readings of the miniature pair as
true labels do.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest

from lab.worlds.mistakes import corrupt
from lab.worlds.short import advance, begin
from stepspec import Solver
from stepspec.evals.judge.cases import Case
from stepspec.evals.judge.figures import best, figures
from stepspec.evals.judge.measuring import judge_cases, make_cases, try_drafts
from stepspec.evals.testbed.problems import generate, worked_steps
from stepspec.evals.testbed.solving_pair import fresh_tasks
from stepspec.orchestrator import Chain, Step

from .conftest import Pair

pytestmark = [pytest.mark.servers, pytest.mark.timeout(600)]

PROBLEMS = 8


def labelled(count: int) -> Iterator[Case]:
    """
    Steps of generated problems that are right, and in their places steps with mistakes that the
    generator knows.
    """
    rng = random.Random(5)
    for number, problem in enumerate(islice(generate(77, "test"), count)):
        chain, state = Chain.of(problem.text), begin(problem)
        for step in worked_steps(problem)[:-1]:
            yield Case(chain, step, corrupt(rng, problem, state), "true", number, own=True)
            chain, state = chain.extend(Step(step, "large")), advance(problem, state, step)


def nothing(name: str, total: int) -> Any:
    return lambda: None


async def test_readings_are_ranked_as_by_true_labels(pair: Pair) -> None:
    async with Solver(pair.small.base_url, pair.large.base_url) as solver:
        own = await make_cases(
            solver, [task.problem for task in fresh_tasks(PROBLEMS, 3)], 0, nothing
        )
        unlabelled = await judge_cases(solver, own, 3, 0, nothing)
        true = await judge_cases(solver, list(labelled(PROBLEMS)), 3, 0, nothing)
        rows = figures(unlabelled.steps, unlabelled.seconds)
        by_label = {row.reading.name: row.area for row in figures(true.steps, true.seconds)}
        chosen = best(rows)
        assert chosen is not None, rows
        drafts = await try_drafts(solver, own, chosen.reading.policy, chosen.options, 2, nothing)
    for row in rows:
        print(f"{row.reading.name:34} {row.area:.2f}, by labels {by_label[row.reading.name]:.2f}")
    assert by_label[chosen.reading.name] > max(by_label.values()) - 0.05
    assert 0.3 < drafts.accepted.value < 1
