"""
Reading: the large model reads a draft, and goes on from the first token that is improbable for it.

It is BiLD's rollback (Kim et al. 2023, arXiv:2302.07863) with a gap in place of a log-probability,
without BiLD's fallback, and with a threshold of its own for words.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias
from unicodedata import category

from stepspec.orchestrator import Chain, Rollback, Step, Token, Verdict
from stepspec.orchestrator.chain import THINK_END
from stepspec.orchestrator.interfaces import AnsweredBy

from .method import Amount, AtLeast1, Drafting
from .surprise import Limit, Measure, judge_tokens

Tokens: TypeAlias = Literal["digits", "formulas", "all"]
"""Which tokens are read strictly."""
OPERATORS = frozenset("-*/%^\N{MIDDLE DOT}")
"""Operators that Unicode does not count among the mathematical symbols."""


@dataclass(frozen=True, slots=True)
class StepReading(Drafting):
    """
    Keep a draft up to the first token that is too improbable for the large model, which goes on
    from there.

    A draft has *draft_tokens* tokens, across the ends of steps; null: it is a step. A repair has
    *repair_tokens* tokens, then the small model goes on; null: the rest of the step.

    The verdict is one prefill of the draft: no question and no second text. The surprise of a
    token, in nats, is its *measure*: "gap", by how much the likeliest token is likelier, or
    "logprob", minus its own log-probability. The draft is cut before the first token with a
    surprise above *threshold* among the *tokens* that are read strictly: "all"; those with
    "digits"; or those of "formulas", which are digits, operators and what follows a digit, such as
    a unit. Any other token may have a surprise of up to *words*. The end of the thinking is always
    read strictly. The score of a verdict is the largest surprise of a token that is read strictly.

    With a *threshold* of 0, repairs of one token and greedy models, the text is the large model's
    own, up to the rounding of a server that reads a text in other batches than it writes it.

    Servers report log-probabilities at temperature 1, whatever the sampling. A gap at a temperature
    T is the reported one divided by T, so that for *sampled* text, too, a *measure* "gap" cuts only
    tokens that the large model would hardly sample, and none where many are about equally likely.
    With "logprob", the large model's first choice has no surprise if the models are greedy, since
    it would write that token itself. If they sample, it is read like any other: to accept only the
    first of several unlikely tokens would sharpen what the large model samples.
    """

    repair_may_start_early: ClassVar[bool] = True
    answer: ClassVar[AnsweredBy] = "method"

    threshold: Amount = 0.5
    tokens: Tokens = "all"
    words: Amount = 4.0
    measure: Measure = "gap"
    draft_tokens: AtLeast1 | None = 12
    repair_tokens: AtLeast1 | None = 1
    sampled: bool = False

    async def draft(self, chain: Chain) -> Step:
        return await self.write_run(chain, self.draft_tokens)

    async def verify(self, chain: Chain, draft: Step) -> Verdict:
        top = 1 if self.measure == "gap" else 0
        (tokens,) = await self.large.score(chain, draft.text, top=top)
        strict = Limit(self.threshold, self.tokens)
        other = Limit(self.words, "words", scored=False)
        limits = [strict if chosen else other for chosen in strictly(tokens, self.tokens)]
        return judge_tokens(tokens, limits, self.measure, sampled=self.sampled)

    async def repair(self, chain: Chain, draft: Step, rollback: Rollback) -> Step:
        return await self.take_over(chain, self.repair_tokens)


def strictly(tokens: Sequence[Token], which: Tokens) -> Iterator[bool]:
    """Yield for each of *tokens* whether it is one of *which*, or ends the thinking."""
    after_digit = False
    for token in tokens:
        digit = any(char.isdigit() for char in token.text)
        formula = after_digit or any(map(is_operator, token.text))
        in_formula = which == "formulas" and formula
        yield which == "all" or digit or in_formula or THINK_END in token.text
        after_digit = digit


def is_operator(character: str) -> bool:
    return category(character) == "Sm" or character in OPERATORS
