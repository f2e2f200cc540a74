"""The peer "SpecReason as published", on stand-ins for its servers."""

from __future__ import annotations

import pytest

from lab import bench
from lab.published_specreason import PUBLISHED, PublishedSpecReason
from stepspec import Endpoint, Sampling
from stepspec.evals.arms import measure
from stepspec.evals.grading.graders import Answer
from stepspec.evals.sample import Task
from stepspec.orchestrator.events import Called, Event
from stepspec.orchestrator.solution import Solution

from ..stand_in import StandIn

PROBLEM = "What is 6 x 7?"


async def solve(accept: float, events: list[Event]) -> Solution:
    small, large = StandIn(steps=3, step_tokens=8), StandIn(steps=3, step_tokens=8, accept=accept)
    async with small.listening() as one, large.listening() as two:
        endpoints = Endpoint(role="small", url=one), Endpoint(role="large", url=two)
        async with PublishedSpecReason(*endpoints, sampling=Sampling(temperature=0.0, top_p=1.0)) as solver:
            return await solver.solve(PROBLEM, observe=events.append)


@pytest.mark.parametrize(
    ("accept", "author", "fates"), [(1.0, "small", ["kept"] * 3), (0.0, "large", ["rejected", "kept"] * 3)]
)
async def test_a_draft_is_kept_or_rewritten_by_its_grade(accept: float, author: str, fates: list[str]) -> None:
    solution = await solve(accept, [])
    assert [step.fate for step in solution.steps] == fates
    assert {step.author for step in solution.steps if step.fate == "kept"} == {author}
    assert (solution.answer, solution.finish_reason) == ("42", "stop")


async def test_its_requests_are_sent_one_after_the_other() -> None:
    events: list[Event] = []
    solution = await solve(0.0, events)
    calls = [event for event in events if isinstance(event, Called)]
    assert [(call.role, call.verb) for call in calls] == [
        ("small", "write"),
        ("large", "ask"),
        ("large", "write"),
    ] * 3 + [("large", "write")]
    ends = [call.started + call.seconds for call in calls]
    assert all(end <= call.started for end, call in zip(ends, calls[1:], strict=False))
    assert solution.ledger.large.kept >= 3 * 7


async def test_it_is_an_arm_of_the_bench() -> None:
    assert PUBLISHED in bench.chosen([PUBLISHED.name], baselines=False)
    greedy = Sampling(temperature=0.0, top_p=1.0)
    async with StandIn(steps=2).listening() as url, PublishedSpecReason(url, url, sampling=greedy) as solver:
        (sample,) = await measure(solver, [PUBLISHED], [Task(PROBLEM, Answer("42", "exact"))])
    assert (sample.arm, sample.correct, len(sample.steps)) == (PUBLISHED.name, True, 2)
