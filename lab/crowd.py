"""
Problems under load: what is measured of one arm under one load, block by block, and kept on disk.

A `Crowd` runs a block; `measure` lets the arms take turns, block by block, and a `BlockStore` keeps what is done.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import orjson
from pydantic import TypeAdapter

from stepspec.api import Solver
from stepspec.evals.plan import turns
from stepspec.evals.sample import Arm, Sample, Task, derive_seed, solve_once
from stepspec.evals.store import REMEDY, JsonlStore
from stepspec.orchestrator.budget import Budget
from stepspec.orchestrator.concurrency import background
from stepspec.orchestrator.endpoints import Sampling
from stepspec.orchestrator.errors import ConfigurationError, EndpointError, StepspecError
from stepspec.orchestrator.events import Answering, Committed, Event
from stepspec.orchestrator.solution import Solution

TWO_LARGE = Arm.of("large alone, two replicas", "large")


@dataclass(frozen=True, slots=True)
class Load:
    """A closed loop with *concurrency* problems at any time."""

    concurrency: int

    @property
    def name(self) -> str:
        return f"{self.concurrency} at once"


@dataclass(frozen=True, slots=True)
class Timing:
    """
    One counted problem; times are in seconds since it arrived.

    *first_step* is when the first verified step was committed, *first_answer* when the first text of the answer was
    there; None if that did not happen. *tokens* are the kept ones. *failure* is why there is no solution, or "". The
    *sample* is what other evaluations keep; None without a solution.
    """

    latency: float
    first_step: float | None = None
    first_answer: float | None = None
    tokens: int = 0
    correct: bool = False
    failure: str = ""
    sample: Sample | None = None


@dataclass(frozen=True, slots=True)
class Block:
    """
    A part of a cell: the *timings* of its counted problems.

    The last counted problem ended *seconds* after the start of the first. *cpu* is the share of a core that each
    program used meanwhile. Together with the problems before the counted ones, the block took *took* seconds.
    """

    timings: tuple[Timing, ...]
    seconds: float
    cpu: Mapping[str, float] = field(default_factory=dict[str, float])
    took: float = 0.0


Attempt: TypeAlias = Callable[[Task, int], Awaitable[Timing]]
"""Solves a task with a seed; failures of endpoints and deadlines are in the timing."""


class Crowd:
    """
    The problems of one block under a *load*: a warm-up, the *counted* tasks, and *others* until the counted have ended.

    *warm_up* is the number of problems before the counted ones; None: as many as there are at once.
    """

    def __init__(
        self,
        load: Load,
        counted: Sequence[Task],
        others: Sequence[Task],
        attempt: Attempt,
        seed: int,
        block: int,
        *,
        warm_up: int | None = None,
    ) -> None:
        self._load, self._count, self._attempt, self._seed, self._block = load, len(counted), attempt, seed, block
        more = ((None, task) for task in itertools.cycle(others))
        self._entries: Iterator[tuple[int | None, Task]] = itertools.chain(
            itertools.islice(more, load.concurrency if warm_up is None else warm_up), enumerate(counted), more
        )
        self._timings: dict[int, Timing] = {}
        self._began, self._used = 0.0, dict[str, float]()
        self._cpu: Callable[[], Mapping[str, float]] = dict[str, float]
        self._error: Exception | None = None
        self._over = asyncio.Event()

    async def run(self, cpu: Callable[[], Mapping[str, float]] = dict[str, float]) -> Block:
        """Run until all counted problems have ended; then cancel the others. *cpu* reads CPU seconds by program."""
        self._cpu, start = cpu, self._now()
        async with background(*(self._keep_busy() for _ in range(self._load.concurrency))):
            await self._over.wait()
            seconds, used = self._now() - self._began, cpu()
        if self._error is not None:
            raise self._error
        shares = {name: (value - self._used.get(name, 0.0)) / max(seconds, 1e-9) for name, value in used.items()}
        timings = tuple([self._timings[place] for place in range(self._count)])
        return Block(timings, seconds, shares, self._now() - start)

    async def _keep_busy(self) -> None:
        for place, task in self._entries:
            await self._solve(place, task)
            if self._error is not None:  # the next one may fail as soon as it begins, without ever waiting
                return

    async def _solve(self, place: int | None, task: Task) -> None:
        if place == 0:
            self._began, self._used = self._now(), dict(self._cpu())
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

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()


Grade: TypeAlias = Callable[[Solution, Task], Awaitable[bool]]


async def grade_equal(solution: Solution, task: Task) -> bool:
    """Compare the answer with the true one as texts."""
    return solution.answer == str(task.gold)


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
    """Solve *task* as *arm* does, within *deadline* seconds. A failure of an endpoint is in the result."""
    clock = asyncio.get_running_loop().time
    began, first = clock(), dict[type, float]()

    def observe(event: Event) -> None:
        if isinstance(event, Committed | Answering):
            first.setdefault(type(event), clock() - began)

    failure, solved, solution = "the problem is too long", None, None
    try:
        async with asyncio.timeout(deadline):
            seeded = (sampling or solver.settings.run.sampling).with_seed(seed)
            solved = await solve_once(solver, arm, task.problem, sampling=seeded, budget=budget, observe=observe)
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


def cpu_seconds(groups: Mapping[str, int]) -> dict[str, float]:
    """The CPU seconds so far of this program, and of process *groups* by name."""
    names, tick = {group: name for name, group in groups.items()}, os.sysconf("SC_CLK_TCK")
    used = {"stepspec": time.process_time(), **dict.fromkeys(groups, 0.0)}
    for path in Path("/proc").glob("[0-9]*/stat") if groups else ():
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:  # It has ended.
            continue
        if (name := names.get(int(fields[2]))) is not None:
            used[name] += (int(fields[11]) + int(fields[12])) / tick
    return used


BlockPlace: TypeAlias = tuple[str, str, int]  # the names of the load and the arm, and the number of the block
_BLOCK: TypeAdapter[Block] = TypeAdapter(Block)


class BlockStore(JsonlStore):
    """The blocks that are measured already, a line each. Blocks of an arm have equal options."""

    done: dict[BlockPlace, Block]

    def __init__(self, path: Path, about: Mapping[str, Any], arms: Sequence[Arm], *, fresh: bool = False) -> None:
        self._arms = {arm.name: orjson.loads(orjson.dumps(arm.record())) for arm in arms}
        super().__init__(path, about, fresh=fresh)

    def add(self, place: BlockPlace, block: Block) -> None:
        """Keep the *block*; it is on disk when this returns."""
        self.done[place] = block
        load, arm, number = place
        self.write({"load": load, "arm": self._arms[arm], "block": number, **asdict(block)})

    def _read(self) -> None:
        self.done = {}
        for place, arm, block in self.records(_placed, "block"):
            if arm != self._arms.get(arm["name"], arm):
                raise ConfigurationError(
                    f"{self.path} has blocks of the arm {arm['name']!r} with other options: {REMEDY}"
                )
            self.done[place] = block


def _placed(line: bytes) -> tuple[BlockPlace, Mapping[str, Any], Block]:
    fields = orjson.loads(line)
    arm: Mapping[str, Any] = fields["arm"]
    return (fields["load"], arm["name"], fields["block"]), arm, _BLOCK.validate_python(fields)


@dataclass(frozen=True, slots=True)
class Deployment:
    """
    Running servers: a solver over the pair, one in which the large model has a second replica, if there is one.

    *groups* are the process groups of the servers, of those that this program has started.
    """

    pair: Solver
    two_large: Solver | None = None
    groups: Mapping[str, int] = field(default_factory=dict[str, int])

    def solver(self, arm: Arm) -> Solver:
        return self.two_large if arm.name == TWO_LARGE.name and self.two_large else self.pair


@dataclass(frozen=True, slots=True)
class Workload:
    """*problems* of every cell in *blocks*: of *tasks*, other ones for every load, and *others*, which do not count."""

    tasks: Sequence[Task]
    others: Sequence[Task]
    problems: int
    blocks: int
    seed: int

    def counted(self, load: int, block: int) -> list[Task]:
        """The tasks of a *block* of the load with this number; they repeat if there are too few."""
        places = range(load * self.problems, (load + 1) * self.problems)[block :: self.blocks]
        return [self.tasks[place % len(self.tasks)] for place in places]


async def measure(
    deployment: Deployment,
    workload: Workload,
    loads: Sequence[Load],
    arms: Sequence[Arm],
    store: BlockStore,
    attempts: Callable[[Arm], Attempt],
    on_block: Callable[[], object] = lambda: None,
) -> None:
    """
    Measure the blocks that *store* does not have; the arms take turns.

    Raise `StepspecError` if all problems of a block fail, which is not kept then.
    """
    for (number, load), block in itertools.product(enumerate(loads), range(workload.blocks)):
        for arm in turns(arms, block):
            place = load.name, arm.name, block
            if place in store.done:
                continue
            counted = workload.counted(number, block)
            crowd = Crowd(load, counted, workload.others, attempts(arm), workload.seed, block)
            store.add(place, await run_block(crowd, f"{arm.name!r}, {load.name}", deployment))
            on_block()


async def run_block(crowd: Crowd, name: str, deployment: Deployment) -> Block:
    """Run the *crowd*. Raise `StepspecError`, with the *name* of the block, if all of its problems fail."""
    measured = await crowd.run(partial(cpu_seconds, deployment.groups))
    if all(timing.failure for timing in measured.timings):
        raise StepspecError(f"{name}: no problem was solved: {measured.timings[0].failure}")
    return measured
