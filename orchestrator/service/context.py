"""The state that all requests of one service share: admission, settings, models, and the connections to servers."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import aiohttp

from .admission import Admission
from .interfaces import Offer
from .limits import Clients
from .observers import ServiceObserver, ServiceRequest
from .run_requests import ModelCatalog
from .settings import ServiceSettings
from .streaming import StreamedResponse, Work
from .upstream import IDLE, HealthMonitor, UpstreamProxy


@dataclass(eq=False)
class ServiceContext:
    """
    Settings, admission, models, clients and connections of one service.

    `upstream` and `health` exist while the context is `open`; *created* is in seconds since 1970.
    """

    offer: Offer
    settings: ServiceSettings
    observe: ServiceObserver
    admission: Admission
    models: ModelCatalog
    clients: Clients
    created: int = field(default_factory=lambda: int(time.time()))
    upstream: UpstreamProxy = field(init=False)
    health: HealthMonitor = field(init=False)

    @classmethod
    def of(cls, offer: Offer, settings: ServiceSettings, observe: ServiceObserver) -> ServiceContext:
        return cls(offer, settings, observe, Admission(settings), ModelCatalog(offer), Clients(settings))

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[None]:
        """Hold the connections of the service itself, and check the servers' health, while the block lasts."""
        small, large = self.offer.engine.small, self.offer.engine.large
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=IDLE)) as http:
            self.upstream = UpstreamProxy(http, small, large)
            self.health = HealthMonitor(http, {"small": small, "large": large}, self.observe)
            async with self.health.checking(self.settings.health_every):
                yield

    def respond(self, request: ServiceRequest, work: Work) -> StreamedResponse:
        """Answer *request* with what *work* sends."""
        return StreamedResponse(request, work, self.settings.send_seconds, self.admission.aborted)
