"""Arms that adapt: cut off anywhere and resumed, on however many workers, they are given what they would have been."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from itertools import islice, permutations
from pathlib import Path
from typing import Any

import orjson
import pytest

from stepspec import Sampling, Solution
from stepspec.evals.experiments.arms import LARGE, SMALL, measure
from stepspec.evals.grading.graders import Graders
from stepspec.evals.plan import Plan, identity
from stepspec.evals.runner import run as run_plan
from stepspec.evals.sample import FAILED, Arm, Sample, Task, solve_once
from stepspec.evals.store import SampleStore
from stepspec.evals.taught import Taught
from stepspec.evals.workers import LocalWorker
from stepspec.orchestrator import Chain, reason
from stepspec.orchestrator.budget import Budget
from stepspec.orchestrator.errors import ConfigurationError, ContextTooLong
from stepspec.orchestrator.events import Adapted, Event, Started
from stepspec.orchestrator.feedback.run_stats import RunStats
from stepspec.orchestrator.ledger import Account, Ledger
from stepspec.orchestrator.trace import read
from stepspec.policies import SpecReason
from stepspec.settings import Settings

from ..fakes import run
from ..orchestrator.feedback.test_adaptation import World
from ..test_solver import PROBLEM, serving
from .experiments.test_nested import Silent
from .scripted import ScriptedSolver, solution
from .test_runner import SETTINGS, learners
from .test_workers import Hired

STRICT = Arm("strict", "specreason", {"threshold": 9.0}, ahead=4, adapt=0.2)
LOOSE = Arm("loose", "specreason", {"threshold": 0.0}, ahead=0, adapt=0.1)
FIXED = Arm("fixed", "specreason", {"threshold": 7.0})
CONTROL = Arm("random like loose", "random", ahead=2, adapt=0.05, like="loose")
TASKS = tuple(Task(f"problem {number}", "1") for number in range(7))
TOO_LONG = "problem 3"


@dataclass
class Simulated(ScriptedSolver):
    """Runs the loop itself over scripted models, whose grades depend on the problem, and so does the time it takes."""

    settings: Settings = SETTINGS
    small: Silent = field(default_factory=lambda: Silent("small"))
    large: Silent = field(default_factory=lambda: Silent("large"))

    async def solve(self, problem: str, **choices: Any) -> Solution:
        if problem == TOO_LONG:
            raise ContextTooLong("no room", role="large")
        assert choices["adapt"] == 0.0, "it is not the solver who learns"
        number, observe = int(problem.split()[-1]), choices["observe"]
        chain = Chain.of(problem)
        observe(Started(chain.messages, choices["policy"]))
        world = World(judge=0.5 + number * 7 % 4, steps=12 + number * 5 % 7)
        policy = SpecReason(*world.models(number), threshold=choices["options"].get("threshold", 5.0))
        if choices["policy"] in ("specreason", "random"):
            await reason(policy, chain, ahead=choices["ahead"], observe=observe)
        return solution("1", accepted=number)


def plan(*arms: Arm, concurrency: int = 1) -> Plan:
    sampling = Sampling(temperature=0.6)
    return Plan(TASKS, arms or (LARGE, STRICT, LOOSE, FIXED), "exact", sampling, Budget(512), 1, 7, concurrency)


async def take(path: Path, plan: Plan, posts: Sequence[Any] = ()) -> None:
    worker = LocalWorker(Simulated(lambda asked: solution("1")).solver, plan)
    with SampleStore(path, identity(plan)) as samples:
        async with Graders() as graders:
            taught = learners(plan, samples, len(posts) or 1)
            await run_plan(posts or [lambda: nullcontext(worker)], plan, graders, samples, taught=taught)


def done(path: Path, plan: Plan) -> dict[tuple[int, str], Sample]:
    return SampleStore(path, identity(plan)).done


def seconds(path: Path, plan: Plan, until: float | None = None) -> float:
    """Go on with the plan until it is done, or cut it off; return the seconds that it took."""

    async def main() -> None:
        if until is None:
            await take(path, plan)
            return
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(until):
                await take(path, plan)

    return run(main())[1]


def threads(samples: dict[tuple[int, str], Sample], arm: Arm) -> list[tuple[float | None, int, int]]:
    """The threshold and the depth that the runs of *arm* were given, and after how many runs."""
    given = [samples[number, arm.name].given for number in range(len(TASKS)) if (number, arm.name) in samples]
    return [(one.value, one.ahead, one.runs) for one in given if one is not None]


@pytest.mark.parametrize("concurrency", [1, 3, 8])
def test_cut_off_anywhere_and_resumed_it_comes_to_what_it_would_have_come_to(tmp_path: Path, concurrency: int) -> None:
    wanted, whole = plan(concurrency=concurrency), tmp_path / "whole.jsonl"
    total = seconds(whole, wanted)
    found = done(whole, wanted)
    assert len({value for value, _, _ in threads(found, STRICT)}) > 2  # or there would be nothing to lose
    assert len({(value, ahead) for value, ahead, _ in threads(found, LOOSE)}) > 1
    for cuts in ((0.02,), (0.5, 0.2, 0.3), (0.97,)):
        path = tmp_path / f"{cuts}.jsonl"
        for share in cuts:
            seconds(path, wanted, until=share * total)
        assert len(done(path, wanted)) < len(found)
        seconds(path, wanted)
        assert done(path, wanted) == found


@pytest.mark.parametrize(("concurrency", "behind"), [(1, 1), (4, 1), (5, 2), (8, 2), (12, 3)])
def test_a_run_is_given_what_those_so_far_before_it_taught_and_no_more(
    tmp_path: Path, concurrency: int, behind: int
) -> None:
    wanted, path = plan(concurrency=concurrency), tmp_path / "samples.jsonl"
    assert wanted.behind(1) == behind
    seconds(path, wanted)
    taught = [number for number in range(len(TASKS)) if TASKS[number].problem != TOO_LONG]
    counts = [sum(one <= number - behind for one in taught) for number in taught]
    assert [runs for _, _, runs in threads(done(path, wanted), STRICT)] == counts


def test_it_does_not_matter_which_worker_solves_what_or_is_lost(tmp_path: Path) -> None:
    one, many = plan(concurrency=6), plan(concurrency=2)
    seconds(tmp_path / "one.jsonl", one)
    hired = [Hired(Simulated(lambda asked: solution("1")), many, {}) for _ in range(3)]
    for post in hired:
        post.deadly, post.taken = {(2, "strict"): 2, (5, "strict"): 1, (6, "loose"): 1}, hired[0].taken
    run(take(tmp_path / "many.jsonl", many, hired))
    assert sum(len(post.names) for post in hired) == 3 + 4
    assert done(tmp_path / "many.jsonl", many) == done(tmp_path / "one.jsonl", one)


def test_a_control_of_an_arm_that_adapts_learns_its_own_depth(tmp_path: Path) -> None:
    wanted, path = plan(LARGE, LOOSE, CONTROL, concurrency=3), tmp_path / "samples.jsonl"
    seconds(path, wanted)
    found = threads(done(path, wanted), CONTROL)
    assert {value for value, _, _ in found} == {None}
    assert [runs for _, _, runs in found] == list(range(6))
    assert all("p" in sample.options for (_, name), sample in done(path, wanted).items() if name == CONTROL.name)


@pytest.mark.parametrize("before", range(1, 28, 5))
def test_the_bench_resumes_as_an_eval_does(tmp_path: Path, before: int) -> None:
    arms, nested = (LARGE, STRICT, LOOSE, FIXED), Simulated(lambda asked: solution("1"))

    class Cut(Exception):
        """A power cut."""

    def measured(path: Path, limit: int = 99) -> None:
        def keep(number: int, sample: Sample) -> None:
            samples.add(number, sample)
            if len(samples.done) == limit:
                raise Cut

        plain = Simulated(lambda asked: solution("1"))
        with SampleStore(path, {}) as samples:
            solving = measure(
                plain.solver, arms, TASKS, on_sample=keep, done=samples.done, solvers={LOOSE.name: nested.solver}
            )
            run(solving)

    measured(tmp_path / "whole.jsonl")
    with pytest.raises(Cut):
        measured(tmp_path / "cut.jsonl", before)
    measured(tmp_path / "cut.jsonl")
    found = SampleStore(tmp_path / "cut.jsonl", {}).done
    assert found == SampleStore(tmp_path / "whole.jsonl", {}).done
    assert [runs for _, _, runs in threads(found, STRICT)] == [0, 1, 2, 3, 4, 5]
    assert len({value for value, _, _ in threads(found, STRICT)}) > 2


def lesson(place: int) -> RunStats:
    """One that differs from the others, and moves a threshold."""
    grades = (9.0, 8.0 + place % 2, 8.5, 8.0) * (8 + place)
    drafts = tuple(1.0 + place / 10 for _ in grades)
    return RunStats(drafts, tuple(3.0 for _ in grades), (4.0,), grades, tuple(True for _ in grades))


def sample(place: int, **changed: Any) -> Sample:
    made = Sample(STRICT.name, True, 1.0, Ledger(Account("small"), Account("large")), {}, lesson=lesson(place))
    return replace(made, **changed)


@pytest.mark.parametrize("behind", [1, 2, 4])
def test_in_whatever_order_runs_end_the_same_is_learnt(behind: int) -> None:
    def given(order: Sequence[int], known: int) -> list[Adapted | None]:
        before = {(place, STRICT.name): sample(place) for place in order[:known]}
        taught = Taught((STRICT,), lambda arm: SETTINGS, before, behind=behind)
        for place in order[known:]:
            taught.learn(place, sample(place))
        assert taught.ready((len(order) + behind - 1, STRICT.name))
        assert not taught.ready((len(order) + behind, STRICT.name))
        return [taught.given((place, STRICT.name)) for place in range(len(order) + behind)]

    first = given(range(5), 0)
    assert len({one.value for one in first if one is not None}) > 2
    for at, order in enumerate(islice(permutations(range(5)), 0, None, 7)):
        assert given(order, at % 6) == first


def test_nobody_else_waits_or_is_given_anything() -> None:
    taught = Taught((LARGE, SMALL, FIXED, STRICT), lambda arm: SETTINGS, {})
    for name in (LARGE.name, SMALL.name, FIXED.name, "unheard of"):
        assert taught.ready((99, name))
        assert taught.given((99, name)) is None
    assert taught.given((0, STRICT.name)) == Adapted("threshold", 9.0, 4, 0)
    assert not taught.ready((1, STRICT.name))


def test_arms_that_differ_in_their_name_alone_do_not_teach_each_other() -> None:
    taught = Taught((STRICT, replace(STRICT, name="again", hedge=0.9)), lambda arm: SETTINGS, {})
    taught.learn(0, sample(0))
    told, other = taught.given((1, "strict")), taught.given((0, "again"))
    assert told is not None
    assert other is not None
    assert (told.runs, other.runs) == (1, 0)


def test_a_problem_that_was_too_long_teaches_nothing_and_keeps_nobody_waiting() -> None:
    known = {(0, STRICT.name): sample(0, finish=FAILED, lesson=None)}
    taught = Taught((STRICT,), lambda arm: SETTINGS, known)
    assert taught.given((1, STRICT.name)) == Adapted("threshold", 9.0, 4, 0)


def test_samples_that_do_not_tell_what_they_taught_are_refused() -> None:
    with pytest.raises(
        ConfigurationError, match=r"problem 4 was solved as 'strict' by a version .* --fresh, or .* --out"
    ):
        Taught((STRICT,), lambda arm: SETTINGS, {(4, STRICT.name): sample(4, lesson=None)})
    Taught((FIXED,), lambda arm: SETTINGS, {(4, STRICT.name): sample(4, lesson=None)})


def test_that_nothing_keeps_the_limit_is_said_once_and_for_which_arm(caplog: pytest.LogCaptureFixture) -> None:
    bad = replace(lesson(9), grades=tuple(1.0 for _ in lesson(9).grades))
    taught = Taught((STRICT,), lambda arm: SETTINGS, {})
    with caplog.at_level(logging.WARNING):
        for place in range(3):
            taught.learn(place, sample(place, lesson=bad))
    assert [record.getMessage().split(":")[0] for record in caplog.records] == ["strict"]
    assert "at 0.2, as the judge's grades tell" in caplog.text


def test_a_lesson_is_on_disk_what_it_was(tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl"
    kept = sample(1, given=Adapted("threshold", 8.5, 2, 3, 0.04, 1.5))
    with SampleStore(path, {}) as samples:
        samples.add(1, kept)
    assert SampleStore(path, {}).done == {(1, STRICT.name): kept}
    assert len(orjson.dumps(orjson.loads(path.read_bytes().splitlines()[1])["lesson"])) < 2000


async def test_a_run_does_as_it_is_given_and_its_trace_tells_so(tmp_path: Path) -> None:
    path, given = tmp_path / "trace.jsonl", Adapted("threshold", 8.5, 1, 3)
    seen: list[Event] = []
    async with serving() as servers, servers.solver() as solver:
        solved = await solve_once(solver, STRICT, PROBLEM, observe=seen.append, trace_to=path, given=given)
        alone = await solver.solve(PROBLEM, trace_to=tmp_path / "own.jsonl")
        assert solver.adaptation is None
    moments = read(path)
    assert [type(moment.event) for moment in moments[:2]] == [Started, Adapted]
    assert [moment.event for moment in moments] == seen
    assert moments[1].event == solved.given == given
    assert solved.lesson == RunStats.of(moments)
    assert solved.lesson is not None
    assert solved.lesson.grades == (9.0,) * 3
    assert solved.solution is not None
    assert solved.solution.text == alone.text
    own = sorted(type(moment.event).__name__ for moment in read(tmp_path / "own.jsonl"))
    assert sorted(type(moment.event).__name__ for moment in moments if moment.event != given) == own


async def test_an_arm_that_does_not_adapt_teaches_nothing() -> None:
    async with serving() as servers, servers.solver() as solver:
        solved = await solve_once(solver, FIXED, PROBLEM)
    assert (solved.given, solved.lesson) == (None, None)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (Adapted("threshold", 8.5, 1, 3), ({"threshold": 8.5, "read": "greedy"}, 1)),
        (Adapted("", None, 3, 0), ({"threshold": 9.0, "read": "greedy"}, 3)),
        (None, ({"threshold": 9.0, "read": "greedy"}, 4)),
    ],
)
async def test_what_a_run_is_given_is_what_its_solver_is_told(given: Adapted | None, told: tuple[Any, int]) -> None:
    solver = ScriptedSolver(lambda asked: solution("1"))
    await solve_once(solver.solver, STRICT, "1 + 1", options={"threshold": 9.0, "read": "greedy"}, given=given)
    assert [(asked.options, asked.ahead) for asked in solver.asked] == [told]
