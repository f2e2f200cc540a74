"""A model of one run whose servers may change under it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ..chain import Chain, Role, Step, Token
from ..interfaces import Model
from .interfaces import AnyEndpoint
from .seat import Seat


class ReplicatedModel:
    """A `Model` of one run, on whichever replica the run sits at."""

    def __init__(self, seat: Seat, make: Callable[[AnyEndpoint], Model]) -> None:
        self._seat, self._make = seat, make
        self._made: dict[str, Model] = {}

    @property
    def role(self) -> Role:
        return self._seat.role

    def leave(self) -> None:
        """Give the place up: the run is over."""
        self._seat.leave()

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
        return await self._seat.call(
            lambda at: self._model(at).write(chain, stop=stop, limit=limit, until=until, opening=opening, top=top)
        )

    async def branch(
        self, chain: Chain, begun: Sequence[Step], *, stop: Sequence[str] | None = None, limit: int = 512
    ) -> tuple[Step, ...]:
        return await self._seat.call(lambda at: self._model(at).branch(chain, begun, stop=stop, limit=limit))

    async def score(self, chain: Chain, *spans: str, top: int = 0) -> list[tuple[Token, ...]]:
        return await self._seat.call(lambda at: self._model(at).score(chain, *spans, top=top))

    async def ask(
        self, chain: Chain, question: str, choices: Sequence[str], *, opening: str = ""
    ) -> Mapping[str, float]:
        return await self._seat.call(lambda at: self._model(at).ask(chain, question, choices, opening=opening))

    def _model(self, at: AnyEndpoint) -> Model:
        url = at.settings.url
        if url not in self._made:
            self._made[url] = self._make(at)
        return self._made[url]
