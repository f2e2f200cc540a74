"""
AIME 2024: both papers of the American Invitational Mathematics Examination; every answer is a number from 0 to 999.

Dataset: HuggingFaceH4/aime_2024, train, 30 problems.
Licence: none stated; the problems are the Mathematical Association of America's.
Metric: the same number; what is no plain number goes to math-verify.
Prompt: eval.boxed.
"""

from __future__ import annotations

from ..experiments.arms import Task
from .benchmark import Benchmark, Row


def read(row: Row, seed: int) -> Task:
    name = row.get("url") or row.get("id", "")
    return Task(row["problem"], row["answer"], name=name, reference=row.get("solution", ""))


AIME24 = Benchmark(
    "aime24",
    "none stated",
    "number",
    ("problem", "answer"),
    read,
    source="HuggingFaceH4/aime_2024",
    split="train",
)
