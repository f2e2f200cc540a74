"""
Grade a benchmark's own solutions as if they were answers: a good grader agrees with nearly all of them.

It agrees with none of the solutions that were swapped between problems, except those with equal answers.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from stepspec.orchestrator.errors import ConfigurationError

from ..benchmarks import find, load
from ..command_line import finite, progress_bars, script
from ..sample import Task
from .answers import extract_answer
from .graders import SECONDS, Answer, Gold, Graders, Mark, require_graders

EXAMPLES = """
Examples:

  python -m stepspec.evals.grading math500

  python -m stepspec.evals.grading gsm8k --data gsm8k.parquet --workers 4

  python -m stepspec.evals.grading math500 --limit 50 --grading-seconds 2
"""

stdout, stderr = Console(), Console(stderr=True)


@dataclass(frozen=True, slots=True)
class Agreement:
    """
    How the solutions of *tasks* were graded, and how each was against the *next* problem's answer.

    *seconds* is the time for the first grading, which is the one that evaluations do.
    """

    tasks: Sequence[Task]
    grades: Sequence[Mark]
    swapped: Sequence[Mark]
    seconds: float

    @property
    def agreed(self) -> int:
        return sum(grade == "right" for grade in self.grades)

    def exceptions(self) -> list[str]:
        """Each solution that does not agree, with the reason."""
        return [
            f"{task.name or number}: {_reason(task, grade)}"
            for number, (task, grade) in enumerate(zip(self.tasks, self.grades, strict=True))
            if grade != "right"
        ]

    def mistaken(self) -> list[str]:
        """Each solution that agrees with the next problem's answer, which is not the same text as its own."""
        pairs = zip(self.tasks, _next(self.tasks), self.swapped, strict=True)
        return [
            f"{task.name or number}: {str(task.gold)!r} is taken for {str(other.gold)!r}"
            for number, (task, other, grade) in enumerate(pairs)
            if grade == "right" and task.gold != other.gold
        ]


def _next(tasks: Sequence[Task]) -> Sequence[Task]:
    return (*tasks[1:], tasks[0])


def _reason(task: Task, grade: Mark) -> str:
    if grade == "ungraded":
        return "the grader was killed: it took too long"
    answer = extract_answer(task.reference, task.gold.metric if isinstance(task.gold, Answer) else "math")
    return f"the solution gives {answer or 'no answer'!r}, the answer is {str(task.gold)!r}"


async def agreement(tasks: Sequence[Task], workers: int, seconds: float) -> Agreement:
    """Grade every reference of *tasks*, as evaluations do, then against another's answer."""
    async with Graders(workers, seconds) as graders:
        with progress_bars(stderr) as progress:
            bar = progress.add_task("grading", total=2 * len(tasks))

            async def grade(task: Task, gold: Gold) -> Mark:
                verdict = await gold.grade(task.reference, graders)
                progress.advance(bar)
                return verdict

            began = time.perf_counter()
            grades = await asyncio.gather(*(grade(task, task.gold) for task in tasks))
            took = time.perf_counter() - began
            pairs = zip(tasks, _next(tasks), strict=True)
            swapped = await asyncio.gather(*(grade(task, other.gold) for task, other in pairs))
    return Agreement(tasks, grades, swapped, took)


def check(
    benchmark: Annotated[str, typer.Argument(help="A benchmark that comes with worked solutions.")],
    data: Annotated[Path | None, typer.Option(help="Read it from this JSONL or Parquet file.")] = None,
    limit: Annotated[int | None, typer.Option(min=2, help="Only this number of problems, the first ones.")] = None,
    workers: Annotated[int, typer.Option(min=1, help="Number of grading processes.")] = 2,
    grading_seconds: Annotated[
        float, typer.Option(min=0.1, help="Maximum time to grade an answer, in seconds.")
    ] = SECONDS,
) -> None:
    """Grade a benchmark's own solutions, and list those that do not agree with its answers."""
    chosen = find(benchmark)
    finite("--grading-seconds", grading_seconds)
    tasks = [task for task in load(chosen, data, limit=limit) if task.reference]
    if len(tasks) < 2:
        raise ConfigurationError(f"{benchmark} comes without worked solutions: there is nothing to compare")
    require_graders(task.gold for task in tasks)
    result = asyncio.run(agreement(tasks, workers, grading_seconds))
    n = len(tasks)
    stdout.print(
        f"{result.agreed} of {n} solutions agree with the answer, in {result.seconds:.1f} s, {workers} processes"
    )
    for line in result.exceptions():
        stdout.print(f"  {line}", markup=False, highlight=False, soft_wrap=True)
    same = sum(task.gold == other.gold for task, other in zip(tasks, _next(tasks), strict=True))
    stdout.print(
        f"against the next problem's answer: {sum(grade == 'right' for grade in result.swapped)} agree, "
        f"of which {same} have the same answer"
    )
    for line in result.mistaken():
        stdout.print(f"  {line}", markup=False, highlight=False, soft_wrap=True)
    if result.agreed < n:
        raise typer.Exit(1)


if __name__ == "__main__":
    script(check, EXAMPLES)
