"""
AIME 2025: both papers of the American Invitational Mathematics Examination; every answer is a number from 0 to 999.

Dataset: math-ai/aime25, test, 30 problems.
Licence: Apache-2.0.
Metric: the same number; what is no plain number goes to math-verify.
Prompt: eval.boxed.
"""

from __future__ import annotations

from ..experiments.arms import Task
from .benchmark import Benchmark, Row


def read(row: Row, seed: int) -> Task:
    return Task(row["problem"], row["answer"], name=row.get("id", ""))


AIME25 = Benchmark("aime25", "Apache-2.0", "number", ("problem", "answer"), read, source="math-ai/aime25")
