"""
Reward-guided Speculative Decoding: a reward model rates each small step, and the large one rewrites
the weak ones.

Liao et al. 2025, arXiv:2501.19324.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from stepspec.orchestrator import Accept, Chain, Critic, Rollback, Step, Verdict
from stepspec.orchestrator.interfaces import AnsweredBy

from .method import Drafting, Share


@dataclass(frozen=True, slots=True)
class Reward(Drafting):
    """
    Accept a small step whose reward, 0 to 1, reaches *threshold*; a step of the large model is not
    rated.

    This is the paper's step function, with the paper's threshold for all tasks, 0.7 (table 2). Its
    other weighting functions, which accept at random, are left out. Its limit of five rounds is
    left out, too: the budget ends the run.
    """

    repair_may_start_early: ClassVar[bool] = True
    answer: ClassVar[AnsweredBy] = "method"

    critic: Critic
    """Rates the steps."""
    threshold: Share = 0.7

    async def verify(self, chain: Chain, draft: Step) -> Verdict:
        rating = await self.critic.rate(chain.extend(draft))
        if rating.score >= self.threshold:
            return Accept(rating.score)
        return Rollback(reason="reward", score=rating.score, detail=rating.reason)
