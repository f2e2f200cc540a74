"""
Grades of steps, from the probabilities that a judge gives to digits.

One question grades one step, as in SpecReason. What is ours, and in no paper, makes verdicts cheaper: one question that
judges several steps at once, whose answer is the number of the first wrong step; shorter questions; and steps that are
not judged at all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import reduce
from itertools import accumulate, takewhile
from typing import Literal, TypeAlias

from stepspec.orchestrator import Accept, Chain, Model, Rollback, Step, Verdict
from stepspec.orchestrator.chain import THINK_END
from stepspec.prompts import Prompt, load

from .option_types import Grade

DIGITS = "0123456789"
INSTRUCTION, FIRST_WRONG = load("specreason.grade-before"), load("specreason.first-wrong")
BEST = 9  # the highest grade
MOST = 9  # paragraphs that a digit can name
Placement: TypeAlias = Literal["after", "before", "short"]
"""Where a judge reads what a grade means: after every draft, once before the reasoning, or nowhere."""
QUESTIONS: Mapping[Placement, Prompt] = {
    "after": load("specreason.grade"),
    "before": load("specreason.grade-known"),
    "short": load("specreason.grade-short"),
}


def likeliest(grades: Mapping[str, float]) -> float:
    """The digit with the highest probability: the one that a greedy judge writes."""
    return float(max(grades, key=lambda digit: grades[digit]))


def expected(grades: Mapping[str, float]) -> float:
    """The mean digit under the judge's probabilities, 0 to 9."""
    return sum(int(digit) * p for digit, p in grades.items()) / sum(grades.values())


async def ask_grade(judge: Model, chain: Chain, question: Placement) -> Mapping[str, float]:
    """Ask *judge* for the grade of the last step of *chain*; return the probability of every digit."""
    prompt = QUESTIONS[question]
    return await judge.ask(instructed(chain, question), prompt.text, DIGITS, opening=prompt.opening)


def instructed(chain: Chain, question: Placement) -> Chain:
    """
    Return *chain* as a judge reads it: with *question* "before", what a grade means stands after the problem.

    It is part of the last message of the user, because some chat templates have no system message. Calls of tools may
    follow that message.
    """
    if question != "before":
        return chain
    last = len(chain.messages) - 1
    at = next((place for place in range(last, -1, -1) if chain.messages[place].role == "user"), last)
    asked = replace(chain.messages[at], content=f"{chain.messages[at].content}\n\n{INSTRUCTION.text}")
    return replace(chain, messages=(*chain.messages[:at], asked, *chain.messages[at + 1 :]))


def skips(chain: Chain, draft: Step, skip: int, after: int) -> bool:
    """
    Whether *draft* is accepted without a verdict: *skip* drafts between two verdicts, once *after* were accepted.

    That depends on the authors of the chain's steps alone. Grades would not do: a lookahead judges drafts whose
    predecessors have no grades yet, and the chain has to be the same at any lookahead.
    """
    if not skip or draft.stop != "delimiter" or chain.closed:
        return False
    accepted = sum(1 for _ in takewhile(lambda step: step.author == "small", reversed(chain.steps)))
    return accepted >= after and (accepted - after) % (skip + 1) < skip


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
