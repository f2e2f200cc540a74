"""
Every arm on every problem, once, whatever happens in between; also with many workers, some of which
die.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from stepspec import Sampling, Solution
from stepspec.cli.eval import arms
from stepspec.evals.arms import LARGE, SMALL
from stepspec.evals.grading.graders import Answer, Graders, Mark
from stepspec.evals.plan import Plan, Trial, identity, trials
from stepspec.evals.runner import MAX_LOST, LocalWorker, WorkerLost, local_worker, run
from stepspec.evals.sample import Arm, Sample, Task
from stepspec.evals.store import SampleStore
from stepspec.orchestrator.answer import extract
from stepspec.orchestrator.budget import Budget
from stepspec.orchestrator.errors import ContextTooLong, WorkersLost
from stepspec.settings import Settings

from .scripted import ScriptedSolver, SolveCall, solution

TASKS = tuple(
    Task(f"problem {number}", Answer(str(number), "exact"), name=f"own/{number}")
    for number in range(4)
)
ARMS = arms(["specreason", "bild:scale=step"], ["large", "small"])
SETTINGS = Settings.model_validate({"small": "http://small:1", "large": "http://large:1"})


def plan(
    *competing: Arm, repeats: int = 1, concurrency: int = 1, tasks: tuple[Task, ...] = TASKS
) -> Plan:
    return Plan(
        tasks,
        competing or ARMS,
        Sampling(temperature=0.6),
        Budget(tokens=512),
        repeats,
        7,
        concurrency,
    )


def right(call: SolveCall) -> Solution:
    return solution(call.problem.split()[-1])


async def take(
    solver: ScriptedSolver, plan: Plan, path: Path, *, traces: Path | None = None
) -> list[Sample]:
    """Take what the file at *path* does not have; return what is new."""
    new: list[Sample] = []
    with SampleStore(path, identity(plan)) as samples:
        worker = LocalWorker(solver.solver, plan)
        await run(
            [lambda: nullcontext(worker)],
            plan,
            Graders(),
            samples,
            traces=traces,
            on_sample=new.append,
        )
    return new


def kept(path: Path, plan: Plan) -> dict[tuple[int, str], Sample]:
    return SampleStore(path, identity(plan)).done


async def test_arms_take_turns_problem_by_problem(tmp_path: Path) -> None:
    solver = ScriptedSolver(right)
    await take(solver, plan(), tmp_path / "samples.jsonl")
    policies = [call.policy for call in solver.calls]
    assert policies[:4] == ["large", "small", "specreason", "bild"]
    assert policies[4:8] == ["small", "specreason", "bild", "large"]
    assert [call.problem for call in solver.calls] == [task.problem for task in TASKS for _ in ARMS]


async def test_all_arms_share_the_seed_and_the_budget_and_no_two_samples_share_a_seed(
    tmp_path: Path,
) -> None:
    solver = ScriptedSolver(right)
    samples = await take(solver, plan(repeats=3), tmp_path / "samples.jsonl")
    seeds = Counter((sample.name, sample.seed) for sample in samples)
    assert len({seed for _, seed in seeds}) == len(seeds) == 12
    assert set(seeds.values()) == {len(ARMS)}
    assert [call.sampling.seed for call in solver.calls] == [sample.seed for sample in samples]
    assert {(call.budget, call.sampling.temperature) for call in solver.calls} == {
        (Budget(512), 0.6)
    }


@pytest.mark.parametrize("before", [0, 10])
async def test_an_interrupted_run_resumes_at_the_next_sample(tmp_path: Path, before: int) -> None:
    full = tmp_path / "whole.jsonl"
    cut = tmp_path / "cut.jsonl"
    await take(ScriptedSolver(right), plan(), full)

    class Enough(BaseException):
        """A power cut."""

    def until(call: SolveCall) -> Solution:
        if len(solver.calls) > before:
            raise Enough
        return right(call)

    solver = ScriptedSolver(until)
    with pytest.raises(BaseException) as caught:  # noqa: PT011  # a group of it
        await take(solver, plan(), cut)
    assert caught.type in (Enough, BaseExceptionGroup)
    rest = ScriptedSolver(right)
    await take(rest, plan(), cut)
    assert len(rest.calls) == len(TASKS) * len(ARMS) - before
    assert kept(cut, plan()) == kept(full, plan())
    assert await take(rest, plan(), cut) == []


async def test_no_more_runs_go_on_than_are_wanted(tmp_path: Path) -> None:
    solver = ScriptedSolver(right, gate=asyncio.Semaphore(0))
    wanted = plan(LARGE, SMALL, concurrency=3)
    going = asyncio.create_task(take(solver, wanted, tmp_path / "samples.jsonl"))
    assert solver.gate is not None
    for _ in range(len(TASKS) * 2):
        for _ in range(50):
            await asyncio.sleep(0)
        solver.gate.release()
    await going
    assert solver.most == 3
    assert len(kept(tmp_path / "samples.jsonl", wanted)) == len(TASKS) * 2


async def test_every_sample_has_an_outcome(tmp_path: Path) -> None:
    outcomes = {
        "problem 0": solution("0"),
        "problem 1": solution(""),  # though its thinking has a box
        "problem 2": solution("2", reason="length"),
    }

    def script(call: SolveCall) -> Solution:
        if call.problem not in outcomes:
            raise ContextTooLong("no room", role="large")
        return outcomes[call.problem]

    path = tmp_path / "samples.jsonl"
    wanted = plan(LARGE)
    await take(ScriptedSolver(script), wanted, path)
    found = [kept(path, wanted)[number, LARGE.name] for number in range(4)]
    assert [sample.outcome for sample in found] == ["right", "wrong", "truncated", "failed"]
    assert [sample.correct for sample in found] == [True, False, True, False]
    assert found[0].answer == r"\boxed{0}"
    assert found[0].first == 0.25
    assert [(step.fate, step.grade) for step in found[0].steps] == [
        ("kept", 8.0),
        ("rejected", 2.0),
    ]
    assert found[3].first is None


class Multiple:
    """A gold of its own, as a benchmark may bring along: it accepts every even number."""

    async def grade(self, text: str, graders: Graders) -> Mark:
        return "right" if extract(text).isdigit() and int(extract(text)) % 2 == 0 else "wrong"

    def record(self) -> Mapping[str, Any]:
        return {"divisor": 2}

    def __str__(self) -> str:
        return "an even number"


async def test_a_benchmark_may_bring_its_own_check(tmp_path: Path) -> None:
    tasks = tuple(Task(f"problem {number}", Multiple()) for number in range(3))
    samples = await take(
        ScriptedSolver(right), plan(LARGE, tasks=tasks), tmp_path / "samples.jsonl"
    )
    assert [sample.outcome for sample in samples] == ["right", "wrong", "right"]


async def test_every_arm_warms_up_on_something_short() -> None:
    solver = ScriptedSolver(right)
    async with local_worker(solver.solver, plan()):
        pass
    assert [call.policy for call in solver.calls] == [arm.policy for arm in ARMS]
    assert all(call.budget.tokens < 100 for call in solver.calls)


def test_trials_are_numbered_by_problem_and_repeat() -> None:
    numbers = [(trial.number, trial.task.name) for trial in trials(plan(LARGE, repeats=2))]
    assert numbers[:3] == [(0, "own/0"), (1, "own/0"), (2, "own/1")]


@dataclass
class Hired:
    """
    A post whose workers die of some trials; *names* are those of the workers that were there, in
    order.
    """

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

    async def solve(self, trial: Trial, trace_to: Path | None) -> Solution | None:
        post = self.post
        post.taken.append(trial.place)
        if post.taken.count(trial.place) <= post.deadly.get(trial.place, 0):
            self.gone.set()
        solving = asyncio.create_task(
            LocalWorker(post.solver.solver, post.plan).solve(trial, trace_to)
        )
        dying = asyncio.create_task(self.gone.wait())
        await asyncio.wait([solving, dying], return_when=asyncio.FIRST_COMPLETED)
        dying.cancel()
        if self.gone.is_set():
            solving.cancel()
            raise WorkerLost("killed")
        return await solving


async def share(posts: list[Hired], plan: Plan, path: Path) -> None:
    with SampleStore(path, identity(plan)) as samples:
        await run(posts, plan, Graders(), samples)


@pytest.mark.parametrize(("posts", "concurrency"), [(1, 3), (5, 3)])
async def test_many_workers_produce_the_samples_of_one(
    tmp_path: Path, posts: int, concurrency: int
) -> None:
    accepted = {f"problem {number}": number * 3 for number in range(4)}

    def script(call: SolveCall) -> Solution:
        return solution(call.problem.split()[-1], accepted=accepted[call.problem])

    wanted = plan(concurrency=concurrency)
    await take(ScriptedSolver(script), wanted, tmp_path / "one.jsonl")
    staff = [Hired(ScriptedSolver(script), wanted, {}) for _ in range(posts)]
    await share(staff, wanted, tmp_path / "many.jsonl")
    assert kept(tmp_path / "many.jsonl", wanted) == kept(tmp_path / "one.jsonl", wanted)
    assert sorted(place for post in staff for place in post.taken) == sorted(
        kept(tmp_path / "one.jsonl", wanted)
    )


@pytest.mark.parametrize(("posts", "concurrency"), [(1, 4), (3, 1)])
async def test_the_trials_of_a_dead_worker_are_solved_by_others_once(
    tmp_path: Path, posts: int, concurrency: int
) -> None:
    wanted = plan(concurrency=concurrency)
    deadly = {(0, "specreason"): 1, (2, "small alone"): 1}
    staff = [Hired(ScriptedSolver(right), wanted, deadly) for _ in range(posts)]
    for other in staff[1:]:
        other.taken = staff[0].taken  # A trial is as deadly to one as to the other.
    await share(staff, wanted, tmp_path / "cut.jsonl")
    await take(ScriptedSolver(right), wanted, tmp_path / "whole.jsonl")
    assert kept(tmp_path / "cut.jsonl", wanted) == kept(tmp_path / "whole.jsonl", wanted)
    assert len((tmp_path / "cut.jsonl").read_bytes().splitlines()) == 1 + len(TASKS) * len(ARMS)
    assert sum(len(post.names) for post in staff) == posts + 2


@settings(deadline=None, max_examples=40)
@given(
    st.dictionaries(
        st.tuples(st.integers(0, 3), st.sampled_from([arm.name for arm in ARMS])),
        st.integers(1, MAX_LOST - 1),
        max_size=1,
    ),
    st.integers(1, 4),
    st.integers(1, 4),
    st.integers(0, 4),
)
@example({(2, "specreason"): 2}, 4, 2, 3)
def test_whoever_dies_every_trial_has_one_sample_and_the_run_ends(
    deadly: dict[tuple[int, str], int], posts: int, concurrency: int, problems: int
) -> None:
    wanted = plan(concurrency=concurrency, tasks=TASKS[:problems])

    async def main(path: Path) -> None:
        staff = [Hired(ScriptedSolver(right), wanted, deadly) for _ in range(posts)]
        for other in staff[1:]:
            other.taken = staff[0].taken
        async with asyncio.timeout(60):
            await share(staff, wanted, path)

    with TemporaryDirectory() as folder:
        path = Path(folder, "samples.jsonl")
        asyncio.run(main(path))
        assert len(path.read_bytes().splitlines()) == 1 + problems * len(ARMS)
        assert set(kept(path, wanted)) == {trial.place for trial in trials(wanted)}


async def test_the_trials_of_a_lost_worker_precede_new_ones(tmp_path: Path) -> None:
    wanted = plan(concurrency=3)
    post = Hired(ScriptedSolver(right), wanted, {(1, "specreason"): 1})
    await share([post], wanted, tmp_path / "samples.jsonl")
    places = [trial.place for trial in trials(wanted)]
    lost = post.taken.index((1, "specreason"))
    held = {place for place in post.taken[: lost + 3] if post.taken.count(place) > 1}
    assert (1, "specreason") in held
    again = [place for place in post.taken[lost + 1 :] if place in held]
    assert sorted(again[-len(held) :], key=places.index) == again[-len(held) :]
    new = [place for place in places if place not in post.taken[: lost + 3]]
    assert [place for place in post.taken if place in new] == new
    assert max(map(post.taken[lost + 1 :].index, held)) < post.taken[lost + 1 :].index(new[0])


async def test_a_trial_that_kills_three_workers_ends_the_run_and_is_named(tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl"
    wanted = plan(LARGE)
    post = Hired(ScriptedSolver(right), wanted, {(1, LARGE.name): 99})
    with pytest.raises(
        WorkersLost,
        match=r"3 workers were lost while they solved problem 1 \(own/1\) as 'large alone'",
    ):
        await share([post], wanted, path)
    assert len(post.names) == 3
    assert set(kept(path, wanted)) == {(0, LARGE.name)}
    await take(ScriptedSolver(right), wanted, path)
    assert len(kept(path, wanted)) == len(TASKS)
