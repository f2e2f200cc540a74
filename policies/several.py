"""
Several steps in one draft and one question about all of them, for judges whose every verdict is dear.

Ours: no paper has it. The answer is the number of the first wrong step, so that one token judges all.
"""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from itertools import accumulate

from stepspec.orchestrator import Accept, Chain, Model, Rollback, Step, Verdict
from stepspec.orchestrator.chain import THINK_END
from stepspec.prompts import load

from .option_types import Grade
from .scores import DIGITS

FIRST_WRONG = load("specreason.first-wrong")
BEST = 9  # the highest grade
MOST = 9  # paragraphs that a digit can name


async def drafted(model: Model, chain: Chain, count: int) -> Step:
    """Let *model* write *count* steps as one draft: fewer if one is cut or ends the thinking."""
    steps: list[Step] = []
    while len(steps) < count and (not steps or steps[-1].stop == "delimiter"):
        step = await model.write(chain)
        if steps and not step.text and step.stop == "length":
            break  # The budget ended with the step before.
        steps.append(step)
        chain = chain.extend(step)
    return reduce(_joined, steps)


async def judged(
    judge: Model, chain: Chain, draft: Step, *, threshold: Grade, greedy: bool, sure: float
) -> Verdict | None:
    """
    Ask *judge* for the first wrong step of *draft*, and cut the draft before it; None for a draft of a single step.

    A step stands while the probability that nothing up to it is wrong, times 9, reaches *threshold*; if *greedy*, while
    its number is below the likeliest answer, or that is 0. Probabilities are shares of what is on the possible answers,
    which has to be *sure* at least.
    """
    ends = _ends(chain, draft.text)
    if len(ends) == 1:
        return None
    answers = DIGITS[: len(ends) + 1]
    question = FIRST_WRONG.text.format(count=len(ends))
    found = await judge.ask(chain.extend(draft), question, answers, opening=FIRST_WRONG.opening)
    total = sum(found.values())
    if total == 0 or total < sure:
        return Rollback(reason="no grade")
    wrong_by = list(accumulate(found[answer] / total for answer in answers[1:]))
    grades = [BEST * max(0.0, 1 - wrong) for wrong in wrong_by]
    if greedy:
        first = int(max(answers, key=lambda answer: found[answer]))
        stands = (first or len(answers)) - 1
    else:
        stands = next((place for place, grade in enumerate(grades) if grade < threshold), len(ends))
    if stands == len(ends):
        return Accept(grades[-1])
    return Rollback(ends[stands - 1] if stands else 0, reason="grade", score=grades[stands])


def _joined(draft: Step, step: Step) -> Step:
    tokens = (*draft.tokens, *step.tokens) if draft.vocabulary == step.vocabulary else ()
    return replace(step, text=draft.text + step.text, tokens=tokens, pieces=(*draft.pieces, *step.pieces))


def _ends(chain: Chain, text: str) -> list[int]:
    """Where the steps of *text* end after *chain*, in characters; the last of `MOST` goes to the end of the text."""
    ends: list[int] = []
    at = 0
    for end in (*chain.ends.places(chain.text, text), len(text)):
        if text[at:end].replace(THINK_END, "").strip():
            ends.append(end)
        elif ends:
            ends[-1] = end
        at = end
    return [*ends[: min(len(ends), MOST) - 1], len(text)] if ends else [len(text)]
