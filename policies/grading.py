"""
Grades of steps, from the probabilities that a judge gives to digits.

One question grades one step, as in SpecReason. One question about several steps at once, whose answer is the number of
the first wrong step, is ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import reduce
from itertools import accumulate

from stepspec.orchestrator import Accept, Chain, Model, Rollback, Step, Verdict
from stepspec.orchestrator.chain import THINK_END
from stepspec.prompts import load

from .option_types import Grade

DIGITS = "0123456789"
GRADE, FIRST_WRONG = load("specreason.grade"), load("specreason.first-wrong")
BEST = 9  # the highest grade
MOST = 9  # paragraphs that a digit can name


def likeliest(grades: Mapping[str, float]) -> float:
    """The digit with the highest probability: the one that a greedy judge writes."""
    return float(max(grades, key=lambda digit: grades[digit]))


def expected(grades: Mapping[str, float]) -> float:
    """The mean digit under the judge's probabilities, 0 to 9."""
    return sum(int(digit) * p for digit, p in grades.items()) / sum(grades.values())


async def ask_grade(judge: Model, chain: Chain) -> Mapping[str, float]:
    """Ask *judge* for the grade of the last step of *chain*; return the probability of every digit."""
    return await judge.ask(chain, GRADE.text, DIGITS, opening=GRADE.opening)


async def draft_several(model: Model, chain: Chain, count: int) -> Step:
    """Let *model* write *count* steps as one draft: fewer if one is cut or ends the thinking."""
    steps: list[Step] = []
    while len(steps) < count and (not steps or steps[-1].stop == "delimiter"):
        step = await model.write(chain)
        if steps and not step.text and step.stop == "length":
            break  # The budget ended with the step before.
        steps.append(step)
        chain = chain.extend(step)
    return reduce(_joined, steps)


async def judge_several(
    judge: Model, chain: Chain, draft: Step, *, threshold: Grade, greedy: bool, sure: float
) -> Verdict | None:
    """
    Ask *judge* for the first wrong step of *draft*, and cut the draft before it. None if *draft* is a single step.

    The grade of a step is 9 times the probability that neither it nor a step before it is wrong. Steps are accepted up
    to the first grade below *threshold*; if *greedy*, up to the step that the likeliest answer names (0: accept all).
    Probabilities are shares of the total that the judge puts on the possible answers. A total below *sure* rejects the
    draft.
    """
    ends = _ends(chain, draft.text)
    if len(ends) == 1:
        return None
    answers = DIGITS[: len(ends) + 1]
    question = FIRST_WRONG.fill(count=len(ends))
    probabilities = await judge.ask(chain.extend(draft), question, answers, opening=FIRST_WRONG.opening)
    total = sum(probabilities.values())
    if total == 0 or total < sure:
        return Rollback(reason="no grade")
    wrong_by = list(accumulate(probabilities[answer] / total for answer in answers[1:]))
    grades = [BEST * max(0.0, 1 - wrong) for wrong in wrong_by]
    if greedy:
        first_wrong = int(max(answers, key=lambda answer: probabilities[answer]))
        stands = (first_wrong or len(answers)) - 1
    else:
        stands = next((place for place, grade in enumerate(grades) if grade < threshold), len(ends))
    if stands == len(ends):
        return Accept(grades[-1])
    return Rollback(ends[stands - 1] if stands else 0, reason="grade", score=grades[stands])


def _joined(draft: Step, step: Step) -> Step:
    tokens = (*draft.tokens, *step.tokens) if draft.vocabulary == step.vocabulary else ()
    return replace(step, text=draft.text + step.text, tokens=tokens, pieces=(*draft.pieces, *step.pieces))


def _ends(chain: Chain, text: str) -> list[int]:
    """Where the steps of *text*, which follows *chain*, end, in characters; step `MOST` ends with the text."""
    ends: list[int] = []
    at = 0
    for end in (*chain.ends.places(chain.text, text), len(text)):
        if text[at:end].replace(THINK_END, "").strip():
            ends.append(end)
        elif ends:
            ends[-1] = end
        at = end
    return [*ends[: min(len(ends), MOST) - 1], len(text)] if ends else [len(text)]
