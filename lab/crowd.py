"""Measure one arm under one load. A `Crowd` runs a block of problems."""

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
from stepspec.orchestrator.errors import EndpointError
from stepspec.orchestrator.events import Answering, Committed, Event
from stepspec.orchestrator.solution import Solution

DEADLINE_SECONDS = 1e7  # of a simulated problem
BUDGET = Budget(tokens=10**6, answer=10**4)


@dataclass(frozen=True, slots=True)
class Timing:
    """One counted problem. Times are in seconds since it arrived."""

    latency: float
    """When the problem was solved."""
    first_step: float | None = None
    """When the first verified step was committed; None: no step was."""
    first_answer: float | None = None
    """When the first text of the answer was there; None: there is no answer."""
    tokens: int = 0
    """Kept tokens."""
    correct: bool = False
    """Whether the solution is right."""
    failure: str = ""
    """Why there is no solution; "": there is one."""
    sample: Sample | None = None
    """What evaluations keep of the solution; None: there is no solution."""


Block: TypeAlias = tuple[Timing, ...]
"""A part of a cell: the timings of its counted problems."""
Attempt: TypeAlias = Callable[[Task, int], Awaitable[Timing]]
"""Solves a task with a seed; failures of endpoints and deadlines are in the timing."""


class Crowd:
    """
    The problems of one block in a closed loop. At any time *concurrency* problems are solved.

    *warm_up* of the *others* come before the *counted* tasks; None: *concurrency* of them. Others
    follow until all counted tasks have ended.
    """

    def __init__(
        self,
        concurrency: int,
        counted: Sequence[Task],
        others: Sequence[Task],
        attempt: Attempt,
        seed: int,
        *,
        warm_up: int | None = None,
    ) -> None:
        self._concurrency = concurrency
        self._count = len(counted)
        self._attempt = attempt
        self._seed = seed
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
            timing = await self._attempt(task, derive_seed(self._seed, 0, place or 0))
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

    failure = "the problem is too long"
    solved = None
    solution = None
    try:
        async with asyncio.timeout(deadline):
            seeded = solver.settings.run.sampling.with_seed(seed)
            solved = await solve_once(
                solver, arm, task.problem, sampling=seeded, budget=BUDGET, observe=observe
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
    return Timing(
        latency=seconds,
        first_step=first.get(Committed),
        first_answer=first.get(Answering),
        tokens=tokens,
        correct=sample.correct,
        sample=sample,
    )
