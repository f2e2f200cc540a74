"""
The built-in benchmarks: of each, a function from a row to a `Task`, whose docstring says what the
data is.
"""

from __future__ import annotations

import random
from itertools import islice

from ..grading.answers import HASHES, LETTERS
from ..grading.graders import Answer
from ..sample import Task
from .loading import Benchmark, Row
from .miniature import final_answer, generate, worked_steps


def math500(row: Row, seed: int) -> Task:
    """
    MATH500: competition problems from algebra to precalculus, of five levels; 500 of MATH's test
    set.

    Dataset: HuggingFaceH4/MATH-500, test, 500 problems. MATH is by Hendrycks et al. 2021,
    arXiv:2103.03874; the choice is that of Lightman et al. 2023, arXiv:2305.20050. Licence: MIT.
    Metric: the same mathematical object, by algebra. Prompt: eval.boxed.
    """
    return Task(
        row["problem"],
        Answer(row["answer"]),
        name=row.get("unique_id", ""),
        reference=row.get("solution", ""),
    )


MATH500 = Benchmark(
    "math500",
    "MIT",
    ("problem", "answer"),
    math500,
    source="HuggingFaceH4/MATH-500",
)


def gsm8k(row: Row, seed: int) -> Task:
    """
    GSM8K: word problems of primary school, two to eight steps of arithmetic each.

    Dataset: openai/gsm8k, main, test, 1,319 problems, by Cobbe et al. 2021, arXiv:2110.14168.
    Licence: MIT.
    Metric: the same number; what is no plain number is compared by algebra.
    Prompt: eval.boxed.
    """
    gold = Answer(row["answer"].rpartition(HASHES)[2].strip(), "number")
    return Task(row["question"], gold, reference=row["answer"])


GSM8K = Benchmark(
    "gsm8k",
    "MIT",
    ("question", "answer"),
    gsm8k,
    source="openai/gsm8k",
    subset="main",
)


def aime(row: Row, seed: int) -> Task:
    """
    AIME 2024 and 2025: both papers of each year's American Invitational Mathematics Examination.

    Every answer is a number from 0 to 999.

    Dataset: HuggingFaceH4/aime_2024, train, and math-ai/aime25, test; 30 problems each.
    Licence: 2024: none stated; the problems are the Mathematical Association of America's. 2025:
    Apache-2.0.
    Metric: the same number; what is no plain number is compared by algebra. Prompt: eval.boxed.
    """
    name = row.get("url") or row.get("id", "")
    return Task(
        row["problem"],
        Answer(row["answer"], "number"),
        name=name,
        reference=row.get("solution", ""),
    )


COLUMNS = ("problem", "answer")
AIME24 = Benchmark(
    "aime24",
    "none stated",
    COLUMNS,
    aime,
    source="HuggingFaceH4/aime_2024",
    split="train",
)
AIME25 = Benchmark("aime25", "Apache-2.0", COLUMNS, aime, source="math-ai/aime25")


def amc23(row: Row, seed: int) -> Task:
    """
    AMC 2023: problems of the AMC 12 whose answers are numbers, put without their choices.

    Dataset: math-ai/amc23, test, 40 problems.
    Licence: none stated; the problems are the Mathematical Association of America's.
    Metric: the same number; what is no plain number is compared by algebra.
    Prompt: eval.boxed.
    """
    return Task(
        row["question"],
        Answer(row["answer"], "number"),
        name=row.get("url") or row.get("id", ""),
    )


AMC23 = Benchmark(
    "amc23",
    "none stated",
    ("question", "answer"),
    amc23,
    source="math-ai/amc23",
)


RIGHT = "Correct Answer"
WRONG = ("Incorrect Answer 1", "Incorrect Answer 2", "Incorrect Answer 3")


def gpqa_diamond(row: Row, seed: int) -> Task:
    """
    GPQA Diamond: questions of biology, physics and chemistry that experts answer and others cannot
    look up.

    Each has four choices.

    Dataset: Idavidrein/gpqa, gpqa_diamond, train, 198 questions, by Rein et al. 2023,
    arXiv:2311.12022. One has to register. The choices of a question are shuffled by the seed and
    its text, for all arms alike. Licence: CC BY 4.0; the authors ask that no example be put online.
    Metric: the right letter. Prompt: eval.choice.
    """
    question = row["Question"].strip()
    choices = [row[column].strip() for column in (RIGHT, *WRONG)]
    order = random.Random(f"{seed} {question}").sample(range(len(choices)), len(choices))
    listed = "\n".join(
        f"({letter}) {choices[place]}" for letter, place in zip(LETTERS, order, strict=False)
    )
    name = row.get("Record ID", "")
    return Task(
        f"{question}\n\n{listed}",
        Answer(LETTERS[order.index(0)], "choice"),
        name=name,
        question=question,
    )


GPQA_DIAMOND = Benchmark(
    "gpqa_diamond",
    "CC BY 4.0",
    ("Question", RIGHT, *WRONG),
    gpqa_diamond,
    source="Idavidrein/gpqa",
    subset="gpqa_diamond",
    split="train",
    prompt="eval.choice",
)


def arithmetic(row: Row, seed: int) -> Task:
    """
    Arithmetic: the miniature pair's own word problems, three to six steps each, as many as wanted.

    Dataset: made here from the seed, out of the half that no model was trained on;
    `testbed/problems.py` says how. Licence: Apache-2.0, like the code. Metric: the same text.
    Prompt: none, for the pair knows no other words than the problem's.
    """
    return Task(row["problem"], Answer(row["answer"], "exact"))


def made(seed: int, count: int) -> list[Task]:
    """The first *count* problems of *seed*; more of them begin with the same ones."""
    problems = islice(generate(seed, "test"), count)
    return [
        Task(
            p.text,
            Answer(str(p.answer), "exact"),
            reference="".join(worked_steps(p)) + final_answer(p.answer),
        )
        for p in problems
    ]


ARITHMETIC = Benchmark(
    "arithmetic",
    "Apache-2.0",
    ("problem", "answer"),
    arithmetic,
    prompt=None,
    made=made,
)
