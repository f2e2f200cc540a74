"""The health of the servers of both models."""

from __future__ import annotations

import asyncio

from stepspec.orchestrator.endpoints import ReplicatedEndpoint
from stepspec.orchestrator.endpoints.interfaces import Server
from stepspec.orchestrator.errors import EndpointError, EndpointUnavailable, LocalShortage

from ..formats.requests import ROLES, ModelCatalog

CHECK_SECONDS = 5.0
"""Seconds for one health check."""


async def check_every(seconds: float, models: ModelCatalog) -> None:
    """
    Check every server of *models* now and every *seconds*, for ever.

    A server that fails a check is reported to its circuit breaker, which probes it from then on.
    """
    while True:
        for role in ROLES:
            endpoint = models.endpoint(role)
            await asyncio.gather(*[check(endpoint, server) for server in endpoint.up])
        await asyncio.sleep(seconds)


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
