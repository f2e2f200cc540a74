"""A verifier over real vLLM servers: an answer of the miniature pair that is rewritten."""

from __future__ import annotations

from typing import Any

import pytest

from stepspec import Candidate, Rating, Solver
from stepspec.evals.testbed.solving_pair import fresh_tasks
from stepspec.orchestrator.endpoints import GREEDY
from stepspec.orchestrator.events import Answering, AnswerJudged, Event

from .conftest import Pair

pytestmark = pytest.mark.servers
TASK = fresh_tasks(1, 4)[0]


async def test_the_large_model_of_the_pair_rewrites_a_rejected_answer(pair: Pair) -> None:
    seen: list[Candidate] = []

    def second(candidate: Candidate) -> Rating:
        """Reject the first answer, as a program with a bug would be."""
        seen.append(candidate)
        return Rating(float(len(seen) > 1), "the result is not in a box")

    events: list[Event] = []
    critic: dict[str, Any] = {"kind": "function", "function": second, "seconds": 120}
    async with Solver(
        pair.small.base_url, pair.large.base_url, critic=critic, sampling=GREEDY, auto=False
    ) as solver:
        solution = await solver.solve(TASK.problem, observe=events.append)
    verdicts = [event for event in events if isinstance(event, AnswerJudged)]
    assert [each.accepted for each in verdicts] == ([False, True] if len(seen) > 1 else [False])
    assert seen[0].answer == str(TASK.gold)
    assert (
        "".join(event.text for event in events if isinstance(event, Answering))
        == solution.text
        != ""
    )
    assert solution.verified is (len(seen) > 1)
    rejected = [
        step for step in solution.steps if step.fate == "rejected" and step.reason == "answer"
    ]
    assert [(step.author, step.detail) for step in rejected] == [
        ("large", "the result is not in a box")
    ]
