"""The built-in benchmarks. The comment above each says what the data is."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import islice

from stepspec.orchestrator.answer import boxed

from ..grading.answers import HASHES, LETTERS, Metric, extract_answer
from ..grading.graders import Answer
from ..sample import Task
from .loading import Benchmark, Row
from .miniature import generate


def reader(
    problem: str = "problem",
    answer: str = "answer",
    metric: Metric = "math",
    name: str = "id",
) -> Callable[[Row, int], Task]:
    """
    Return a function that makes a task of the columns *problem* and *answer* of a row.

    The column *name*, or else the column ``id``, names the task, if the row has one.
    """

    def read(row: Row, seed: int) -> Task:
        gold = row[answer].rpartition(HASHES)[2].strip()
        if metric == "choice" or boxed(gold) is not None:
            gold = extract_answer(gold, metric)  # A worked solution states its answer in words.
        return Task(row[problem], Answer(gold, metric), name=row.get(name) or row.get("id", ""))

    return read


# Competition problems from algebra to precalculus, of five levels: 500 of MATH's test set. MATH is
# by Hendrycks et al. 2021, arXiv:2103.03874. Lightman et al. 2023, arXiv:2305.20050, chose the 500.
MATH500 = Benchmark(
    "math500",
    "MIT",
    ("problem", "answer"),
    reader(name="unique_id"),
    source="HuggingFaceH4/MATH-500",
)

# Word problems of primary school, two to eight steps of arithmetic each, by Cobbe et al. 2021,
# arXiv:2110.14168. The answer is the end of a worked solution.
GSM8K = Benchmark(
    "gsm8k",
    "MIT",
    ("question", "answer"),
    reader("question", metric="number"),
    source="openai/gsm8k",
    subset="main",
)

# Both papers of each year's American Invitational Mathematics Examination. Every answer is a number
# from 0 to 999. The problems of 2024 are the Mathematical Association of America's.
AIME24 = Benchmark(
    "aime24",
    "none stated",
    ("problem", "answer"),
    reader(metric="number", name="url"),
    source="HuggingFaceH4/aime_2024",
    split="train",
)
AIME25 = Benchmark(
    "aime25",
    "Apache-2.0",
    ("problem", "answer"),
    reader(metric="number", name="url"),
    source="math-ai/aime25",
)

# Problems of the AMC 12 of 2023 whose answers are numbers, put without their choices. They are the
# Mathematical Association of America's.
AMC23 = Benchmark(
    "amc23",
    "none stated",
    ("question", "answer"),
    reader("question", metric="number", name="url"),
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


def made(seed: int, count: int) -> list[Task]:
    """The first *count* problems of *seed*; more of them begin with the same ones."""
    return [
        Task(problem.text, Answer(str(problem.answer), "exact"))
        for problem in islice(generate(seed), count)
    ]


# The miniature pair's own word problems, three to six steps each, out of the eighth that no model
# was trained on (`miniature.py`). The pair knows no other words, so that there is no prompt.
ARITHMETIC = Benchmark(
    "arithmetic",
    "Apache-2.0",
    ("problem", "answer"),
    reader(metric="exact"),
    prompt=None,
    made=made,
)
