"""The command ``serve``: a solver, the methods and the service, put together."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import pickle
import socket
import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from stepspec.orchestrator.concurrency import supervised
from stepspec.orchestrator.errors import ConfigurationError, StepspecError
from stepspec.orchestrator.feedback.calibration_monitor import Calibration
from stepspec.orchestrator.installation import install_command
from stepspec.orchestrator.service.interfaces import CalibrationStatus, JudgeStatus, Offer, ServedMethod
from stepspec.orchestrator.service.settings import ServiceSettings
from stepspec.orchestrator.stats import Acceptance

from . import policies
from . import settings as configuration
from .api import Solver
from .settings import Settings

if TYPE_CHECKING:
    from stepspec.orchestrator.service.admission import Slots
    from stepspec.orchestrator.service.app import Service
    from stepspec.orchestrator.service.observers import RequestLog
    from stepspec.orchestrator.service.worker import Start

VERSION = importlib.metadata.version("stepspec")
WORKER = "stepspec.service_worker"  # the program of a worker
NEEDED = ("fastapi", "uvicorn", "prometheus_client", "structlog")


def require() -> None:
    """Raise `ConfigurationError` if what the service needs is not installed."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigurationError(f"`stepspec serve` needs {', '.join(missing)}: {install_command('serve')}")


async def serve(solver: Solver, settings: ServiceSettings) -> None:
    """
    Serve *solver*, once its servers are warm, until a signal ends the process and it is drained.

    Several workers share the port, each with a solver of its own. Raise `ConfigurationError` for a taken port.
    """
    from stepspec.orchestrator.service.app import ServiceServer, listen
    from stepspec.orchestrator.service.workers import Program, run_workers

    async with AsyncExitStack() as solving:
        service, logs = await solving.enter_async_context(built(solver, settings))
        server = ServiceServer(service, settings, logs.info)
        names = ", ".join(service.context.models.served)
        with listen(settings.host, settings.port) as listening:
            host, port = listening.getsockname()[:2]
            serving = {
                "url": f"http://{host}:{port}/v1",
                "models": names,
                "keys": len(settings.keys),
                "clients": len(settings.clients),
            }
            await solver.warm_up()
            if settings.workers == 1:
                logs.info("serving", **serving)
                await server.serve([listening])
                return
            await solving.aclose()  # Each worker has connections of its own.
            program = Program((sys.executable, "-P", "-m", WORKER), pickle.dumps(solver.settings))
            announce = partial(logs.info, "serving", **serving, workers=settings.workers)
            await run_workers(program, settings, listening, logs, announce)


async def work(start: Start, end: socket.socket) -> bool:
    """
    Serve as one of several workers, with its *end* of the channel to the parent.

    Return whether the parent ended before it told this process to.
    """
    from stepspec.orchestrator.service.worker import Channel, Orders, SharedSlots, Stopped, WorkerServer

    settings: Settings = pickle.loads(start.settings)
    async with Channel.over(end) as channel:
        slots = SharedSlots(channel)
        orders = Orders(channel, slots)
        solver = Solver(settings.turned(start.number - 1))
        try:
            async with (
                supervised(orders.obey()),
                built(solver, settings.service, start.number, slots) as (service, _),
            ):
                with socket.socket(fileno=start.connections) as connections:
                    orders.server = WorkerServer(service, settings.service, channel, connections)
                    await orders.server.serve()
        except Stopped:
            pass
        except StepspecError as exc:
            channel.send("failed", "configuration" if isinstance(exc, ConfigurationError) else "other", str(exc))
            raise SystemExit(1) from None
    return orders.orphaned


def read(arguments: Mapping[str, Any]) -> Settings:
    """Read all settings, *arguments* first. Raise `ConfigurationError` for wrong ones, and if a model is missing."""
    settings = configuration.load(**arguments)
    Solver(settings)
    return settings


@asynccontextmanager
async def opened(settings: Settings) -> AsyncGenerator[Service]:
    """Hold a service that works, for a program that brings its own server."""
    solver = Solver(settings)
    async with built(solver, settings.service) as (service, _), service.context.open():
        await solver.warm_up()
        yield service


@asynccontextmanager
async def built(
    solver: Solver, settings: ServiceSettings, worker: int | None = None, slots: Slots | None = None
) -> AsyncGenerator[tuple[Service, RequestLog]]:
    """
    Hold the connections of *solver*, and yield a service over it with its log.

    One of several *workers* shares *slots* with the others, and leaves to their parent what is said once.
    """
    from stepspec.orchestrator.service import tracing
    from stepspec.orchestrator.service.app import Service
    from stepspec.orchestrator.service.observers import RequestLog, ServiceObserver
    from stepspec.orchestrator.service.run_requests import AUTO

    logs = RequestLog(settings, worker)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(solver)
        for role, name in solver.models.items():
            if name in (AUTO, *policies.METHODS) and worker is None:
                cure = "start its server with --served-model-name and the model's own name"
                logs.log.warning("served_as_a_method", role=role, model=name, listed=f"{role}:{name}", cure=cure)
        observers: list[ServiceObserver] = [logs]
        if settings.tracing or tracing.configured():
            tracer = tracing.Tracing(tracing.connect(VERSION))
            await stack.enter_async_context(tracer.flushed())
            observers.insert(0, tracer)
        offered = offer(solver)
        if worker is not None and worker > 1:
            offered = replace(offered, speculation=dict[str, Acceptance])  # The servers' own counters count once.
        yield Service(offered, settings, observers, slots), logs


def offer(solver: Solver) -> Offer:
    """What the service is to serve, of an entered *solver*."""
    methods: Mapping[str, ServedMethod] = {
        name: ServedMethod(method.about, policies.defaults(name), judges=name not in policies.BASELINES)
        for name, method in policies.METHODS.items()
    }
    chosen = solver.settings
    return Offer(
        engine=solver,
        methods=methods,
        defaults=chosen.run,
        version=VERSION,
        judge_status=lambda: judge_status(solver),
        speculation=lambda: solver.acceptance.totals,
        session_header=chosen.session_header,
        check=partial(policies.check, has_critic=chosen.rates_steps),
    )


def judge_status(solver: Solver) -> JudgeStatus:
    """What *solver* knows by now about its judge."""
    chosen, watched = solver.settings, solver.promise
    shadows = solver.shadows.record if chosen.shadow else None
    if watched is None or not watched.covers(solver.conditions(chosen.run)):
        return JudgeStatus(shadows=shadows)
    alternatives = tuple((_status(each.calibration), each.drift) for each in solver.alternatives.values())
    return JudgeStatus(_status(watched.calibration), watched.drift, shadows, alternatives)


def _status(made: Calibration) -> CalibrationStatus:
    return CalibrationStatus(made.policy, made.option, made.value, made.max_loss, made.confidence)
