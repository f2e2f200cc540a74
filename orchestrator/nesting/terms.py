"""What one write of a nested pair asks of the writes of its own models."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..budget import Budgeted
from ..chain import Chain, Step


@dataclass(frozen=True, slots=True)
class Terms:
    """
    At most *cap* tokens at a time (None: as many as the budget leaves), each of which tells *top* rivals, and what
    follows the first *begins* characters of the chain's steps begins with *opening*.
    """

    cap: int | None = None
    top: int = 0
    opening: str = ""
    begins: int = 0

    def rest(self, chain: Chain) -> str:
        """What of the opening is still to be written after *chain*."""
        if not self.opening:
            return ""
        written = chain.text[self.begins :]
        return self.opening[len(written) :] if self.opening.startswith(written) else ""


@dataclass(frozen=True, slots=True)
class Bound(Budgeted):
    """A budgeted model that writes on *terms*."""

    terms: Terms

    async def write(
        self,
        chain: Chain,
        *,
        stop: Sequence[str] | None = None,
        limit: int = 512,
        until: Callable[[Step], bool] | None = None,
        opening: str = "",
        top: int = 0,
    ) -> Step:
        opening, top = self.terms.rest(chain) + opening, max(top, self.terms.top)
        return await Budgeted.write(self, chain, stop=stop, limit=limit, until=until, opening=opening, top=top)

    def _most(self, chain: Chain, limit: int) -> int:
        return Budgeted._most(self, chain, limit if self.terms.cap is None else min(limit, self.terms.cap))
