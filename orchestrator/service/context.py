"""The shared state of one service: its settings, admission, models and the connections that it holds."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import aiohttp

from . import errors
from .admission import Admission
from .interfaces import Offer
from .middleware import ServiceRequest
from .observers import ServiceObserver
from .run_requests import ModelCatalog
from .settings import ServiceSettings
from .streaming import Line, StreamedResponse, Work
from .upstream import HealthMonitor, UpstreamProxy


@dataclass(eq=False)
class ServiceContext:
    """The parts of one service; `passing` and `pulse` live while it is `open`."""

    offer: Offer
    settings: ServiceSettings
    witness: ServiceObserver
    gate: Admission
    catalogue: ModelCatalog
    created: int = field(default_factory=lambda: int(time.time()))
    passing: UpstreamProxy = field(init=False)
    pulse: HealthMonitor = field(init=False)

    @classmethod
    def of(cls, offer: Offer, settings: ServiceSettings, witness: ServiceObserver) -> ServiceContext:
        return cls(offer, settings, witness, Admission(settings), ModelCatalog(offer))

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[None]:
        """Hold the connections that are not the engine's, and look after the servers, while the block lasts."""
        small, large = self.offer.engine.small, self.offer.engine.large
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
            self.passing = UpstreamProxy(http, small, large)
            self.pulse = HealthMonitor(http, {"small": small, "large": large}, self.witness.looked)
            async with self.pulse.felt(self.settings.health_every):
                yield

    async def fail(self, visit: ServiceRequest, exc: Exception, line: Line, *, worked: bool) -> None:
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

    def attended(self, visit: ServiceRequest, work: Work) -> StreamedResponse:
        """Answer with what *work* sends, as long as the client is there."""
        return StreamedResponse(visit, work, self.settings.send_seconds, self.gate.given_up)
