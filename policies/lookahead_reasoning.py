"""
Lookahead Reasoning: the large model writes every step too, and a draft stands where both say the same.

Fu et al. 2025, arXiv:2506.19830.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..orchestrator import Accept, Chain, Model, Rollback, Step, Verdict
from ..orchestrator.chain import DELIMITER
from ..prompts import load
from .kinds import Share

SAME = load("lookahead-reasoning.same")


@dataclass(frozen=True, slots=True)
class LookaheadReasoning:
    """
    Accept a small step that says what the large model's own next step says; otherwise that one takes its place.

    Steps that are equal but for case and white space are accepted without asking. For others a judge compares the
    meanings; not to be sure is a no (appendix A), as is less than *sure* of its probability on Yes and No. A draft
    that goes on in the middle of a paragraph is never accepted (the authors' code).

    Two deviations: the large model judges, where the paper serves a third model of 7 billion parameters; and steps may
    have 512 tokens, where the authors' code stops at 100. How far to look ahead is the loop's, not the policy's: all
    pending drafts are compared at the same time.
    """

    small: Model
    large: Model
    sure: Share = 0.05

    @property
    def answerer(self) -> Model:
        return self.large

    async def draft(self, chain: Chain) -> Step:
        return await self.small.write(chain)

    async def verify(self, chain: Chain, draft: Step) -> Verdict:
        own = await self.large.write(chain)
        if chain.text and not chain.text.endswith(DELIMITER):
            return Rollback(reason="half a paragraph", instead=own)
        if plain(own) == plain(draft):
            return Accept()
        question = SAME.text.format(step=own.text.strip())
        said = await self.large.ask(chain.extend(draft), question, ("Yes", "No"), opening=SAME.opening)
        if said["Yes"] > said["No"] and sum(said.values()) >= self.sure:
            return Accept(said["Yes"])
        return Rollback(reason="another meaning", score=said["Yes"], instead=own)

    async def repair(self, chain: Chain, draft: Step, rollback: Rollback) -> Step:
        return rollback.instead or await self.large.write(chain)


def plain(step: Step) -> str:
    """What *step* says, without case and white space."""
    return "".join(step.text.split()).casefold()
