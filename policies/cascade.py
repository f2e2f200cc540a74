"""
ConfSpec: the small model checks its own step, and the large one only where the small one is in doubt.

Liu and He 2026, arXiv:2602.18447.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from stepspec.orchestrator import Accept, Chain, Model, Rollback, Step, Verdict
from stepspec.prompts import load

from .option_types import Share

CHECK = load("check")
YES, NO = "Yes", "No"


@dataclass(frozen=True, slots=True)
class Cascade:
    """
    Let the small model's yes or no stand if its probability reaches *sure*, else ask the large one the same.

    Probabilities are those of the whole vocabulary, so that a judge who speaks of something else is in doubt. The large
    one approves with *threshold* at least. Only the paper's abstract could be read: the question and both thresholds
    are ours.
    """

    foreseeable: ClassVar[bool] = True

    small: Model
    large: Model
    sure: Share = 0.9
    threshold: Share = 0.5

    @property
    def answerer(self) -> Model:
        return self.large

    async def draft(self, chain: Chain) -> Step:
        return await self.small.write(chain)

    async def verify(self, chain: Chain, draft: Step) -> Verdict:
        yes, no = await self.check(self.small, chain.extend(draft))
        if yes >= self.sure:
            return Accept(yes)
        if no >= self.sure:
            return Rollback(reason="small check", score=yes)
        yes, _ = await self.check(self.large, chain.extend(draft))
        return Accept(yes) if yes >= self.threshold else Rollback(reason="large check", score=yes)

    async def repair(self, chain: Chain, draft: Step, rollback: Rollback) -> Step:
        return await self.large.write(chain)

    async def check(self, judge: Model, chain: Chain) -> tuple[float, float]:
        """Return the probabilities, 0 to 1, with which *judge* calls the last step right and wrong."""
        said = await judge.ask(chain, CHECK.text, (YES, NO), opening=CHECK.opening)
        return said[YES], said[NO]
