"""
AIME 2024 and 2025: both papers of each year's American Invitational Mathematics Examination.

Every answer is a number from 0 to 999.

Dataset: HuggingFaceH4/aime_2024, train, and math-ai/aime25, test; 30 problems each.
Licence: 2024: none stated; the problems are the Mathematical Association of America's. 2025: Apache-2.0.
Metric: the same number; what is no plain number goes to math-verify.
Prompt: eval.boxed.
"""

from __future__ import annotations

from ..grading.graders import Answer
from ..sample import Task
from .loading import Benchmark, Row


def read(row: Row, seed: int) -> Task:
    name = row.get("url") or row.get("id", "")
    return Task(row["problem"], Answer(row["answer"], "number"), name=name, reference=row.get("solution", ""))


COLUMNS = ("problem", "answer")
AIME24 = Benchmark("aime24", "none stated", COLUMNS, read, source="HuggingFaceH4/aime_2024", split="train")
AIME25 = Benchmark("aime25", "Apache-2.0", COLUMNS, read, source="math-ai/aime25")
