"""
GSM8K: word problems of primary school, two to eight steps of arithmetic each.

Dataset: openai/gsm8k, main, test, 1,319 problems, by Cobbe et al. 2021, arXiv:2110.14168.
Licence: MIT.
Metric: the same number; what is no plain number goes to math-verify.
Prompt: eval.boxed.
"""

from __future__ import annotations

from ..grading.answers import HASHES
from ..grading.graders import Answer
from ..sample import Task
from .loading import Benchmark, Row


def read(row: Row, seed: int) -> Task:
    gold = Answer(row["answer"].rpartition(HASHES)[2].strip(), "number")
    return Task(row["question"], gold, reference=row["answer"])


GSM8K = Benchmark("gsm8k", "MIT", ("question", "answer"), read, source="openai/gsm8k", subset="main")
