"""What methods are compared with: one model alone, and drafts that are accepted at random."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from typing import ClassVar

from stepspec.orchestrator import Accept, Chain, Model, Rollback, Step, Verdict
from stepspec.orchestrator.interfaces import AnsweredBy, EndedBy

from .method import Drafting, Share


@dataclass(frozen=True, slots=True)
class Solo:
    """One model writes everything, as its server alone would. No draft is judged."""

    loop_guard: ClassVar[None] = None

    author: Model
    """The model that writes."""

    @property
    def answerer(self) -> Model:
        return self.author

    async def draft(self, chain: Chain) -> Step:
        return await self.author.write(chain)

    async def verify(self, chain: Chain, draft: Step) -> Verdict:
        return Accept(judged=False)

    async def repair(self, chain: Chain, draft: Step, rollback: Rollback) -> Step:
        return await self.author.write(chain)


def small_alone(small: Model, large: Model) -> Solo:
    """The small model without the large one."""
    return Solo(small)


def large_alone(small: Model, large: Model) -> Solo:
    """The large model without the small one."""
    return Solo(large)


@dataclass(frozen=True, slots=True)
class RandomControl(Drafting):
    """
    Accept a draft with the probability *p*, drawn from *seed*, the problem, the chain and the
    draft.

    The same run makes the same decisions. With the accept rate of a method as *p*, the difference
    to that method is the worth of its judgement.
    """

    ending: ClassVar[EndedBy] = "large"
    answer: ClassVar[AnsweredBy] = "method"

    p: Share = 0.5
    seed: int = 0

    async def verify(self, chain: Chain, draft: Step) -> Verdict:
        if self.drawn(chain.extend(draft)) < self.p:
            return Accept()
        return Rollback(reason="random")

    def drawn(self, chain: Chain) -> float:
        """Return a random number from 0 to below 1, which seed and *chain* determine."""
        messages = [(message.role, message.content) for message in chain.messages]
        key = (self.seed, *messages, chain.text)
        return int.from_bytes(blake2b(repr(key).encode(), digest_size=6).digest()) / 2**48
