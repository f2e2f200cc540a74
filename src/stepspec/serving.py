"""The command ``serve``: a solver, the methods and the service, put together."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import Any

from . import policies
from . import settings as configuration
from .api import Solver
from .orchestrator.errors import ConfigurationError
from .orchestrator.service.interfaces import Method, Offer
from .orchestrator.service.settings import ServiceSettings

VERSION = importlib.metadata.version("stepspec")
NEEDED = ("fastapi", "uvicorn", "prometheus_client", "structlog")


def require() -> None:
    """Raise `ConfigurationError` if what the service needs is not installed."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigurationError(f"`stepspec serve` needs {', '.join(missing)}: pip install 'stepspec[serve]'")


def service_settings(**given: Any) -> ServiceSettings:
    """Read the service's settings, *given* ones first; those that are None count as not given."""
    asked = {key: value for key, value in given.items() if value is not None}
    return configuration.load(service=asked or None).service


async def serve(solver: Solver, settings: ServiceSettings) -> None:
    """Serve *solver* until the process is told to end, and drained. Raise `ConfigurationError` for a taken port."""
    from .orchestrator.service import spans
    from .orchestrator.service.app import Service
    from .orchestrator.service.logs import Logs
    from .orchestrator.service.server import Server, listen
    from .orchestrator.service.witness import Witness

    logs = Logs(settings)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(solver)
        witnesses: list[Witness] = [logs]
        if settings.tracing or spans.wanted():
            tracing = spans.Spans(spans.connect(VERSION), {"small": solver.small.name, "large": solver.large.name})
            await stack.enter_async_context(tracing.flushed())
            witnesses.insert(0, tracing)
        service = Service(offer(solver), settings, witnesses)
        server = Server(service, settings, logs.tell)
        names = ", ".join(service.parts.catalogue.raw)
        with listen(settings.host, settings.port) as listening:
            host, port = listening.getsockname()[:2]
            logs.tell("serving", url=f"http://{host}:{port}/v1", models=names, keys=len(settings.keys))
            await server.serve([listening])


def offer(solver: Solver) -> Offer:
    """What the service is to serve, of an entered *solver*."""
    methods: Mapping[str, Method] = {
        name: Method(method.about, {key: one.default for key, one in policies.options(name).items()})
        for name, method in policies.METHODS.items()
    }
    chosen = solver.settings
    return Offer(
        engine=solver,
        methods=methods,
        policy=chosen.policy,
        options=chosen.options,
        sampling=chosen.sampling,
        budget=chosen.budget.budget(),
        version=VERSION,
    )
