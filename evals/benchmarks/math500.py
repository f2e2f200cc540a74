"""
MATH500: competition problems from algebra to precalculus, of five levels; 500 of MATH's test set.

Dataset: HuggingFaceH4/MATH-500, test, 500 problems. MATH is by Hendrycks et al. 2021, arXiv:2103.03874; the choice is
that of Lightman et al. 2023, arXiv:2305.20050.
Licence: MIT.
Metric: the same mathematical object, by math-verify.
Prompt: eval.boxed.
"""

from __future__ import annotations

from ..grading.graders import Answer
from ..sample import Task
from .loading import Benchmark, Row


def read(row: Row, seed: int) -> Task:
    return Task(row["problem"], Answer(row["answer"]), name=row.get("unique_id", ""), reference=row.get("solution", ""))


MATH500 = Benchmark("math500", "MIT", ("problem", "answer"), read, source="HuggingFaceH4/MATH-500")
