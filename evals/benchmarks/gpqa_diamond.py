"""
GPQA Diamond: questions of biology, physics and chemistry that experts answer and others cannot look up; four choices.

Dataset: Idavidrein/gpqa, gpqa_diamond, train, 198 questions, by Rein et al. 2023, arXiv:2311.12022.
One has to register. The choices of a question are shuffled by the seed and its text, for all arms alike.
Licence: CC BY 4.0; the authors ask that no example be put online.
Metric: the right letter.
Prompt: eval.choice.
"""

from __future__ import annotations

import random

from ..grading.answers import LETTERS
from ..grading.graders import Answer
from ..sample import Task
from .loading import Benchmark, Row

RIGHT = "Correct Answer"
WRONG = ("Incorrect Answer 1", "Incorrect Answer 2", "Incorrect Answer 3")


def read(row: Row, seed: int) -> Task:
    question, choices = row["Question"].strip(), [row[column].strip() for column in (RIGHT, *WRONG)]
    order = random.Random(f"{seed} {question}").sample(range(len(choices)), len(choices))
    listed = "\n".join(f"({letter}) {choices[place]}" for letter, place in zip(LETTERS, order, strict=True))
    name = row.get("Record ID", "")
    return Task(f"{question}\n\n{listed}", Answer(LETTERS[order.index(0)], "choice"), name=name, question=question)


GPQA_DIAMOND = Benchmark(
    "gpqa_diamond",
    "CC BY 4.0",
    ("Question", RIGHT, *WRONG),
    read,
    source="Idavidrein/gpqa",
    subset="gpqa_diamond",
    split="train",
    prompt="eval.choice",
)
