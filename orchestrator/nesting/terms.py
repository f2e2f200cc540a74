"""What one write of a nested pair asks of the writes of its own models."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ..chain import DELIMITER, Chain, Role, Step, Token
from ..interfaces import Model


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
class Bound:
    """A model that writes on *terms*, and never more than *left* says; otherwise the same."""

    model: Model
    terms: Terms
    left: Callable[[Chain], int]

    @property
    def role(self) -> Role:
        return self.model.role

    async def write(
        self,
        chain: Chain,
        *,
        stop: Sequence[str] = (DELIMITER,),
        limit: int = 512,
        until: Callable[[Step], bool] | None = None,
        opening: str = "",
        top: int = 0,
    ) -> Step:
        limit, opening, top = self._most(chain, limit), self.terms.rest(chain) + opening, max(top, self.terms.top)
        return await self.model.write(chain, stop=stop, limit=limit, until=until, opening=opening, top=top)

    async def branch(
        self, chain: Chain, begun: Sequence[Step], *, stop: Sequence[str] = (DELIMITER,), limit: int = 512
    ) -> tuple[Step, ...]:
        return await self.model.branch(chain, begun, stop=stop, limit=self._most(chain, limit))

    async def score(self, chain: Chain, *spans: str, top: int = 0) -> list[tuple[Token, ...]]:
        return await self.model.score(chain, *spans, top=top)

    async def ask(
        self, chain: Chain, question: str, choices: Sequence[str], *, opening: str = ""
    ) -> Mapping[str, float]:
        return await self.model.ask(chain, question, choices, opening=opening)

    def _most(self, chain: Chain, limit: int) -> int:
        return min(limit, self.left(chain), limit if self.terms.cap is None else self.terms.cap)
