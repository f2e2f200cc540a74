"""
ConfSpec: the small model checks its own step; the large model checks it only if the small one is in
doubt.

Liu and He 2026, arXiv:2602.18447.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from stepspec.orchestrator import Accept, Chain, Model, Rollback, Step, Verdict
from stepspec.prompts import load

from .method import Drafting, Share

CHECK = load("check")
YES = "Yes"
NO = "No"


@dataclass(frozen=True, slots=True)
class Cascade(Drafting):
    """
    Use the small model's yes or no if its probability is at least *sure*; otherwise ask the large
    model the same.

    Probabilities are over the whole vocabulary: a judge that would write something else is in
    doubt. The large model accepts if its yes has a probability of *threshold* or more. Only the
    paper's abstract could be read. The question and both thresholds are ours.
    """

    repair_may_start_early: ClassVar[bool] = True

    sure: Share = 0.9
    threshold: Share = 0.5

    async def verify(self, chain: Chain, draft: Step) -> Verdict:
        yes, no = await self.check(self.small, chain.extend(draft))
        if yes >= self.sure:
            return Accept(yes)
        if no >= self.sure:
            return Rollback(reason="small check", score=yes)
        yes, _ = await self.check(self.large, chain.extend(draft))
        if yes >= self.threshold:
            return Accept(yes)
        return Rollback(reason="large check", score=yes)

    async def check(self, judge: Model, chain: Chain) -> tuple[float, float]:
        """Return the probabilities with which *judge* calls the last step right and wrong."""
        answer = await judge.ask(chain, CHECK.text, (YES, NO), opening=CHECK.opening)
        return answer[YES], answer[NO]
