"""The command ``serve``: a solver, the methods and the service, put together."""

from __future__ import annotations

import gc
import importlib.metadata
import importlib.util
import os
import re
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from stepspec.orchestrator.endpoints.settings import Address
from stepspec.orchestrator.errors import ConfigurationError, install_command
from stepspec.service.formats.requests import Offer, ServedMethod
from stepspec.service.settings import ServiceSettings

from . import policies
from . import settings as configuration
from .api import Solver
from .setting_sources import ROLES
from .settings import Settings

if TYPE_CHECKING:
    from stepspec.service.http.app import Service
    from stepspec.service.watch.observers import RequestLog

VERSION = importlib.metadata.version("stepspec")
TRACING_VARIABLES = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
COLLECT_AFTER = 10_000
"""New objects after which a garbage collection visits the new ones; Python's default is 700."""
NEEDED = ("fastapi", "uvicorn", "prometheus_client", "structlog")


def require() -> None:
    """Raise `ConfigurationError` if what the service needs is not installed."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigurationError(
            f"`stepspec serve` needs {', '.join(missing)}: {install_command('serve')}"
        )


async def serve(solver: Solver, settings: ServiceSettings) -> None:
    """
    Serve *solver*, once its servers are warm, until a signal ends the process and it is drained.

    Raise `ConfigurationError` for a taken port.
    """
    from stepspec.service.http.app import ServiceServer, listen

    check_concurrency(solver, settings)
    async with built(solver, settings) as (service, logs):
        server = ServiceServer(service, settings, logs.log.info)
        with listen(settings.host, settings.port, settings.send_seconds) as listening:
            host, port = listening.getsockname()[:2]
            host = f"[{host}]" if ":" in host else host
            await warmed(solver)
            logs.log.info(
                "serving",
                url=f"http://{host}:{port}/v1",
                models=", ".join(service.context.models.served),
                keys=len(settings.keys),
                clients=len(settings.clients),
            )
            await server.serve([listening])


def check_concurrency(solver: Solver, settings: ServiceSettings) -> None:
    """Raise `ConfigurationError` if a model takes fewer requests than the service runs."""
    for role in ROLES:
        endpoint = getattr(solver.settings, role)
        if not isinstance(endpoint, Address) or endpoint.max_concurrency is None:
            continue
        requests = endpoint.max_concurrency * len(endpoint.urls)
        if requests < settings.max_running:
            raise ConfigurationError(
                f"max_running is {settings.max_running}, but max_concurrency of the {role} model"
                f" allows {requests} requests at a time, so that runs would wait for others to end:"
                f" leave max_concurrency out, or lower max_running to {requests}"
            )


def read(arguments: Mapping[str, Any]) -> Settings:
    """
    Read all settings, the *arguments* first.

    Raise `ConfigurationError` for wrong settings, and if a model is missing.
    """
    settings = configuration.load(**arguments)
    Solver(settings)
    return settings


@asynccontextmanager
async def opened(settings: Settings) -> AsyncGenerator[Service]:
    """Hold a warm service, for a program that runs the service's application itself."""
    solver = Solver(settings)
    async with built(solver, settings.service) as (service, _):
        await warmed(solver)
        yield service


async def warmed(solver: Solver) -> None:
    """
    Warm *solver* up, and hide from garbage collections what stays in memory.

    Otherwise each full collection stops everything for 0.2 s. Collections are rare from then
    on: by default they take a tenth of the CPU time.
    """
    await solver.warm_up()
    gc.collect()
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER)


@asynccontextmanager
async def built(
    solver: Solver, settings: ServiceSettings
) -> AsyncGenerator[tuple[Service, RequestLog]]:
    """Hold the connections of *solver*, and yield a service over it with its log."""
    from stepspec.service.formats.requests import AUTO
    from stepspec.service.http.app import Service
    from stepspec.service.records import ServiceObserver
    from stepspec.service.watch.observers import RequestLog

    logs = RequestLog(settings)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(solver)
        for role, name in solver.models.items():
            if name in (AUTO, *policies.METHODS):
                cure = "start its server with --served-model-name and the model's own name"
                logs.log.warning(
                    "served_as_a_method",
                    role=role,
                    model=name,
                    listed=f"{role}:{name}",
                    cure=cure,
                )
        observers: list[ServiceObserver] = [logs]
        if _traces():
            from stepspec.service.watch import tracing

            tracer = tracing.Tracing(tracing.connect(VERSION))
            await stack.enter_async_context(tracer.flushed())
            observers.insert(0, tracer)
        yield Service(offer(solver), settings, observers), logs


def _traces() -> bool:
    """
    Whether the ``OTEL_*`` variables name a receiver of spans, and do not switch it off.

    ``OTEL_TRACES_EXPORTER`` lists exporters, of which the service has one, ``otlp``.
    """
    if _variable("OTEL_SDK_DISABLED") == "true":
        return False
    if not re.search(r"(^|,)\s*otlp", _variable("OTEL_TRACES_EXPORTER") or "otlp"):
        return False
    return any(_variable(name) for name in TRACING_VARIABLES)


def _variable(name: str) -> str:
    return os.environ.get(name, "").strip().lower()


def offer(solver: Solver) -> Offer:
    """Return what the service offers, for an entered *solver*."""
    methods: Mapping[str, ServedMethod] = {
        name: ServedMethod(method.about, policies.defaults(name))
        for name, method in policies.METHODS.items()
    }
    chosen = solver.settings
    return Offer(
        engine=solver,
        methods=methods,
        defaults=chosen.run,
        version=VERSION,
        session_header=chosen.session_header,
        check=partial(policies.check, has_critic=chosen.rates_steps),
    )
