"""The limit of a run on the seconds of its large model: a meter, and the model whose requests it counts and ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, Unpack

from .chain import Chain, Role, Step, Token
from .errors import LargeSecondsSpent
from .interfaces import DEFAULT_LIMIT, Model, WriteOptions

T = TypeVar("T")
ROUNDING = 1e-6  # seconds that are lost when a clock and a timer are compared


class LargeSeconds:
    """
    Counts the seconds in which the run waits for the large model, each of several requests at once.

    When *most* seconds are spent, all requests that it counts are cancelled, and they and all later ones raise
    `LargeSecondsSpent`. What a kept stream reads ahead between two writes is not counted.
    """

    def __init__(self, most: float) -> None:
        self.most = most
        self._used = self._at = 0.0
        self._open: set[asyncio.Timeout] = set()

    @property
    def used(self) -> float:
        self._advance()
        return self._used

    async def call(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Wait for *work* and count the seconds. Raise `LargeSecondsSpent`."""
        if self.used >= self.most - ROUNDING:
            raise LargeSecondsSpent(self.most)
        timeout = asyncio.timeout(None)
        try:
            async with timeout:
                self._open.add(timeout)
                self._schedule()
                return await work()
        except TimeoutError:
            if timeout.expired():
                raise LargeSecondsSpent(self.most) from None
            raise
        finally:
            self._advance()
            self._open.discard(timeout)
            self._schedule()

    def _advance(self) -> None:
        now = asyncio.get_running_loop().time()
        self._used += (now - self._at) * len(self._open)
        self._at = now

    def _schedule(self) -> None:
        """End the open requests when the rest is spent, at the pace at which they spend it together."""
        for timeout in self._open:
            if not timeout.expired():
                timeout.reschedule(self._at + max(0.0, self.most - self._used) / len(self._open))


@dataclass(frozen=True, slots=True)
class Metered:
    """A *model* whose seconds the *meter* counts and limits."""

    model: Model
    meter: LargeSeconds

    @property
    def role(self) -> Role:
        return self.model.role

    async def write(self, chain: Chain, **options: Unpack[WriteOptions]) -> Step:
        return await self.meter.call(lambda: self.model.write(chain, **options))

    async def branch(
        self, chain: Chain, begun: Sequence[Step], *, stop: Sequence[str] | None = None, limit: int = DEFAULT_LIMIT
    ) -> tuple[Step, ...]:
        return await self.meter.call(lambda: self.model.branch(chain, begun, stop=stop, limit=limit))

    async def score(self, chain: Chain, *spans: str, top: int = 0) -> list[tuple[Token, ...]]:
        return await self.meter.call(lambda: self.model.score(chain, *spans, top=top))

    async def ask(
        self, chain: Chain, question: str, choices: Sequence[str], *, opening: str = ""
    ) -> Mapping[str, float]:
        return await self.meter.call(lambda: self.model.ask(chain, question, choices, opening=opening))
