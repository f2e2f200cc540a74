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
from stepspec.evals.benchmarks import find, load
from stepspec.evals.grading.answers import extract_answer
from stepspec.evals.grading.graders import Answer, Gold, Graders, Mark, require_graders
from stepspec.evals.sample import Task
from stepspec.orchestrator.errors import ConfigurationError

EXAMPLES = """
Examples:

  python -m lab.grading math500

  python -m lab.grading gsm8k --data gsm8k.parquet

  python -m lab.grading math500 --limit 50
"""


async def grade(tasks: Sequence[Task], golds: Sequence[Gold]) -> Sequence[Mark]:
    """Grade the reference of each of *tasks* against the gold at the same place."""
    graders = Graders()
    pairs = zip(tasks, golds, strict=True)
    return await asyncio.gather(*(gold.grade(task.reference, graders) for task, gold in pairs))


def reason(task: Task, mark: Mark) -> str:
    """Say why the reference of *task* is not right."""
    if mark == "ungraded":
        return "the grader was killed: it took too long"
    metric = task.gold.metric if isinstance(task.gold, Answer) else "math"
    answer = extract_answer(task.reference, metric)
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
    tasks = [task for task in load(find(benchmark), data, limit=limit) if task.reference]
    if len(tasks) < 2:
        raise ConfigurationError(
            f"{benchmark} comes without worked solutions: there is nothing to compare",
        )
    own = [task.gold for task in tasks]
    others = [*own[1:], own[0]]
    require_graders(own)
    began = time.perf_counter()
    marks = asyncio.run(grade(tasks, own))
    seconds = time.perf_counter() - began
    print(
        f"{marks.count('right')} of {len(tasks)} solutions agree with the answer, in"
        f" {seconds:.1f} s",
    )
    for number, (task, mark) in enumerate(zip(tasks, marks, strict=True)):
        if mark != "right":
            print(f"  {task.name or number}: {reason(task, mark)}")
    swapped = asyncio.run(grade(tasks, others))
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
