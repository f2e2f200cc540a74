"""Token-level speculation of the miniature pair: all features work with it, above all judging."""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Mapping

import pytest

from lab.arms import acceptances_between, read_acceptances
from stepspec import Solution, Solver
from stepspec.evals.testbed.servers import endpoint, miniature_servers, speculations
from stepspec.evals.testbed.solving_pair import fresh_tasks
from stepspec.orchestrator.chain import Chain
from stepspec.orchestrator.endpoints import GREEDY
from stepspec.policies import METHODS
from stepspec.prompts import load
from stepspec.servers.doctor import diagnose

from .conftest import Pair, serving

pytestmark = pytest.mark.servers
COUNT = 12
SPECULATION = {
    "large": speculations("draft_model")["large"],
    "small": speculations("ngram")["small"],
}
JUDGING = [
    name
    for name, method in METHODS.items()
    if method.needs and not method.takes("critic") and "cues" not in method.needs
]


@pytest.fixture(scope="module")
def speculating(forked: tuple[str, ...]) -> Generator[Pair]:
    """
    The miniature pair: a draft model writes tokens for the large model, n-grams of its text for the
    small one.
    """
    with serving(miniature_servers("off", speculation=SPECULATION), forked) as served:
        yield Pair(served["large"], served["small"])


def solver(pair: Pair) -> Solver:
    return Solver(
        endpoint(pair.small, "small"), endpoint(pair.large, "large"), sampling=GREEDY, auto=False
    )


async def test_problems_are_solved_and_judged_with_the_acceptance_in_the_ledger(
    speculating: Pair,
) -> None:
    tasks = fresh_tasks(COUNT, 11)
    async with solver(speculating) as solving:
        before = await read_acceptances(solving)
        solutions = await asyncio.gather(*(solving.solve(task.problem) for task in tasks))
        found = acceptances_between(before, await read_acceptances(solving))
    right = [
        solution.answer == str(task.gold) for solution, task in zip(solutions, tasks, strict=True)
    ]
    assert sum(right) >= COUNT - 2
    assert set(found) == {"large", "small"}
    assert all(
        acceptance.rate is not None and 0 < acceptance.rate <= 1 for acceptance in found.values()
    )
    grades = [
        step.grade for solution in solutions for step in solution.steps if step.grade is not None
    ]
    assert len(grades) >= 3 * COUNT
    assert min(grades) < 3 < 7 < max(grades)


async def test_every_judging_method_gives_the_same_result_with_speculation(
    speculating: Pair, pair: Pair
) -> None:
    tasks = fresh_tasks(4, 3)

    async def solve(servers: Pair) -> list[list[Solution]]:
        async with solver(servers) as solving:
            runs = (
                [solving.solve(task.problem, policy=policy) for task in tasks] for policy in JUDGING
            )
            return await asyncio.gather(*(asyncio.gather(*each) for each in runs))

    for policy, before, after in zip(
        JUDGING, await solve(pair), await solve(speculating), strict=True
    ):
        assert not any(solution.degraded for solution in (*before, *after)), policy
        assert any(map(judged, before)), policy
        assert any(map(judged, after)), policy
        same = sum(one.thinking == other.thinking for one, other in zip(before, after, strict=True))
        # Several tokens in a pass are added up in another order, which may turn one close call.
        assert same >= len(tasks) - 1, policy


def judged(solution: Solution) -> int:
    """How many steps somebody had a say about."""
    return solution.ledger.large.judging + sum(step.grade is not None for step in solution.steps)


async def test_a_judge_is_as_sure_as_without(speculating: Pair, pair: Pair) -> None:
    chain = Chain.of(fresh_tasks(1, 5)[0].problem)
    prompt = load("specreason.grade")
    found: list[Mapping[str, float]] = []
    for one in (pair, speculating):
        async with solver(one) as solving:
            model = solving.large.model()
            step = await model.write(chain)
            found.append(
                await model.ask(
                    chain.extend(step), prompt.text, "0123456789", opening=prompt.opening
                )
            )
    before, after = found
    assert sum(after.values()) > 0.9
    # what is not among the 20 likeliest counts as nothing
    assert after == pytest.approx(before, abs=0.01)


async def test_the_doctor_reports_speculation_and_its_cost(speculating: Pair) -> None:
    found = await diagnose(
        endpoint(speculating.small, "small"), endpoint(speculating.large, "large")
    )
    for examined in (found.small, found.large):
        assert examined.can is not None
        assert examined.can.speculation
        assert examined.acceptance is not None
        assert not examined.can.chosen_logprobs
    assert any("large: no chosen logprobs" in note for note in map(str, found.findings))
