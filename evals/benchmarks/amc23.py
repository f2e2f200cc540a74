"""
AMC 2023: problems of the AMC 12 whose answers are numbers, put without their choices.

Dataset: math-ai/amc23, test, 40 problems.
Licence: none stated; the problems are the Mathematical Association of America's.
Metric: the same number; what is no plain number goes to math-verify.
Prompt: eval.boxed.
"""

from __future__ import annotations

from ..grading.graders import Answer
from ..sample import Task
from .loading import Benchmark, Row


def read(row: Row, seed: int) -> Task:
    return Task(row["question"], Answer(row["answer"], "number"), name=row.get("url") or row.get("id", ""))


AMC23 = Benchmark("amc23", "none stated", ("question", "answer"), read, source="math-ai/amc23")
