"""Arms that only experiments compare, and how they take turns."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import replace

from stepspec.api import Solver
from stepspec.evals.plan import turns
from stepspec.evals.sample import Arm, ByRole, Sample, Task, derive_seed, sample_once
from stepspec.orchestrator.chain import Role
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
    THINKING,
    name=f"{THINKING.name}, sequential",
    run=THINKING.run.with_overrides({"ahead": 0}),
)


async def measure(
    solver: Solver,
    arms: Sequence[Arm],
    tasks: Sequence[Task],
    *,
    on_sample: Callable[[int, Sample], object] = lambda number, sample: None,
    done: Container[tuple[int, str]] = (),
    base: int = 0,
) -> None:
    """
    Solve every task with every arm, in turns, so that drift of the machine is alike for all arms.

    Samples that are *done* are not taken again. The seed of a sample follows from *base* and the
    number of its task. It is the same for all arms.
    """
    for number, task in enumerate(tasks):
        seed = derive_seed(base, number, 0)
        for arm in turns(arms, number):
            if (number, arm.name) in done:
                continue
            sample = await _sample(solver, arm, task, seed)
            on_sample(number, sample)


async def read_acceptances(solver: Solver) -> ByRole:
    """Read the servers' counters of drafted and accepted tokens, by the roles that speculate."""
    found: dict[Role, Acceptance] = {}
    for endpoint in (solver.large, solver.small):
        acceptance = await endpoint.acceptance()
        if acceptance is not None:
            found[endpoint.role] = acceptance
    return found


def acceptances_between(earlier: ByRole, later: ByRole) -> ByRole:
    """Return the tokens that were drafted and accepted between two readings."""
    return {
        role: acceptance - earlier.get(role, Acceptance()) for role, acceptance in later.items()
    }


async def _sample(
    solver: Solver,
    arm: Arm,
    task: Task,
    seed: int,
) -> Sample:
    before = await read_acceptances(solver)
    sample = await sample_once(solver, arm, task, seed)
    return replace(sample, speculation=acceptances_between(before, await read_acceptances(solver)))
