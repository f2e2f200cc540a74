"""The health of the servers of both models."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Literal

from stepspec.orchestrator.chain import Role
from stepspec.orchestrator.endpoints import ModelEndpoint, ReplicatedEndpoint
from stepspec.orchestrator.endpoints.interfaces import Server
from stepspec.orchestrator.errors import EndpointError, EndpointUnavailable, LocalShortage

from ..formats.requests import ROLES
from ..records import HealthChecked, ServiceObserver

CHECK_SECONDS = 5.0
"""Seconds for one health check."""


class HealthMonitor:
    """
    Checks the health of the servers. *observe* receives every result.

    A server that fails a check is reported to its circuit breaker, which probes it from then on.
    """

    def __init__(self, endpoints: Mapping[Role, ModelEndpoint], observe: ServiceObserver) -> None:
        self._observe = observe
        self._endpoints = dict(endpoints)
        self.up = {role: endpoint.usable for role, endpoint in endpoints.items()}
        """Whether a server of each role is up, by the last check."""

    @property
    def status(self) -> Literal["ready", "degraded", "down"]:
        """
        "degraded" while only the small model is down, as the large one answers alone.

        "down" while the large model is down.
        """
        if not self.up["large"]:
            return "down"
        return "ready" if self.up["small"] else "degraded"

    async def check_every(self, seconds: float) -> None:
        """Check every server now and every *seconds*, for ever."""
        while True:
            await asyncio.gather(*map(self._check, ROLES))
            await asyncio.sleep(seconds)

    async def _check(self, role: Role) -> None:
        endpoint = self._endpoints[role]
        assert isinstance(endpoint, ReplicatedEndpoint)
        await asyncio.gather(*[check(endpoint, server) for server in endpoint.up])
        self.up[role] = bool(endpoint.up)
        self._observe(HealthChecked(role, self.up[role]))


async def check(endpoint: ReplicatedEndpoint, server: Server) -> None:
    """
    Report to *endpoint* if *server* is not healthy.

    If this machine lacks what a check needs, nothing is known, and nothing is reported.
    """
    url = server.settings.url
    try:
        async with asyncio.timeout(CHECK_SECONDS):
            await server.check_health()
    except TimeoutError:
        late = f"/health does not answer within {CHECK_SECONDS:g} s"
        endpoint.report(
            url,
            EndpointUnavailable(late, role=endpoint.role, url=url, verb="health"),
        )
    except LocalShortage:
        pass
    except EndpointError as exc:
        endpoint.report(url, exc)
