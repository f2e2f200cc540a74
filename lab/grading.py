"""
Grade a benchmark's own solutions as if they were answers.

A good grader agrees with nearly all solutions. It agrees with a solution of another problem only if
both problems have equal answers.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from stepspec.cli.program import script
from stepspec.evals.benchmarks import Benchmark, find, load
from stepspec.evals.benchmarks.loading import Raw, from_file, from_hub
from stepspec.evals.grading.answers import HASHES, extract_answer
from stepspec.evals.grading.graders import Answer, Gold, Graders, Mark, require_graders
from stepspec.evals.sample import Task
from stepspec.orchestrator.errors import ConfigurationError

EXAMPLES = """
Examples:

  python -m lab.grading math500

  python -m lab.grading gsm8k --data gsm8k.parquet

  python -m lab.grading math500 --limit 50
"""


def worked(benchmark: Benchmark, data: Path | None, limit: int | None) -> list[tuple[Task, str]]:
    """Return the tasks with worked solutions, and these, among the first *limit* tasks."""
    rows: Sequence[Raw] = ()
    if data is not None:
        rows = from_file(data)
    elif benchmark.source:
        rows = from_hub(benchmark)
    tasks = load(benchmark, data, limit=limit)
    pairs = zip(tasks, map(worked_solution, rows), strict=False)
    return [(task, solution) for task, solution in pairs if solution]


def worked_solution(row: Raw) -> str:
    """Return the solution in a *row*; "" without one. GSM8K has it in the column of the answer."""
    if HASHES in str(row.get("answer")):
        return str(row["answer"])
    return str(row.get("solution") or "")


async def grade(solutions: Sequence[str], golds: Sequence[Gold]) -> Sequence[Mark]:
    """Grade each of *solutions* against the gold at the same place."""
    graders = Graders()
    pairs = zip(solutions, golds, strict=True)
    return await asyncio.gather(*(gold.grade(solution, graders) for solution, gold in pairs))


def reason(task: Task, solution: str, mark: Mark) -> str:
    """Say why the *solution* of *task* is not right."""
    if mark == "ungraded":
        return "the grader was killed: it took too long"
    metric = task.gold.metric if isinstance(task.gold, Answer) else "math"
    answer = extract_answer(solution, metric)
    return f"the solution gives {answer or 'no answer'!r}, the answer is {str(task.gold)!r}"


def check(
    benchmark: Annotated[str, typer.Argument(help="A benchmark that comes with worked solutions.")],
    data: Annotated[
        Path | None,
        typer.Option(help="Read it from this JSONL or Parquet file."),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(min=2, help="Only this number of problems, the first ones."),
    ] = None,
) -> None:
    """Grade a benchmark's own solutions, and list those that do not agree with its answers."""
    found = worked(find(benchmark), data, limit)
    if len(found) < 2:
        raise ConfigurationError(
            f"{benchmark} comes without worked solutions: there is nothing to compare",
        )
    tasks = [task for task, _ in found]
    solutions = [solution for _, solution in found]
    own = [task.gold for task in tasks]
    others = [*own[1:], own[0]]
    require_graders(own)
    began = time.perf_counter()
    marks = asyncio.run(grade(solutions, own))
    seconds = time.perf_counter() - began
    print(
        f"{marks.count('right')} of {len(tasks)} solutions agree with the answer, in"
        f" {seconds:.1f} s",
    )
    for number, ((task, solution), mark) in enumerate(zip(found, marks, strict=True)):
        if mark != "right":
            print(f"  {task.name or number}: {reason(task, solution, mark)}")
    swapped = asyncio.run(grade(solutions, others))
    same = sum(gold == other for gold, other in zip(own, others, strict=True))
    print(
        f"against the next problem's answer: {swapped.count('right')} agree, of which {same} have"
        " the same answer",
    )
    for number, (task, other, mark) in enumerate(zip(tasks, others, swapped, strict=True)):
        if mark == "right" and task.gold != other:
            print(f"  {task.name or number}: {str(task.gold)!r} is taken for {str(other)!r}")
    if marks.count("right") < len(tasks):
        raise typer.Exit(1)


if __name__ == "__main__":
    script(check, EXAMPLES)
