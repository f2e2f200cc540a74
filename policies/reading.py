"""
Reading: the large model reads each step of the small one and goes on from the first token it would hardly have written.

It is BiLD's rollback (Kim et al. 2023, arXiv:2302.07863) at the length of a step, without BiLD's fallback, and with
a threshold of its own for numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean
from typing import ClassVar, Literal

from stepspec.orchestrator import Accept, Chain, Model, Rollback, Step, Token, Verdict
from stepspec.orchestrator.chain import THINK_END
from stepspec.orchestrator.errors import MissingCapability
from stepspec.orchestrator.interfaces import AnsweredBy

from .option_types import Amount


@dataclass(frozen=True, slots=True)
class StepReading:
    """
    Keep a step up to the first token that is too improbable for the large model, which goes on from there.

    The verdict is one prefill of the step: no question and no second text. The surprise of a token, in nats, is its
    *measure*: "gap", by how much the likeliest token is likelier, or "logprob", minus its own log-probability. The step
    is cut before the first token whose surprise is above *threshold* if the token has a digit or ends the thinking, and
    above *words* if it does not: slips sit in numbers, and two models often say the same in other words. A step whose
    mean surprise is above *mean* is cut before its most surprising token: errors of reasoning spread over a step. The
    score of a verdict is the largest surprise of a number.

    Servers report log-probabilities at temperature 1, whatever the sampling. A gap at a temperature T is the reported
    one divided by T, so that for *sampled* text, too, a *measure* "gap" cuts only tokens that the large model would
    hardly sample, and none where many are about equally likely. With "logprob", the large model's first choice has no
    surprise if the models are greedy, since it would write that token itself. If they sample, it is read like any
    other: to accept only the first of several unlikely tokens would sharpen what the large model samples.
    """

    foreseeable: ClassVar[bool] = True
    answer: ClassVar[AnsweredBy] = "method"

    small: Model
    large: Model
    threshold: Amount = 2.0
    words: Amount = 5.0
    mean: Amount = 99.0
    measure: Literal["gap", "logprob"] = "gap"
    sampled: bool = False

    @property
    def answerer(self) -> Model:
        return self.large

    async def draft(self, chain: Chain) -> Step:
        return await self.small.write(chain)

    async def verify(self, chain: Chain, draft: Step) -> Verdict:
        (tokens,) = await self.large.score(chain, draft.text, top=1 if self.measure == "gap" else 0)
        surprises = [self.surprise(token) for token in tokens]
        keep, worst = 0, 0.0
        for token, surprise in zip(tokens, surprises, strict=True):
            if number(token):
                worst = max(worst, surprise)
            if surprise > (self.threshold if number(token) else self.words):
                return Rollback(keep, reason="number" if number(token) else "word", score=worst)
            keep += len(token.text)
        if tokens and fmean(surprises) > self.mean:
            place = surprises.index(max(surprises))
            return Rollback(sum(len(token.text) for token in tokens[:place]), reason="mean", score=worst)
        return Accept(worst)

    async def repair(self, chain: Chain, draft: Step, rollback: Rollback) -> Step:
        return await self.large.write(chain)

    def surprise(self, token: Token) -> float:
        """How improbable *token* is to the large model, in nats."""
        if self.measure == "gap":
            return gap(token)
        return -token.logprob if self.sampled or token.rank != 1 else 0.0


def number(token: Token) -> bool:
    """Whether *token* is read as part of a number: it has a digit. The end of the thinking is read as strictly."""
    return any(character.isdigit() for character in token.text) or THINK_END in token.text


def gap(token: Token) -> float:
    """By how many nats the likeliest token at the position of *token* is likelier; 0 if it is the likeliest itself."""
    if token.rank == 1:
        return 0.0
    if not token.top:
        raise MissingCapability("the large model's endpoint does not return the top tokens, which 'reading' needs")
    return max(0.0, token.top[0].logprob - token.logprob)
