"""Methods that do not need a server of their own, on the miniature pair."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

import pytest

from stepspec import Solution, Solver
from stepspec.evals.sample import Task
from stepspec.evals.testbed.solving_pair import fresh_tasks
from stepspec.orchestrator.chain import THINK_END
from stepspec.orchestrator.endpoints import GREEDY

from .conftest import Pair

pytestmark = pytest.mark.servers


def solver(pair: Pair) -> Solver:
    return Solver(pair.small.base_url, pair.large.base_url, sampling=GREEDY, auto=False)


@pytest.mark.parametrize(
    ("policy", "options"),
    [
        ("reflective", {}),
        ("reflective", {"accept": "typical"}),
        ("lookahead-reasoning", {}),
        ("relay", {"cues": ["On Monday", "Alternatively,", "Let me check:"]}),
    ],
)
async def test_a_method_solves_and_both_models_have_their_share(
    pair: Pair, policy: str, options: dict[str, Any]
) -> None:
    tasks = fresh_tasks(5, 3)
    async with solver(pair) as solving:
        solutions = await asyncio.gather(
            *(solving.solve(task.problem, policy=policy, options=options) for task in tasks)
        )
        one_by_one = await solving.solve(tasks[0].problem, policy=policy, options=options, ahead=0)
    right = [
        solution.answer == str(task.gold) for solution, task in zip(solutions, tasks, strict=True)
    ]
    assert sum(right) >= 3
    kept = [step for solution in solutions for step in solution.steps if step.fate == "kept"]
    assert {step.author for step in kept} == {"small", "large"}
    assert one_by_one.thinking == solutions[0].thinking


RIVALS = fresh_tasks(8, 2026)


async def solved_by(pair: Pair, policy: str) -> list[Solution]:
    async with solver(pair) as solving:
        return await asyncio.gather(
            *(solving.solve(task.problem, policy=policy) for task in RIVALS)
        )


async def test_accepted_rivals_replace_repairs_of_specreason(pair: Pair) -> None:
    repaired = await solved_by(pair, "specreason")
    chosen = await solved_by(pair, "choose")
    right = [
        solution.answer == str(task.gold) for solution, task in zip(chosen, RIVALS, strict=True)
    ]
    assert sum(right) >= 6
    assert sum(one.ledger.chosen for one in chosen) >= 1
    for solution in chosen:
        ledger = solution.ledger
        kept = [step for step in solution.steps if step.fate == "kept"]
        repairs = [step for step in kept if step.reason]
        assert {step.author for step in repairs} <= {"large"}
        ended = [step.text for step in kept if step.author == "large" and not step.reason]
        assert ended in ([], [THINK_END])  # by the large model, as no small step ends the thinking
        blank = [step for step in kept if not step.text.strip()]  # nobody judges it
        drafts = len(kept) - len(ended) - len(blank)
        assert (ledger.drafts, ledger.accepted) == (drafts, drafts - len(repairs))
    assert sum(one.ledger.large.kept for one in chosen) < sum(
        one.ledger.large.kept for one in repaired
    )


@pytest.mark.parametrize(
    "policy",
    ["specreason", "bild", "reflective", "choose", "lookahead-reasoning", "speculative-thinking"],
)  # which differ in their requests; for all methods see `test_reason`
async def test_working_ahead_changes_nothing_but_the_time(pair: Pair, policy: str) -> None:
    tasks = fresh_tasks(3, 2)
    async with solver(pair) as solving:

        async def solve(task: Task, ahead: int, hedge: float) -> tuple[str, str]:
            solution = await solving.solve(task.problem, policy=policy, ahead=ahead, hedge=hedge)
            return solution.thinking, solution.text

        one_by_one = await asyncio.gather(*(solve(task, 0, 0.0) for task in tasks))
        assert await asyncio.gather(*(solve(task, 3, 1.0) for task in tasks)) == one_by_one


@pytest.mark.parametrize(
    ("ending", "answer"), [("large", "method"), ("large", "small"), ("small", "large")]
)
async def test_whoever_ends_and_answers_the_chain_is_the_same_at_any_lookahead(
    pair: Pair, ending: Literal["large", "small"], answer: Literal["large", "method", "small"]
) -> None:
    tasks = fresh_tasks(2, 3)
    async with solver(pair) as solving:

        async def solve(problem: str, ahead: int) -> tuple[str, str, str]:
            solution = await solving.solve(problem, ending=ending, answer=answer, ahead=ahead)
            kept = [step for step in solution.steps if step.fate == "kept"]
            tail = "".join(step.text for step in kept).removeprefix(solution.thinking)
            assert tail.strip() == (solution.text if answer == "method" else "")
            last = next(step for step in kept if step.text.endswith(THINK_END))
            assert last.author == "large" or ending != "large"
            return solution.thinking, solution.text, solution.finish_reason

        problems = [task.problem for task in tasks]
        one_by_one = await asyncio.gather(*(solve(problem, 0) for problem in problems))
        assert await asyncio.gather(*(solve(problem, 3) for problem in problems)) == one_by_one
    assert all(reason == "stop" and "boxed" in text for _, text, reason in one_by_one)


async def test_a_relay_leaves_no_large_token_unused(pair: Pair) -> None:
    async with solver(pair) as solving:
        options = {"cues": ["On Monday", "On Tuesday"]}
        solution = await solving.solve(
            fresh_tasks(1, 3)[0].problem, policy="relay", options=options, answer="large"
        )
    # What was on its way when a cue was found: vLLM looks for these itself, so that is next to
    # nothing.
    assert solution.ledger.large.discarded <= 4
