"""
Arms that only experiments compare, and how they take turns; `stepspec.evals.arms` has the common
ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from stepspec.api import Solver
from stepspec.evals.plan import turns
from stepspec.evals.sample import Arm, ByRole, Sample, Task, derive_seed, sample_once
from stepspec.orchestrator.endpoints.metrics import Acceptance

SEQUENTIAL = Arm.of("SpecReason, sequential", "specreason", ahead=0)
BILD = Arm.of("BiLD, steps", "bild", {"scale": "step"})
READING = Arm.of("reading", "reading")
REFLECTIVE = Arm.of("reflective", "reflective")
THINKING = Arm.of("SpecReason, thinking only", "specreason", ending="small", answer="large")
"""
The part for which the miniature judge was trained, without answers and without steps that lack
their ends.
"""
THINKING_SEQUENTIAL = replace(
    THINKING, name=f"{THINKING.name}, sequential", run=THINKING.run.with_overrides({"ahead": 0})
)


async def measure(
    solver: Solver,
    arms: Sequence[Arm],
    tasks: Sequence[Task],
    *,
    on_sample: Callable[[int, Sample], object] = lambda number, sample: None,
    done: Mapping[tuple[int, str], Sample] | None = None,
    solvers: Mapping[str, Solver] | None = None,
    base: int = 0,
) -> None:
    """
    Solve every task with every arm, one at a time and in turns, so that drift hits all alike.

    An arm that one of *solvers* is named for is run by that one. What is *done* already is not done
    again. The seed of a sample follows from *base* and the number of its task, and is the same for
    all arms.
    """
    for number, task in enumerate(tasks):
        seed = derive_seed(base, number, 0)
        for arm in turns(arms, number):
            if not done or (number, arm.name) not in done:
                on_sample(
                    number, await _sample((solvers or {}).get(arm.name, solver), arm, task, seed)
                )


async def read_acceptances(solver: Solver) -> ByRole:
    """
    Read the servers' counters of drafted and accepted tokens; a role without speculation is left
    out.
    """
    endpoints = (solver.large, solver.small)
    acceptances = [await endpoint.acceptance() for endpoint in endpoints]
    pairs = zip(endpoints, acceptances, strict=True)
    return {endpoint.role: acceptance for endpoint, acceptance in pairs if acceptance is not None}


def acceptances_between(earlier: ByRole, later: ByRole) -> ByRole:
    """The tokens that were drafted and accepted between two readings."""
    return {
        role: acceptance - earlier.get(role, Acceptance()) for role, acceptance in later.items()
    }


async def _sample(solver: Solver, arm: Arm, task: Task, seed: int) -> Sample:
    before = await read_acceptances(solver)
    sample = await sample_once(solver, arm, task, seed)
    return replace(sample, speculation=acceptances_between(before, await read_acceptances(solver)))
