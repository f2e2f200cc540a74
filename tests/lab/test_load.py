"""Loads on a clock that jumps, with scripted solvers: what is counted, quantiles, resuming, failures."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

from lab.crowd import (
    Attempt,
    Block,
    BlockStore,
    Crowd,
    Deployment,
    Load,
    Workload,
    attempt,
    grade_equal,
    measure,
)
from lab.load import Cell, quantile, summarise
from stepspec import Solution, Solver
from stepspec.evals.arms import LARGE, SHIPPED
from stepspec.evals.grading.graders import Answer
from stepspec.evals.results import Interval
from stepspec.evals.sample import Arm, Task
from stepspec.orchestrator.chain import Step
from stepspec.orchestrator.endpoints.client import CACHE
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
    """Solves a problem in the *seconds* of its policy; *fails* may raise in the place of an answer."""

    seconds: Callable[[str, str], float] = lambda policy, problem: SECONDS[policy]
    fails: Callable[[str, str], None] = lambda policy, problem: None
    settings: Settings = field(default_factory=Settings)
    solved: list[str] = field(default_factory=list[str])
    seeds: dict[str, set[int | None]] = field(default_factory=dict[str, set[int | None]])
    caches: dict[str, set[str | None]] = field(default_factory=dict[str, set[str | None]])
    open: int = 0
    most: int = 0
    warm: int = 0

    async def solve(self, problem: str, run: RunOptions, *, observe: Observer, clock: Stopwatch) -> Solution:
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


def attempts(solver: PacedSolver, deadline: float = 100.0) -> Callable[[Arm], Attempt]:
    def make(arm: Arm) -> Attempt:
        return partial(attempt, solver.solver, arm, grade_equal, deadline, None, None)

    return make


def block_of(solver: PacedSolver, load: Load, counted: Sequence[Task] = TASKS[:6], deadline: float = 100.0) -> Block:
    crowd = Crowd(load, counted, OTHERS, attempts(solver, deadline)(SHIPPED), 3, 0)
    block, _ = run(crowd.run())
    assert solver.open == 0
    return block


def workload(blocks: int = 2) -> Workload:
    return Workload(TASKS, OTHERS, 4, blocks, 3)


def stored(path: Path, arms: Sequence[Arm] = ARMS, **about: Any) -> BlockStore:
    return BlockStore(path / "load.blocks.jsonl", {"world": "short", **about}, arms)


def measured(solver: PacedSolver, store: BlockStore, loads: Sequence[Load], arms: Sequence[Arm] = ARMS) -> list[Cell]:
    """Measure what *store* lacks of 4 problems in 2 blocks, and summarise it."""
    with store:
        run(measure(Deployment(solver.solver), workload(), loads, arms, store, attempts(solver)))
    return summarise(loads, arms, 2, store.done)


def test_a_closed_loop_keeps_the_number_of_problems_from_the_first_counted_to_the_last() -> None:
    solver = PacedSolver()
    block = block_of(solver, Load(concurrency=3))
    # Three to warm up from 0 to 2 s, the counted six from 2 to 6 s.
    assert (block.seconds, solver.most) == (4.0, 3)
    assert {(timing.latency, timing.first_step, timing.first_answer) for timing in block.timings} == {(2.0, 0.5, 1.5)}
    assert {timing.tokens for timing in block.timings} == {40}
    assert sorted(solver.solved[:3]) == ["other 0", "other 1", "other 2"]


def test_other_problems_keep_up_the_load_until_the_last_counted_one_has_ended() -> None:
    solver = PacedSolver(lambda policy, problem: 9.0 if problem == "problem 0" else 2.0)
    block = block_of(solver, Load(concurrency=2), TASKS[:2])
    assert [timing.latency for timing in block.timings] == [9.0, 2.0]
    # Beside the long one: problem 1, and others that end 4, 6 and 8 s after it began. The fifth is cancelled.
    assert block.seconds == 9.0
    assert solver.solved == ["other 0", "other 1", "problem 1", "other 2", "other 3", "other 0", "problem 0"]


def test_a_run_that_takes_too_long_has_failed_and_is_cancelled() -> None:
    solver = PacedSolver(lambda policy, problem: 500.0 if problem == "problem 1" else 2.0)
    block = block_of(solver, Load(concurrency=2), TASKS[:3], deadline=5.0)
    assert [timing.failure for timing in block.timings] == ["", "no answer within 5 s", ""]
    assert block.timings[1].latency == 5.0
    assert "problem 1" not in solver.solved


def test_cells_have_latencies_throughput_and_ratios_to_large_alone(tmp_path: Path) -> None:
    solver, loads = PacedSolver(), [Load(concurrency=1), Load(concurrency=2)]
    cells = measured(solver, stored(tmp_path), loads)
    assert [(cell.name, cell.concurrency) for cell in cells] == [(arm.name, n) for n in (1, 2) for arm in ARMS]
    large, ours = cells[2:]
    assert (large.n, large.failed, large.accuracy.value) == (4, 0, 1.0)
    assert (large.problems_per_second.value, ours.problems_per_second.value) == (0.5, 1.0)
    assert (ours.tokens_per_second, ours.first_step, ours.first_answer) == (40.0, 0.5, 1.5)
    assert (ours.latencies["p50"], ours.latencies["p95"]) == (Interval(2.0, 2.0, 2.0), None)
    assert (ours.to_large, ours.throughput_to_large) == (Interval(0.5, 0.5, 0.5), 2.0)
    assert (large.to_large, ours.to_two_large) == (Interval(1.0, 1.0, 1.0), None)


def test_arms_solve_the_same_problems_by_the_same_seeds_and_loads_others(tmp_path: Path) -> None:
    solver = PacedSolver()
    measured(solver, stored(tmp_path), [Load(concurrency=1), Load(concurrency=2)])
    counted = [problem for problem in solver.solved if problem.startswith("problem")]
    assert sorted(counted) == sorted(task.problem for task in TASKS for _ in ARMS)
    assert all(len(solver.seeds[task.problem]) == 1 for task in TASKS)
    assert workload(2).counted(1, 0) == [TASKS[4], TASKS[6]]
    assert replace(workload(1), problems=10).counted(1, 0)[:2] == [TASKS[2], TASKS[3]]  # they repeat
    assert solver.caches == {arm.policy: {arm.name} for arm in ARMS}


def test_the_arms_take_turns_with_every_block(tmp_path: Path) -> None:
    store = stored(tmp_path)
    measured(PacedSolver(), store, [Load(concurrency=1)])
    places = [(arm, block) for _, arm, block in store.done]
    assert places == [(LARGE.name, 0), (SHIPPED.name, 0), (SHIPPED.name, 1), (LARGE.name, 1)]


def test_a_measurement_goes_on_where_it_stopped(tmp_path: Path) -> None:
    loads = [Load(concurrency=2), Load(concurrency=1)]
    whole = measured(PacedSolver(), stored(tmp_path), loads)
    path = tmp_path / "load.blocks.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-2]) + lines[-2][:50])  # the last block is missing, the one before it incomplete
    solver = PacedSolver()
    again = measured(solver, stored(tmp_path), loads)
    for cell, before in zip(again, whole, strict=True):
        assert (cell.name, cell.load, cell.n) == (before.name, before.load, before.n)
        assert cell.problems_per_second.value == pytest.approx(before.problems_per_second.value)
    assert len([problem for problem in solver.solved if problem.startswith("problem")]) == 2 * 2
    rest = PacedSolver()
    measured(rest, stored(tmp_path), loads)
    assert rest.solved == []


OTHER_ARMS = (LARGE, Arm.of(SHIPPED.name, "specreason", {"threshold": 3}))


def test_some_failed_problems_count_as_wrong_and_have_no_latency(tmp_path: Path) -> None:
    def fails(policy: str, problem: str) -> None:
        if problem == "problem 1" and policy == "specreason":
            raise EndpointUnavailable("gone", role="small", url="http://a")

    large, ours = measured(PacedSolver(fails=fails), stored(tmp_path), [Load(concurrency=2)])
    assert (large.failed, ours.n, ours.failed, ours.accuracy.value) == (0, 4, 1, 0.75)
    assert ours.problems_per_second.value == pytest.approx(3 / ((3 * 2.0 + 0.5) / 2))  # the failed one took 0.5 s
    assert ours.to_large == Interval(0.5, 0.5, 0.5)


def test_a_server_that_is_gone_ends_the_measurement_and_keeps_what_was_measured(tmp_path: Path) -> None:
    def fails(policy: str, problem: str) -> None:
        if policy == "specreason":
            raise EndpointUnavailable("gone", role="small", url="http://a")

    store = stored(tmp_path)
    with pytest.raises(
        StepspecError, match=r"'SpecReason', 2 at once: no problem was solved: the small model at .*gone"
    ):
        measured(PacedSolver(fails=fails), store, [Load(concurrency=2)])
    assert list(store.done) == [("2 at once", LARGE.name, 0)]


def test_quantiles_by_rank_and_their_intervals() -> None:
    values = [float(number) for number in range(100, 0, -1)]
    assert quantile(values, 0.5) == Interval(50.0, 41.0, 60.0)  # 50 - 9.8 and 50 + 9.8, rounded up
    assert quantile(values, 0.99) == Interval(99.0, 98.0, 100.0)
    assert quantile(values[:99], 0.99) is None
    assert quantile(values[:20], 0.95) is not None
    assert quantile(values[:19], 0.95) is None
    assert quantile([], 0.5) is None
