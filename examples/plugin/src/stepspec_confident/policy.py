"""
Confident: the small model's own probabilities decide, and the large model checks the drafts that
are in doubt.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp
from typing import Annotated, ClassVar

from pydantic import Field

from stepspec import Accept, Chain, Method, Model, Rollback, Step, Threshold, Verdict
from stepspec.prompts import load

CHECK = load("confident.check", "stepspec_confident")
YES = "Yes"
NO = "No"
Probability = Annotated[float, Field(ge=0, le=1)]


@dataclass(frozen=True, slots=True)
class Confident:
    """
    Accept a draft that the small model was sure of; the large model checks the others.

    The small model is sure of a draft if each of its tokens has a probability of *threshold* or
    more. The large model accepts a draft in doubt if its yes has a probability of *agreement* or
    more, and rewrites it otherwise.
    """

    # A repair depends on nothing but the chain. It may begin early.
    repair_may_start_early: ClassVar[bool] = True

    small: Model
    large: Model
    threshold: Probability = 0.5
    agreement: Probability = 0.5

    @property
    def answerer(self) -> Model:
        return self.large

    async def draft(self, chain: Chain) -> Step:
        return await self.small.write(chain, top=1)  # with the probability of every token

    async def verify(self, chain: Chain, draft: Step) -> Verdict:
        if least_probability(draft) >= self.threshold:
            return Accept(least_probability(draft))
        answer = await self.large.ask(
            chain.extend(draft), CHECK.text, (YES, NO), opening=CHECK.opening
        )
        yes = answer[YES]
        return Accept(yes) if yes >= self.agreement else Rollback(reason="check", score=yes)

    async def repair(self, chain: Chain, draft: Step, rollback: Rollback) -> Step:
        return await self.large.write(chain)


def least_probability(draft: Step) -> float:
    """Return the probability of the least likely token of *draft*; 0 if the server reports none."""
    return min((exp(token.logprob) for token in draft.tokens), default=0.0)


CONFIDENT = Method(
    Confident,
    needs=(
        "the probability of every token as it is written (small); probabilities of two chosen"
        " tokens (large)"
    ),
    cost=(
        "one judge token of the large model for a draft in doubt; a rejected step is written again"
    ),
    # The strictest value is the first.
    threshold=Threshold("threshold", (1, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0)),
    prompts=(CHECK.name,),
    compared="threshold",
)
