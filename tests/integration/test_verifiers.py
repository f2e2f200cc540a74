"""Verifiers on the real pair: functions, HTTP, and vLLM's structured decisions."""

from __future__ import annotations

from typing import Any

import pytest

from stepspec import Candidate, Solver
from stepspec.evals.testbed.solving_pair import fresh_tasks
from stepspec.orchestrator.endpoints import GREEDY
from stepspec.orchestrator.verifiers import ConnectedVerifier, SystemOneVerifier

from .conftest import Pair

pytestmark = pytest.mark.servers
TASK = fresh_tasks(1, 4)[0]


def solver(pair: Pair, **settings: Any) -> Solver:
    return Solver(pair.small.base_url, pair.large.base_url, sampling=GREEDY, **settings)


async def test_the_models_of_the_pair_serve_structured_decisions(pair: Pair) -> None:
    settings = SystemOneVerifier(url=pair.large.base_url, question="Is the candidate correct?")
    right = Candidate.final(chain := (await_chain()), f"\\boxed{{{TASK.answer}}}")
    async with ConnectedVerifier(settings) as verifier:
        rating = await verifier.rate(right)
        print(rating, chain)
    assert 0 <= rating.score <= 1


def await_chain() -> Any:
    from stepspec.orchestrator import Chain

    return Chain.of(TASK.problem)
