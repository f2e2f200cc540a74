"""Loads on a clock that jumps, with scripted solvers: what is counted, and failures."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

from lab.crowd import Timing, attempt, run_block
from stepspec import Solution, Solver
from stepspec.evals.arms import SHIPPED
from stepspec.evals.grading.graders import Answer
from stepspec.evals.sample import Task
from stepspec.orchestrator.chain import Step
from stepspec.orchestrator.endpoints.request_context import CACHE
from stepspec.orchestrator.errors import EndpointUnavailable
from stepspec.orchestrator.events import Answering, Committed, Observer, Started
from stepspec.orchestrator.run_options import RunOptions
from stepspec.orchestrator.trace import Stopwatch
from stepspec.settings import Settings

from ..evals.scripted import solution
from ..fakes import run

TASKS = [Task(f"problem {number}", Answer("7", "exact")) for number in range(8)]
OTHERS = [Task(f"other {number}", Answer("7", "exact")) for number in range(4)]
SECONDS = {"large": 4.0, "specreason": 2.0}


@dataclass
class PacedSolver:
    """
    Solves a problem in the *seconds* of its policy; *fails* may raise in the place of an answer.
    """

    seconds: Callable[[str, str], float] = lambda policy, problem: SECONDS[policy]
    fails: Callable[[str, str], None] = lambda policy, problem: None
    settings: Settings = field(default_factory=Settings)
    solved: list[str] = field(default_factory=list[str])
    seeds: dict[str, set[int | None]] = field(default_factory=dict[str, set[int | None]])
    caches: dict[str, set[str | None]] = field(default_factory=dict[str, set[str | None]])
    open: int = 0
    most: int = 0
    warm: int = 0

    async def solve(
        self, problem: str, run: RunOptions, *, observe: Observer, clock: Stopwatch
    ) -> Solution:
        self.open += 1
        self.most = max(self.most, self.open)
        self.seeds.setdefault(problem, set()).add(run.sampling.seed)
        self.caches.setdefault(run.policy, set()).add(CACHE.get().get("cache_salt"))
        seconds = self.seconds(run.policy, problem)
        try:
            observe(Started((), run.policy))
            await asyncio.sleep(seconds / 4)
            observe(Committed(0, Step("a", "small")))
            self.fails(run.policy, problem)
            await asyncio.sleep(seconds / 2)
            observe(Answering("7"))
            observe(Answering("."))
            await asyncio.sleep(seconds / 4)
            self.solved.append(problem)
            return solution("7", seconds=seconds)
        finally:
            self.open -= 1

    async def warm_up(self) -> None:
        self.warm += 1

    models = {"small": "tiny", "large": "big"}  # noqa: RUF012

    @property
    def large(self) -> Any:
        return type("Model", (), {"name": "big"})

    @property
    def solver(self) -> Solver:
        return cast("Solver", self)


def block_of(
    solver: PacedSolver,
    concurrency: int,
    counted: Sequence[Task] = TASKS[:6],
    deadline: float = 100.0,
) -> tuple[Sequence[Timing], float]:
    """Run one block; return its timings and the seconds that it took."""
    solving = partial(attempt, solver.solver, SHIPPED, deadline=deadline)
    block, seconds = run(run_block(concurrency, counted, OTHERS, solving, 3))
    assert solver.open == 0
    return block, seconds


def test_a_closed_loop_keeps_the_number_of_problems_from_the_first_counted_to_the_last() -> None:
    solver = PacedSolver()
    block, seconds = block_of(solver, 3)
    # Three to warm up from 0 to 2 s, the counted six from 2 to 6 s.
    assert (seconds, solver.most) == (6.0, 3)
    assert {(timing.latency, timing.first_step, timing.first_answer) for timing in block} == {
        (2.0, 0.5, 1.5)
    }
    assert {timing.tokens for timing in block} == {40}
    assert sorted(solver.solved[:3]) == ["other 0", "other 1", "other 2"]


def test_other_problems_keep_up_the_load_until_the_last_counted_one_has_ended() -> None:
    solver = PacedSolver(lambda policy, problem: 9.0 if problem == "problem 0" else 2.0)
    block, seconds = block_of(solver, 2, TASKS[:2])
    assert [timing.latency for timing in block] == [9.0, 2.0]
    # Beside the long one: problem 1, and others that end 4, 6 and 8 s after it began. The fifth is
    # cancelled.
    assert seconds == 2.0 + 9.0
    assert solver.solved == [
        "other 0",
        "other 1",
        "problem 1",
        "other 2",
        "other 3",
        "other 0",
        "problem 0",
    ]


def test_a_run_that_takes_too_long_has_failed_and_is_cancelled() -> None:
    solver = PacedSolver(lambda policy, problem: 500.0 if problem == "problem 1" else 2.0)
    block, _ = block_of(solver, 2, TASKS[:3], deadline=5.0)
    assert [timing.failure for timing in block] == ["", "no answer within 5 s", ""]
    assert block[1].latency == 5.0
    assert "problem 1" not in solver.solved


def test_a_failed_problem_is_counted_and_says_why() -> None:
    def fails(policy: str, problem: str) -> None:
        if problem == "problem 1":
            raise EndpointUnavailable("gone", role="small", url="http://a")

    block, _ = block_of(PacedSolver(fails=fails), 2, TASKS[:3])
    right = [timing.sample is not None and timing.sample.correct for timing in block]
    assert right == [True, False, True]
    assert block[1].failure.startswith("the small model at ")
    assert block[1].failure.endswith("gone")
    assert block[1].latency == 0.5


def test_a_problem_has_the_same_seed_under_every_load() -> None:
    first, second = PacedSolver(), PacedSolver()
    block_of(first, 2)
    block_of(second, 3)
    counted = [task.problem for task in TASKS[:6]]
    assert [first.seeds[name] for name in counted] == [second.seeds[name] for name in counted]
    assert all(len(first.seeds[name]) == 1 for name in counted)
