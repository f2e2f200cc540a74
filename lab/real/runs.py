"""
Let each arm solve a range of problems with the real pair, and keep every sample as a line of JSON.

A file holds the samples of one arm, benchmark and temperature. A new run adds what is missing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import orjson

from stepspec.api import Solver
from stepspec.cli.eval import arm as parse_arm
from stepspec.evals import arms, benchmarks
from stepspec.evals.grading.graders import Graders
from stepspec.evals.sample import Arm, Task, derive_seed, solve_once
from stepspec.evals.store import JsonlStore
from stepspec.orchestrator.budget import Budget
from stepspec.orchestrator.chain import Accept, Step
from stepspec.orchestrator.endpoints import Endpoint, Sampling
from stepspec.orchestrator.endpoints.settings import Deadlines
from stepspec.orchestrator.errors import ConfigurationError, EndpointError
from stepspec.orchestrator.events import Event, Judged, Repaired
from stepspec.orchestrator.ledger import Account

from .modelled import Round

RUNS = Path("build/real/runs")
"""The folder of the samples."""
MAX_TOKENS = 400
"""Tokens of one solution."""
PATIENT = Deadlines(connect=120, first=1800, between=1800)
"""The deadlines of a CPU that many requests share."""
TOP_P = 0.95
TOP_K = 20
"""As Qwen recommends for sampled text."""


METHODS = ("plain", "reading")
"""The arms of a run that names none."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One arm on a benchmark at a temperature."""

    benchmark: str
    """The benchmark's name."""
    temperature: float
    """The sampling temperature; 0 is greedy."""
    method: str
    """The method with its options, as `stepspec eval --policy` takes it, or plain."""

    @property
    def file(self) -> str:
        letters = "".join(sign if sign.isalnum() or sign in ".=" else "-" for sign in self.method)
        return f"{self.benchmark}-{self.temperature:g}-{letters}.jsonl"

    @property
    def arm(self) -> Arm:
        if self.method == arms.PLAIN.name:
            return arms.PLAIN
        arm = parse_arm(self.method)
        # one name, so that all methods share the servers' prefix caches
        return replace(
            arm,
            name="method",
            run=arm.run.model_copy(update={"ahead": 0}),
        )

    @property
    def sampling(self) -> Sampling:
        if self.temperature == 0:
            return Sampling(temperature=0)
        return Sampling(
            temperature=self.temperature,
            top_p=TOP_P,
            top_k=TOP_K,
        )

    def about(self) -> dict[str, Any]:
        """What has to agree for samples to belong to the same file."""
        return {
            "benchmark": self.benchmark,
            "arm": self.arm.record(),
            "sampling": self.sampling.model_dump(exclude={"seed"}),
            "tokens": MAX_TOKENS,
        }


Samples: TypeAlias = Mapping[Cell, Mapping[int, Mapping[str, Any]]]
"""The samples of each cell, by the number of the problem."""


class RunStore(JsonlStore):
    """The samples of one cell, by the number of the problem."""

    done: dict[int, Mapping[str, Any]]

    def _read(self) -> None:
        self.done = dict(self.records(numbered, "sample"))

    def add(self, sample: Mapping[str, Any]) -> None:
        self.done[sample["problem"]] = sample
        self.write(sample)


def numbered(line: bytes) -> tuple[int, Mapping[str, Any]]:
    sample = orjson.loads(line)
    return sample["problem"], sample


def rounds(events: Sequence[Event]) -> Iterator[Round]:
    """Yield the rounds of a run (see `Round`)."""
    draft: Step | None = None
    for event in events:
        if isinstance(event, Judged):
            draft = event.draft
            if isinstance(event.verdict, Accept):
                yield len(draft.tokens), len(draft.tokens), True, 0
        elif isinstance(event, Repaired):
            assert draft is not None
            kept = draft.cut(event.rollback.keep).tokens
            yield len(draft.tokens), len(kept), False, len(event.step.tokens)


def account(spent: Account) -> dict[str, int]:
    return {name: getattr(spent, name) for name in ("kept", "discarded", "judging", "requests")}


async def solve(
    solver: Solver,
    graders: Graders,
    cell: Cell,
    number: int,
    task: Task,
) -> dict[str, Any]:
    """Solve one problem; return its line."""
    events: list[Event] = []
    seed = derive_seed(0, number, 0) if cell.temperature else None
    solution = await solve_once(
        solver,
        cell.arm,
        task.problem,
        sampling=cell.sampling.with_seed(seed),
        budget=Budget(tokens=MAX_TOKENS),
        observe=events.append,
    )
    assert solution is not None
    ledger = solution.ledger
    return {
        "problem": number,
        "right": await task.gold.grade(solution.text, graders) == "right",
        "finish": solution.finish_reason,
        "seconds": round(solution.seconds, 2),
        "small": account(ledger.small),
        "large": account(ledger.large),
        "rounds": list(rounds(events)),
        "text": solution.text,
    }


@dataclass(frozen=True, slots=True)
class Work:
    """The samples of one command."""

    cells: Sequence[Cell]
    """The arms, benchmarks and temperatures."""
    problems: range
    """The numbers of the problems, from 0."""
    concurrency: int
    """Problems solved at the same time."""
    folder: Path
    """The folder of the samples."""
    data: Path | None
    """The folder of the benchmarks' files; None: the hub."""

    def tasks(self) -> dict[str, list[Task]]:
        """The problems of each benchmark."""
        names = {cell.benchmark for cell in self.cells}
        files = {name: self.data and self.data / f"{name}.jsonl" for name in names}
        return {name: benchmarks.load(benchmarks.find(name), file) for name, file in files.items()}


async def take(urls: Mapping[str, str], work: Work, say: Callable[[str], None]) -> None:
    """
    Take the samples of *work* that are missing; *urls* are those of the servers by role.

    *say* is called with what happens. A sample whose request fails stays missing.
    """
    tasks = work.tasks()
    small = Endpoint(role="small", url=urls["small"], deadlines=PATIENT)
    large = Endpoint(
        role="large",
        url=urls["large"],
        deadlines=PATIENT,
        suffix_scoring=True,
    )
    async with AsyncExitStack() as stack:
        solver = await stack.enter_async_context(Solver(small, large, ahead=0, auto=False))
        solver.require_both()
        graders = Graders()
        stores = {
            cell: stack.enter_context(RunStore(work.folder / cell.file, cell.about()))
            for cell in work.cells
        }
        missing = [
            (cell, number)
            for number in work.problems
            for cell in work.cells
            if number < len(tasks[cell.benchmark]) and number not in stores[cell].done
        ]
        say(f"{len(missing)} samples to take")
        queue = iter(missing)

        async def solve_next() -> None:
            for cell, number in queue:
                task = tasks[cell.benchmark][number]
                try:
                    stores[cell].add(
                        await solve(
                            solver,
                            graders,
                            cell,
                            number,
                            task,
                        )
                    )
                except EndpointError as exc:
                    say(f"{cell.file}, problem {number}: {exc}")

        async with asyncio.TaskGroup() as group:
            for _ in range(work.concurrency):
                group.create_task(solve_next())


def chosen_problems(text: str) -> range:
    """Read "100-139", the first and the last. Raise `ConfigurationError` for anything else."""
    first, mark, last = text.partition("-")
    if not (first.isdecimal() and last.isdecimal() and mark):
        raise ConfigurationError(f"--problems {text}: the first and the last, such as 0-39")
    return range(int(first), int(last) + 1)


def read_samples(folder: Path, cells: Sequence[Cell], problems: range) -> Samples:
    """The samples in *folder* of each cell, by the number of the problem."""
    stores = {cell: RunStore(folder / cell.file, cell.about()) for cell in cells}
    return {
        cell: {number: store.done[number] for number in problems if number in store.done}
        for cell, store in stores.items()
    }


def write_numbers(folder: Path, samples: Samples) -> None:
    """Copy the *samples* into *folder*, without their texts."""
    for cell, by_problem in samples.items():
        with RunStore(folder / cell.file, cell.about()) as store:
            missing = [sample for number, sample in by_problem.items() if number not in store.done]
            for sample in missing:
                store.add({key: sample[key] for key in sample if key not in ("text", "seconds")})
