"""
Arithmetic: the miniature pair's own word problems, three to six steps each, as many as wanted.

Dataset: made here from the seed, out of the half that no model was trained on; `testbed/problems.py` says how.
Licence: Apache-2.0, like the code.
Metric: the same text.
Prompt: none, for the pair knows no other words than the problem's.
"""

from __future__ import annotations

from itertools import islice

from ..grading.graders import Answer
from ..sample import Task
from ..testbed.problems import final_answer, generate, worked_steps
from .loading import Benchmark, Row


def read(row: Row, seed: int) -> Task:
    return Task(row["problem"], Answer(row["answer"], "exact"))


def made(seed: int, count: int) -> list[Task]:
    """The first *count* problems of *seed*; more of them begin with the same ones."""
    problems = islice(generate(seed, "test"), count)
    return [
        Task(p.text, Answer(str(p.answer), "exact"), reference="".join(worked_steps(p)) + final_answer(p.answer))
        for p in problems
    ]


ARITHMETIC = Benchmark("arithmetic", "Apache-2.0", ("problem", "answer"), read, prompt=None, made=made)
