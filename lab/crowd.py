"""
Problems under load: what is measured of one arm under one load. A `Crowd` runs a block.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from stepspec.api import Solver
from stepspec.evals.sample import Arm, Sample, Task, derive_seed, solve_once
from stepspec.orchestrator.budget import Budget
from stepspec.orchestrator.concurrency import background
from stepspec.orchestrator.endpoints import Sampling
from stepspec.orchestrator.errors import EndpointError
from stepspec.orchestrator.events import Answering, Committed, Event
from stepspec.orchestrator.solution import Solution


@dataclass(frozen=True, slots=True)
class Timing:
    """
    One counted problem; times are in seconds since it arrived.

    *first_step* is when the first verified step was committed, *first_answer* when the first text
    of the answer was there; None if that did not happen. *tokens* are the kept ones. *failure* is
    why there is no solution, or "". The *sample* is what other evaluations keep; None without a
    solution.
    """

    latency: float
    first_step: float | None = None
    first_answer: float | None = None
    tokens: int = 0
    correct: bool = False
    failure: str = ""
    sample: Sample | None = None


Block: TypeAlias = tuple[Timing, ...]
"""A part of a cell: the timings of its counted problems."""
Attempt: TypeAlias = Callable[[Task, int], Awaitable[Timing]]
"""Solves a task with a seed; failures of endpoints and deadlines are in the timing."""


class Crowd:
    """
    The problems of one block: a warm-up, the *counted* tasks, and *others* until the counted have
    ended.

    It is a closed loop: there are *concurrency* problems at any time. *warm_up* is the number of
    problems before the counted ones; None: as many as there are at once.
    """

    def __init__(
        self,
        concurrency: int,
        counted: Sequence[Task],
        others: Sequence[Task],
        attempt: Attempt,
        seed: int,
        block: int,
        *,
        warm_up: int | None = None,
    ) -> None:
        self._concurrency = concurrency
        self._count = len(counted)
        self._attempt = attempt
        self._seed = seed
        self._block = block
        more = ((None, task) for task in itertools.cycle(others))
        self._entries: Iterator[tuple[int | None, Task]] = itertools.chain(
            itertools.islice(more, concurrency if warm_up is None else warm_up),
            enumerate(counted),
            more,
        )
        self._timings: dict[int, Timing] = {}
        self._error: Exception | None = None
        self._over = asyncio.Event()

    async def run(self) -> Block:
        """Run until all counted problems have ended; then cancel the others."""
        async with background(*(self._keep_busy() for _ in range(self._concurrency))):
            await self._over.wait()
        if self._error is not None:
            raise self._error
        return tuple([self._timings[place] for place in range(self._count)])

    async def _keep_busy(self) -> None:
        for place, task in self._entries:
            await self._solve(place, task)
            # the next one may fail as soon as it begins, without ever waiting
            if self._error is not None:
                return

    async def _solve(self, place: int | None, task: Task) -> None:
        try:
            timing = await self._attempt(task, derive_seed(self._seed, self._block, place or 0))
        except Exception as exc:  # raised by `run`
            self._error = exc
            self._over.set()
            return
        if place is not None:
            self._timings[place] = timing
            if len(self._timings) == self._count:
                self._over.set()


Grade: TypeAlias = Callable[[Solution, Task], Awaitable[bool]]


async def attempt(
    solver: Solver,
    arm: Arm,
    grade: Grade,
    deadline: float,
    sampling: Sampling | None,
    budget: Budget | None,
    task: Task,
    seed: int,
) -> Timing:
    """
    Solve *task* as *arm* does, within *deadline* seconds. A failure of an endpoint is in the
    result.
    """
    clock = asyncio.get_running_loop().time
    began = clock()
    first = dict[type, float]()

    def observe(event: Event) -> None:
        if isinstance(event, Committed | Answering):
            first.setdefault(type(event), clock() - began)

    failure = "the problem is too long"
    solved = None
    solution = None
    try:
        async with asyncio.timeout(deadline):
            seeded = (sampling or solver.settings.run.sampling).with_seed(seed)
            solved = await solve_once(
                solver, arm, task.problem, sampling=seeded, budget=budget, observe=observe
            )
        solution = solved.solution
    except TimeoutError:
        failure = f"no answer within {deadline:g} s"
    except EndpointError as exc:
        failure = str(exc)
    seconds = clock() - began
    if solved is None or solution is None:
        return Timing(seconds, failure=failure)
    tokens = solution.ledger.small.kept + solution.ledger.large.kept
    sample = solved.sample(arm, correct=await grade(solution, task), seed=seed)
    begun = first.get(Committed), first.get(Answering)
    return Timing(seconds, *begun, tokens, sample.correct, sample=sample)
