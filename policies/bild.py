"""
BiLD: the small model falls back to the large one where it is unsure, and is rolled back where the
large one disagrees.

Kim et al. 2023, arXiv:2302.07863.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp
from typing import ClassVar, Literal

from stepspec.orchestrator import Accept, Chain, Rollback, Step, Token, Verdict
from stepspec.orchestrator.interfaces import AnsweredBy

from .method import Amount, AtLeast1, Drafting, Share
from .surprise import Limit, judge_tokens


@dataclass(frozen=True, slots=True)
class BiLD(Drafting):
    """
    Let the small model write until its best token has a probability below *fallback*; the large
    model reads that run.

    The draft is cut before the first token with a cross-entropy above *rollback* nats, unless that
    token is the large model's first choice. A draft has at most *run* tokens, and a repair is one
    token. With the *scale* "step", drafts and repairs go on to the end of the step instead. The
    defaults are the paper's (Algorithm 1, appendix 7.1.2).

    The paper drops the unsure token. Here the token ends the draft, and is accepted if it is the
    large model's first choice, which saves the request for that token. A run without an unsure
    token is accepted as it is, as in Algorithm 1. In the authors' code the large model adds a token
    there, too. A draft that ends the turn is read like any other.

    Both exemptions for the large model's first choice are exact for a greedy model, which would
    write that token itself. A model that is *sampled* might not. Then the unsure token is dropped,
    every token above *rollback* is cut, and the large model samples (appendix 7.4 of the paper).
    """

    repair_may_start_early: ClassVar[bool] = True
    answer: ClassVar[AnsweredBy] = "method"

    fallback: Share = 0.6
    rollback: Amount = 5.0
    run: AtLeast1 = 10
    scale: Literal["token", "step"] = "token"
    sampled: bool = False

    def unsure(self, partial: Step) -> bool:
        """Whether the small model is unsure of the last token."""
        return surest(partial.tokens[-1]) < self.fallback

    @property
    def by_step(self) -> bool:
        return self.scale == "step"

    async def draft(self, chain: Chain) -> Step:
        tokens = None if self.by_step else self.run
        return await self.write_run(chain, tokens, until=self.unsure, top=1)

    async def verify(self, chain: Chain, draft: Step) -> Verdict:
        unsure = ""  # the text of the token that the small model was unsure of
        if draft.tokens and self.unsure(draft):
            unsure = draft.tokens[-1].text
        sure = draft.text.removesuffix(unsure)
        if self.sampled and unsure and not sure:
            return Rollback(reason="fallback")
        sure_tokens, unsure_tokens = await self.large.score(
            chain,
            sure,
            "" if self.sampled else unsure,
        )
        limits = [Limit(self.rollback, "rollback")] * len(sure_tokens)
        limits += [Limit(0, "fallback", scored=False)] * len(unsure_tokens)
        tokens = (*sure_tokens, *unsure_tokens)
        verdict = judge_tokens(tokens, limits, "logprob", sampled=self.sampled)
        dropped = not unsure_tokens and (unsure or draft.stop == "until")
        if dropped and isinstance(verdict, Accept):
            return Rollback(len(sure), reason="fallback", score=verdict.score)
        return verdict

    async def repair(self, chain: Chain, draft: Step, rollback: Rollback) -> Step:
        return await self.take_over(chain, None if self.by_step else 1)


def surest(token: Token) -> float:
    """Return the highest probability, 0 to 1, of the tokens known at the place of *token*."""
    return exp(max(other.logprob for other in (token, *token.top)))
