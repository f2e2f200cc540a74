"""What the routes share."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import aiohttp

from . import errors
from .attended import Attended, Line, Work
from .catalogue import Catalogue
from .gate import Gate
from .interfaces import Offer
from .passing import Passing
from .pulse import Pulse
from .settings import ServiceSettings
from .visit import Visit
from .witness import Witness


@dataclass(eq=False)
class Parts:
    """The parts of one service; `passing` and `pulse` live while it is `open`."""

    offer: Offer
    settings: ServiceSettings
    witness: Witness
    gate: Gate
    catalogue: Catalogue
    created: int = field(default_factory=lambda: int(time.time()))
    passing: Passing = field(init=False)
    pulse: Pulse = field(init=False)

    @classmethod
    def of(cls, offer: Offer, settings: ServiceSettings, witness: Witness) -> Parts:
        return cls(offer, settings, witness, Gate(settings), Catalogue(offer))

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[None]:
        """Hold the connections that are not the engine's, and look after the servers, while the block lasts."""
        small, large = self.offer.engine.small, self.offer.engine.large
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
            self.passing = Passing(http, small, large)
            self.pulse = Pulse(http, {"small": small, "large": large}, self.witness.looked)
            async with self.pulse.felt(self.settings.health_every):
                yield

    async def fail(self, visit: Visit, exc: Exception, line: Line, *, worked: bool) -> None:
        """Tell the client of a failure: by raising the `Refusal`, or as the last thing in a stream that has begun."""
        refusal = visit.refusal = errors.of(exc, worked=worked)
        if refusal.code == errors.UNFORESEEN:
            self.witness.failed(visit, exc)
        if not line.open:
            raise refusal from exc
        if refusal.status == errors.LEFT:
            visit.status = errors.LEFT
        else:
            await line.fail(refusal)

    def attended(self, visit: Visit, work: Work) -> Attended:
        """Answer with what *work* sends, as long as the client is there."""
        return Attended(visit, work, self.settings.send_seconds, self.gate.given_up)
