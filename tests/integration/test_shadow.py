"""Shadow checks on real servers: right steps pass in any wording, and wrong ones do not."""

from __future__ import annotations

import re
from contextlib import nullcontext
from dataclasses import replace

import pytest

from stepspec import Solver
from stepspec.api import SHADOW_QUESTIONS
from stepspec.evals.testbed.solving_pair import fresh_tasks
from stepspec.orchestrator import Chain
from stepspec.orchestrator.endpoints import GREEDY
from stepspec.orchestrator.events import Committed, Event
from stepspec.orchestrator.feedback.shadow import Finding, ShadowJudge

from .conftest import Pair

pytestmark = pytest.mark.servers


async def test_a_shadow_distinguishes_right_steps_from_wrong_ones(pair: Pair) -> None:
    right, wrong = list[Finding | None](), list[Finding | None]()
    async with Solver(pair.small.base_url, pair.large.base_url, sampling=GREEDY) as solver:
        check = ShadowJudge(solver.large, *SHADOW_QUESTIONS, GREEDY, lambda event: None, nullcontext)
        for task in fresh_tasks(3, 5):
            events: list[Event] = []
            await solver.solve(task.problem, policy="large", observe=events.append)
            chain = Chain.of(task.problem)
            for step in (event.step for event in events if isinstance(event, Committed)):
                numbers = list(re.finditer(r"\d+", step.text))
                if step.stop == "delimiter" and numbers:
                    last = numbers[-1]
                    text = f"{step.text[: last.start()]}{int(last.group()) + 1}{step.text[last.end() :]}"
                    right.append(await check(chain, step))
                    wrong.append(await check(chain, replace(step, text=text, tokens=())))
                chain = chain.extend(step)
    assert len(right) > 5
    assert all(finding is not None for finding in (*right, *wrong))
    assert sum(finding.agreed for finding in right if finding) >= 0.9 * len(right)
    assert sum(finding.agreed for finding in wrong if finding) <= 0.1 * len(wrong)
    assert sum(finding.own for finding in (*right, *wrong) if finding) >= 0.9 * len((*right, *wrong))
