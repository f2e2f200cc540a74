"""Many workers for one plan: the others solve the trials of a dead worker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from stepspec import Solution
from stepspec.evals.arms import LARGE
from stepspec.evals.grading.graders import Graders
from stepspec.evals.plan import Plan, Trial, identity
from stepspec.evals.runner import LocalWorker, WorkerLost, WorkerSlot, run
from stepspec.evals.sample import SolvedTask
from stepspec.evals.store import SampleStore
from stepspec.orchestrator.errors import WorkersLost

from .scripted import ScriptedSolver, SolveCall, solution
from .test_runner import ARMS, CONTROL, TASKS, kept, plan, right, take


@dataclass
class Hired:
    """A post whose workers die of some trials; *names* are those of the workers that were there, in order."""

    solver: ScriptedSolver
    plan: Plan
    deadly: Mapping[tuple[int, str], int]  # how many workers each of them takes with it
    names: list[str] = field(default_factory=list[str])
    taken: list[tuple[int, str]] = field(default_factory=list[tuple[int, str]])

    @asynccontextmanager
    async def __call__(self) -> AsyncGenerator[Mortal]:
        self.names.append(f"{id(self)}/{len(self.names)}")
        yield Mortal(self, self.names[-1])


@dataclass
class Mortal:
    """A worker who is gone for good once it is gone."""

    post: Hired
    name: str
    gone: asyncio.Event = field(default_factory=asyncio.Event)

    async def solve(self, trial: Trial, options: Mapping[str, Any], trace_to: Path | None) -> SolvedTask:
        post = self.post
        post.taken.append(trial.place)
        if post.taken.count(trial.place) <= post.deadly.get(trial.place, 0):
            self.gone.set()
        solving = asyncio.create_task(LocalWorker(post.solver.solver, post.plan).solve(trial, options, trace_to))
        dying = asyncio.create_task(self.gone.wait())
        await asyncio.wait([solving, dying], return_when=asyncio.FIRST_COMPLETED)
        dying.cancel()
        if self.gone.is_set():
            solving.cancel()
            raise WorkerLost("killed")
        return await solving


async def share(posts: list[Hired], plan: Plan, path: Path) -> None:
    async with Graders() as graders:
        with SampleStore(path, identity(plan)) as samples:
            await run(posts, plan, graders, samples)


@pytest.mark.parametrize("concurrency", [1, 3])
@pytest.mark.parametrize("posts", [1, 2, 5])
async def test_many_workers_produce_the_samples_of_one(tmp_path: Path, posts: int, concurrency: int) -> None:
    accepted = {f"problem {number}": number * 3 for number in range(4)}

    def script(call: SolveCall) -> Solution:
        return solution(call.problem.split()[-1], accepted=accepted[call.problem])

    wanted = plan(concurrency=concurrency)
    await take(ScriptedSolver(script), wanted, tmp_path / "one.jsonl")
    staff = [Hired(ScriptedSolver(script), wanted, {}) for _ in range(posts)]
    await share(staff, wanted, tmp_path / "many.jsonl")
    assert kept(tmp_path / "many.jsonl", wanted) == kept(tmp_path / "one.jsonl", wanted)
    assert sorted(place for post in staff for place in post.taken) == sorted(kept(tmp_path / "one.jsonl", wanted))


@pytest.mark.parametrize("concurrency", [1, 4])
@pytest.mark.parametrize("posts", [1, 3])
async def test_the_trials_of_a_dead_worker_are_solved_by_others_once(
    tmp_path: Path, posts: int, concurrency: int
) -> None:
    wanted = plan(concurrency=concurrency)
    deadly = {(0, "specreason"): 1, (2, CONTROL.name): 1}
    staff = [Hired(ScriptedSolver(right), wanted, deadly) for _ in range(posts)]
    if posts > 1:
        for other in staff[1:]:
            other.taken = staff[0].taken  # A trial is as deadly to one as to the other.
    await share(staff, wanted, tmp_path / "cut.jsonl")
    await take(ScriptedSolver(right), wanted, tmp_path / "whole.jsonl")
    assert kept(tmp_path / "cut.jsonl", wanted) == kept(tmp_path / "whole.jsonl", wanted)
    assert len((tmp_path / "cut.jsonl").read_bytes().splitlines()) == 1 + len(TASKS) * len(ARMS)
    assert sum(len(post.names) for post in staff) == posts + 2


async def test_a_trial_that_kills_three_workers_ends_the_run_and_is_named(tmp_path: Path) -> None:
    path, wanted = tmp_path / "samples.jsonl", plan(LARGE)
    post = Hired(ScriptedSolver(right), wanted, {(1, LARGE.name): 99})
    with pytest.raises(
        WorkersLost, match=r"3 workers were lost while they solved problem 1 \(own/1\) as 'large alone'"
    ):
        await share([post], wanted, path)
    assert len(post.names) == 3
    assert set(kept(path, wanted)) == {(0, LARGE.name)}
    await take(ScriptedSolver(right), wanted, path)
    assert len(kept(path, wanted)) == len(TASKS)


async def test_a_slot_without_a_worker_does_not_block_the_others(tmp_path: Path) -> None:
    @asynccontextmanager
    async def empty() -> AsyncGenerator[LocalWorker]:
        await asyncio.Event().wait()
        yield LocalWorker(ScriptedSolver(right).solver, wanted)

    wanted = plan(LARGE)
    async with Graders() as graders:
        with SampleStore(tmp_path / "samples.jsonl", identity(wanted)) as samples:
            posts: list[WorkerSlot] = [empty, Hired(ScriptedSolver(right), wanted, {})]
            await run(posts, wanted, graders, samples)
    assert len(kept(tmp_path / "samples.jsonl", wanted)) == len(TASKS)
