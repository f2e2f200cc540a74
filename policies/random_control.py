"""A control: steps are accepted by lot, as often as a method accepts them, to tell what its judgement is worth."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from typing import ClassVar

from stepspec.orchestrator import Accept, Chain, Model, Rollback, Step, Verdict
from stepspec.orchestrator.interfaces import AnsweredBy, EndedBy

from .option_types import Share


@dataclass(frozen=True, slots=True)
class RandomControl:
    """
    Accept a draft with the probability *p*, drawn from *seed*, the problem, the chain and the draft.

    So the same run draws the same lots. Set *p* to the accept rate of the method that this is the control of.
    """

    ending: ClassVar[EndedBy] = "large"
    answer: ClassVar[AnsweredBy] = "method"

    small: Model
    large: Model
    p: Share = 0.5
    seed: int = 0

    @property
    def answerer(self) -> Model:
        return self.large

    async def draft(self, chain: Chain) -> Step:
        return await self.small.write(chain)

    async def verify(self, chain: Chain, draft: Step) -> Verdict:
        return Accept() if self.drawn(chain.extend(draft)) < self.p else Rollback(reason="lot")

    async def repair(self, chain: Chain, draft: Step, rollback: Rollback) -> Step:
        return await self.large.write(chain)

    def drawn(self, chain: Chain) -> float:
        """Return a number from 0 to below 1, every one as likely."""
        key = (self.seed, *[(message.role, message.content) for message in chain.messages], chain.text)
        return int.from_bytes(blake2b(repr(key).encode(), digest_size=6).digest()) / 2**48
