"""Measure several ways to solve the same problems on the same servers, interleaved, so that drift hits all alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from stepspec.api import Solver
from stepspec.orchestrator.events import Event, Observer

from . import plain
from .plan import turns
from .sample import Arm, Sample, Task, acceptances_between, derive_seed, read_acceptances, solve_once

PLAIN = Arm.of(plain.PLAIN, plain.PLAIN)
LARGE = Arm.of("large alone", "large")
SMALL = Arm.of("small alone", "small")
SHIPPED = Arm.of("SpecReason", "specreason")


async def measure(
    solver: Solver,
    arms: Sequence[Arm],
    tasks: Sequence[Task],
    *,
    on_sample: Callable[[int, Sample], object] = lambda number, sample: None,
    done: Mapping[tuple[int, str], Sample] | None = None,
    observers: Mapping[str, Callable[[Task], Observer]] | None = None,
    solvers: Mapping[str, Solver] | None = None,
    base: int = 0,
) -> list[Sample]:
    """
    Solve every task with every arm, one at a time; *observers* watch the runs of the arms they are named for.

    An arm that one of *solvers* is named for is run by that one. What is *done* already, by the number of the task and
    the name of the arm, is not done again. The seed of a sample follows from *base* and the number of its
    task, and is the same for all arms.
    """
    by_name, samples = solvers or {}, list[Sample]()
    for number, task in enumerate(tasks):
        for arm in turns(arms, number):
            if done and (number, arm.name) in done:
                samples.append(done[number, arm.name])
                continue
            observe = observers[arm.name](task) if observers and arm.name in observers else _ignore
            run_seed = derive_seed(base, number, 0)
            samples.append(await _sample(by_name.get(arm.name, solver), arm, task, observe, run_seed))
            on_sample(number, samples[-1])
    return samples


def _ignore(event: Event) -> None:
    pass


async def _sample(solver: Solver, arm: Arm, task: Task, observe: Observer, run_seed: int) -> Sample:
    before = await read_acceptances(solver)
    sampling = solver.settings.run.sampling.with_seed(run_seed)
    solved = await solve_once(solver, arm, task.problem, sampling=sampling, observe=observe)
    right = solved.solution is not None and solved.solution.answer == str(task.gold)
    return solved.sample(
        arm, correct=right, seed=run_seed, speculation=acceptances_between(before, await read_acceptances(solver))
    )
