"""The built-in benchmarks. The text below each of them says what the data is."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import islice

from ..grading.answers import HASHES, LETTERS, Metric
from ..grading.graders import Answer
from ..sample import Task
from .loading import Benchmark, Row
from .miniature import final_answer, generate, worked_steps

NAMES = ("unique_id", "url", "id")
"""The columns that may have the name of a problem."""


def reader(problem: str, metric: Metric, reference: str = "solution") -> Callable[[Row, int], Task]:
    """
    Return a function that makes a task of a row.

    *problem* and *reference* are the columns of the problem and of its worked solution. The true
    answer is in the column "answer", after the mark of GSM8K if it has one.
    """

    def read(row: Row, seed: int) -> Task:
        gold = row["answer"].rpartition(HASHES)[2].strip()
        names = [row[column] for column in NAMES if row.get(column)]
        return Task(
            row[problem],
            Answer(gold, metric),
            name=next(iter(names), ""),
            reference=row.get(reference, ""),
        )

    return read


COLUMNS = ("problem", "answer")
MATH500 = Benchmark(
    "math500", "MIT", COLUMNS, reader("problem", "math"), source="HuggingFaceH4/MATH-500"
)
"""
MATH500: competition problems from algebra to precalculus, of five levels; 500 of MATH's test set.

Dataset: HuggingFaceH4/MATH-500, test, 500 problems. MATH is by Hendrycks et al. 2021,
arXiv:2103.03874; the choice is that of Lightman et al. 2023, arXiv:2305.20050. Licence: MIT.
Metric: the same mathematical object, by math-verify. Prompt: eval.boxed.
"""

GSM8K = Benchmark(
    "gsm8k",
    "MIT",
    ("question", "answer"),
    reader("question", "number", reference="answer"),
    source="openai/gsm8k",
    subset="main",
)
"""
GSM8K: word problems of primary school, two to eight steps of arithmetic each.

Dataset: openai/gsm8k, main, test, 1,319 problems, by Cobbe et al. 2021, arXiv:2110.14168.
Licence: MIT. Metric: the same number; math-verify compares what is no plain number.
Prompt: eval.boxed.
"""

AIME24 = Benchmark(
    "aime24",
    "none stated",
    COLUMNS,
    reader("problem", "number"),
    source="HuggingFaceH4/aime_2024",
    split="train",
)
AIME25 = Benchmark(
    "aime25", "Apache-2.0", COLUMNS, reader("problem", "number"), source="math-ai/aime25"
)
"""
AIME 2024 and 2025: both papers of each year's American Invitational Mathematics Examination.

Every answer is a number from 0 to 999. Dataset: HuggingFaceH4/aime_2024, train, and
math-ai/aime25, test; 30 problems each. Licence: 2024: none stated; the problems are the
Mathematical Association of America's. 2025: Apache-2.0. Metric: the same number; math-verify
compares what is no plain number. Prompt: eval.boxed.
"""

AMC23 = Benchmark(
    "amc23",
    "none stated",
    ("question", "answer"),
    reader("question", "number"),
    source="math-ai/amc23",
)
"""
AMC 2023: problems of the AMC 12 whose answers are numbers, put without their choices.

Dataset: math-ai/amc23, test, 40 problems. Licence: none stated; the problems are the Mathematical
Association of America's. Metric: the same number; math-verify compares what is no plain number.
Prompt: eval.boxed.
"""

RIGHT = "Correct Answer"
WRONG = ("Incorrect Answer 1", "Incorrect Answer 2", "Incorrect Answer 3")


def gpqa_diamond(row: Row, seed: int) -> Task:
    """Make a task of a question. *seed* and the question decide the order of its choices."""
    question = row["Question"].strip()
    choices = [row[column].strip() for column in (RIGHT, *WRONG)]
    order = random.Random(f"{seed} {question}").sample(range(len(choices)), len(choices))
    listed = "\n".join(
        f"({letter}) {choices[place]}" for letter, place in zip(LETTERS, order, strict=False)
    )
    return Task(
        f"{question}\n\n{listed}",
        Answer(LETTERS[order.index(0)], "choice"),
        name=row.get("Record ID", ""),
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
"""
GPQA Diamond: questions of biology, physics and chemistry that experts answer and others cannot
look up.

Each has four choices, which are shuffled for all arms alike. Dataset: Idavidrein/gpqa,
gpqa_diamond, train, 198 questions, by Rein et al. 2023, arXiv:2311.12022. One has to register.
Licence: CC BY 4.0; the authors ask that no example be put online. Metric: the right letter.
Prompt: eval.choice.
"""


def made(seed: int, count: int) -> list[Task]:
    """Return the first *count* problems of *seed*. More problems begin with the same ones."""
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
    "arithmetic", "Apache-2.0", COLUMNS, reader("problem", "exact"), prompt=None, made=made
)
"""
Arithmetic: the miniature pair's own word problems, three to six steps each, without an end.

Dataset: made here from the seed, out of the half that no model was trained on (see `miniature`).
Licence: Apache-2.0, like the code. Metric: the same text. Prompt: none, because the pair knows no
other words than the problem's.
"""
