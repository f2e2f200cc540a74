"""Chains of thousands of tokens, on the pair that was trained for them."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from lab.worlds import LONG, find_world, fresh_tasks
from stepspec import Solver
from stepspec.evals.testbed.servers import miniature_servers
from stepspec.orchestrator.endpoints import GREEDY

from .conftest import Pair, serving

pytestmark = pytest.mark.servers


@pytest.fixture(scope="module")
def long_pair(forked: tuple[str, ...]) -> Generator[Pair]:
    with serving(miniature_servers("off", world=find_world(LONG)), forked) as served:
        yield Pair(served["large"], served["small"])


async def test_chains_of_thousands_of_tokens_are_solved_by_both_models(long_pair: Pair) -> None:
    _, task = fresh_tasks(2, 21, world=LONG)
    async with Solver(
        long_pair.small.base_url, long_pair.large.base_url, sampling=GREEDY, auto=False
    ) as solver:
        solution = await solver.solve(task.problem, policy="bild", options={"scale": "step"})
    kept = [step for step in solution.steps if step.fate == "kept"]
    assert solution.answer == str(task.gold)
    assert len(kept) > 32
    assert solution.ledger.small.kept + solution.ledger.large.kept > 1500
    assert {step.author for step in kept} == {"small", "large"}
