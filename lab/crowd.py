"""Measure one arm under one load. `run_block` runs a block of problems."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from stepspec.api import Solver
from stepspec.evals.sample import Arm, Sample, Task, derive_seed, sample_once
from stepspec.orchestrator.concurrency import supervised
from stepspec.orchestrator.errors import EndpointError
from stepspec.orchestrator.events import Answering, Committed, Event

from .arms import GRADERS

DEADLINE_SECONDS = 1e7  # of a simulated problem


@dataclass(frozen=True, slots=True)
class Timing:
    """One counted problem. Times are in seconds since it arrived."""

    latency: float
    """When the problem was solved."""
    first_step: float | None = None
    """When the first verified step was committed; None: no step was."""
    first_answer: float | None = None
    """When the first text of the answer was there; None: there is no answer."""
    failure: str = ""
    """Why there is no solution; "": there is one."""
    sample: Sample | None = None
    """What evaluations keep of the solution; None: there is no solution."""

    @property
    def tokens(self) -> int:
        """Kept tokens."""
        if self.sample is None:
            return 0
        return self.sample.ledger.small.kept + self.sample.ledger.large.kept


Block: TypeAlias = tuple[Timing, ...]
"""A part of a cell: the timings of its counted problems."""
Attempt: TypeAlias = Callable[[Task, int], Awaitable[Timing]]
"""Solves a task with a seed; failures of endpoints and deadlines are in the timing."""


async def run_block(
    concurrency: int,
    counted: Sequence[Task],
    others: Sequence[Task],
    attempt: Attempt,
    seed: int,
    *,
    warm_up: int | None = None,
) -> Block:
    """
    Run problems in a closed loop, so that at any time *concurrency* problems are solved.

    *warm_up* of the *others* come before the *counted* tasks; None: *concurrency* of them. Others
    follow until all counted tasks have ended, and are cancelled then. Raise the error of an
    *attempt*.
    """
    more = ((None, task) for task in itertools.cycle(others))
    entries: Iterator[tuple[int | None, Task]] = itertools.chain(
        itertools.islice(more, concurrency if warm_up is None else warm_up),
        enumerate(counted),
        more,
    )
    timings: dict[int, Timing] = {}
    over = asyncio.Event()

    async def keep_busy() -> None:
        for place, task in entries:
            timing = await attempt(task, derive_seed(seed, 0, place or 0))
            if place is None:
                continue
            timings[place] = timing
            if len(timings) == len(counted):
                over.set()

    async with supervised(*(keep_busy() for _ in range(concurrency))):
        await over.wait()
    return tuple([timings[place] for place in range(len(counted))])


async def attempt(
    solver: Solver,
    arm: Arm,
    task: Task,
    seed: int,
    *,
    deadline: float = DEADLINE_SECONDS,
) -> Timing:
    """Solve *task* by *arm* within *deadline* seconds. The result has an endpoint's failure."""
    clock = asyncio.get_running_loop().time
    began = clock()
    first = dict[type, float]()

    def observe(event: Event) -> None:
        if isinstance(event, Committed | Answering):
            first.setdefault(type(event), clock() - began)

    failure = ""
    sample: Sample | None = None
    try:
        async with asyncio.timeout(deadline):
            sample = await sample_once(solver, arm, task, seed, GRADERS, observe)
    except TimeoutError:
        failure = f"no answer within {deadline:g} s"
    except EndpointError as exc:
        failure = str(exc)
    return Timing(
        latency=clock() - began,
        first_step=first.get(Committed),
        first_answer=first.get(Answering),
        failure=failure,
        sample=sample,
    )
