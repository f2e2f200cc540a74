"""Loads on a clock that jumps, with scripted solvers: what is counted, quantiles, failures."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import pytest

from lab.crowd import Crowd, Timing, attempt, grade_equal, run_block
from lab.load import Cell, quantile, summarise
from stepspec import Solution, Solver
from stepspec.evals.arms import LARGE, SHIPPED
from stepspec.evals.grading.graders import Answer
from stepspec.evals.results import Interval
from stepspec.evals.sample import Arm, Task
from stepspec.orchestrator.chain import Step
from stepspec.orchestrator.endpoints.request_context import CACHE
from stepspec.orchestrator.errors import EndpointUnavailable, StepspecError
from stepspec.orchestrator.events import Answering, Committed, Observer, Started
from stepspec.orchestrator.run_options import RunOptions
from stepspec.orchestrator.trace import Stopwatch
from stepspec.settings import Settings

from ..evals.scripted import solution
from ..fakes import run

TASKS = [Task(f"problem {number}", Answer("7", "exact")) for number in range(8)]
OTHERS = [Task(f"other {number}", Answer("7", "exact")) for number in range(4)]
ARMS = (LARGE, SHIPPED)
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
    arm: Arm = SHIPPED,
) -> tuple[Sequence[Timing], float]:
    """Run one block of *arm*; return its timings and the seconds that it took."""
    solving = partial(attempt, solver.solver, arm, grade_equal, deadline, None, None)
    block, seconds = run(run_block(Crowd(concurrency, counted, OTHERS, solving, 3, 0), arm.name))
    assert solver.open == 0
    return block, seconds


def measured(solver: PacedSolver, concurrency: int) -> list[Cell]:
    """Measure 4 problems in 2 blocks by each arm, and summarise them."""
    halves = TASKS[0:4:2], TASKS[1:4:2]
    timings = {
        arm.name: [t for half in halves for t in block_of(solver, concurrency, half, arm=arm)[0]]
        for arm in ARMS
    }
    return summarise(concurrency, timings)


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


def test_cells_have_latencies_throughput_and_ratios_to_large_alone() -> None:
    solver = PacedSolver()
    large, ours = measured(solver, 2)
    assert [(cell.name, cell.concurrency) for cell in (large, ours)] == [
        (arm.name, 2) for arm in ARMS
    ]
    assert (large.n, large.failed, large.accuracy.value) == (4, 0, 1.0)
    assert (large.problems_per_second.value, ours.problems_per_second.value) == (0.5, 1.0)
    assert (ours.tokens_per_second, ours.first_step, ours.first_answer) == (40.0, 0.5, 1.5)
    assert (ours.latencies["p50"], ours.latencies["p95"]) == (Interval(2.0, 2.0, 2.0), None)
    assert (ours.to_large, ours.throughput_to_large) == (Interval(0.5, 0.5, 0.5), 2.0)
    assert (large.to_large, ours.to_two_large) == (Interval(1.0, 1.0, 1.0), None)
    assert all(len(solver.seeds[task.problem]) == 1 for task in TASKS[:4])
    assert solver.caches == {arm.policy: {arm.name} for arm in ARMS}


def test_some_failed_problems_count_as_wrong_and_have_no_latency() -> None:
    def fails(policy: str, problem: str) -> None:
        if problem == "problem 1" and policy == "specreason":
            raise EndpointUnavailable("gone", role="small", url="http://a")

    large, ours = measured(PacedSolver(fails=fails), 2)
    assert (large.failed, ours.n, ours.failed, ours.accuracy.value) == (0, 4, 1, 0.75)
    # the failed one took 0.5 s
    assert ours.problems_per_second.value == pytest.approx(3 / ((3 * 2.0 + 0.5) / 2))
    assert ours.to_large == Interval(0.5, 0.5, 0.5)


def test_a_server_that_is_gone_ends_the_measurement() -> None:
    def fails(policy: str, problem: str) -> None:
        raise EndpointUnavailable("gone", role="small", url="http://a")

    with pytest.raises(
        StepspecError, match=r"SpecReason: no problem was solved: the small model at .*gone"
    ):
        block_of(PacedSolver(fails=fails), 2)


def test_quantiles_by_rank_and_their_intervals() -> None:
    values = [float(number) for number in range(100, 0, -1)]
    assert quantile(values, 0.5) == Interval(50.0, 41.0, 60.0)  # 50 - 9.8 and 50 + 9.8, rounded up
    assert quantile(values, 0.99) == Interval(99.0, 98.0, 100.0)
    assert quantile(values[:99], 0.99) is None
    assert quantile(values[:20], 0.95) is not None
    assert quantile(values[:19], 0.95) is None
    assert quantile([], 0.5) is None
