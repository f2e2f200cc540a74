"""One model alone: the baseline of every method."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from stepspec.orchestrator import Accept, Chain, Model, Rollback, Step, Verdict


@dataclass(frozen=True, slots=True)
class Solo:
    """*author* writes everything, as its server alone would; nothing is judged, and no loop is stopped."""

    guarded: ClassVar[bool] = False

    author: Model

    @property
    def answerer(self) -> Model:
        return self.author

    async def draft(self, chain: Chain) -> Step:
        return await self.author.write(chain)

    async def verify(self, chain: Chain, draft: Step) -> Verdict:
        return Accept()

    async def repair(self, chain: Chain, draft: Step, rollback: Rollback) -> Step:
        return await self.author.write(chain)


def small_alone(small: Model, large: Model) -> Solo:
    """The small model without the large one."""
    return Solo(small)


def large_alone(small: Model, large: Model) -> Solo:
    """The large model without the small one."""
    return Solo(large)
