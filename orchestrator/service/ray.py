"""
The service as a Ray Serve application, for where one machine is not enough.

    serve run stepspec.orchestrator.service.ray:app
    serve run stepspec.orchestrator.service.ray:build small=http://a:8000/v1 service.ray.max_replicas=8

Two deployments: services, as many as there is work for, and fronts, which hold the clients' connections. This is the
only place of the service that knows Ray, and the only one that imports from above (docs/decisions/0008).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, cast

from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..errors import ConfigurationError

try:
    from ray import serve
    from ray.exceptions import NodeDiedError, ObjectLostError, RayActorError, WorkerCrashedError
    from ray.serve.config import AutoscalingConfig
    from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError
    from ray.serve.handle import DeploymentHandle, DeploymentResponseGenerator
    from ray.serve.schema import LoggingConfig
except ImportError as exc:
    raise ConfigurationError(f"the service on Ray needs {exc.name}: pip install 'stepspec[serve,ray]'") from exc

from stepspec import service_factory
from stepspec.settings import Settings

from .errors import ApiError
from .middleware import RequestMiddleware
from .observers import RequestLog
from .ray_proxy import BufferedRequest, Messages, ReplicaLost, ReplicaProxy, answered
from .settings import ServiceSettings

if TYPE_CHECKING:
    from ray.serve import Application

DIED = (RayActorError, WorkerCrashedError, NodeDiedError, ObjectLostError)
SPARE = 64  # requests beyond those that a service lets wait: what it refuses, and what asks for its health
GRACE = 5.0  # seconds by which Ray waits longer than the requests that may finish
SCRAPING = 5.0  # seconds for every replica to tell its metrics
HEALTH = BufferedRequest({"method": "GET", "path": "/health", "query_string": b""}, (), b"")


class Replica:
    """One service, with connections of its own to both models."""

    async def __init__(self, settings: Settings) -> None:  # type: ignore[misc]  # Ray waits for it.
        place = serve.get_replica_context()
        self._name = place.replica_tag
        self._open = AsyncExitStack()
        self._service = await self._open.enter_async_context(service_factory.opened(settings.turned(place.rank.rank)))

    async def answer(self, asked: BufferedRequest) -> AsyncGenerator[Messages]:
        async for messages in answered(self._service.app, asked):
            yield messages

    async def metrics(self) -> tuple[str, bytes]:
        return self._name, self._service.metrics.scrape()[0]

    async def check_health(self) -> None:
        """Ask the service as anybody would. A model that is down is no reason to begin again without it."""
        told = [message async for messages in answered(self._service.app, HEALTH) for message in messages]
        if not told or told[0]["status"] != 200:
            raise RuntimeError(f"the service is not healthy: {told}")

    async def __del__(self) -> None:
        if hasattr(self, "_open"):
            await self._open.aclose()


class RayEntrypoint:
    """A front, and who answers for it."""

    def __init__(self, replicas: DeploymentHandle[Any], settings: ServiceSettings) -> None:
        self._replicas, self._settings, self._logs = replicas, settings, RequestLog(settings)

    def __serve_build_asgi_app__(self) -> ASGIApp:
        logs = self._logs
        door = RequestMiddleware(
            ReplicaProxy(Starlette(), self._ask, self._scrape, self._settings, logs.log.warning),
            settings=self._settings,
            version=service_factory.VERSION,
            begins=lambda visit: None,
            ends=lambda visit: logs.ends(visit) if visit.refusal else None,  # A replica's log has the others.
            failed=logs.failed,
        )
        return _unnamed(door)

    async def _ask(self, asked: BufferedRequest) -> AsyncGenerator[Messages]:
        asking = self._replicas.options(method_name="answer", stream=True)
        answer = cast("DeploymentResponseGenerator[Messages]", asking.remote(asked))
        try:
            async for messages in answer:
                yield messages
        except DIED as exc:
            raise ReplicaLost(str(exc).partition("\n")[0]) from exc
        except BackPressureError:
            raise ApiError(429, "too many requests wait for a replica already", code="queue_full", retry=True) from None
        except DeploymentUnavailableError as exc:
            raise ApiError(503, exc.message, code="no_replica", retry=True) from exc
        finally:
            answer.cancel()  # type: ignore[no-untyped-call]

    async def _scrape(self) -> Mapping[str, bytes]:
        told = self._replicas.broadcast("metrics")
        return dict(await told.results_async(timeout_s=SCRAPING))


def build(arguments: dict[str, Any]) -> Application:
    """
    Build the application; *arguments* are settings, nested or with dots, and come before the variables and the file.

    Raise `ConfigurationError` for one that is unknown or wrong.
    """
    settings = service_factory.read(_nested(arguments))
    service, scaling = settings.service, settings.service.ray
    most = service.max_running + service.max_waiting + SPARE
    quiet = LoggingConfig(enable_access_log=False)
    replicas = serve.deployment(
        name="replica",
        autoscaling_config=AutoscalingConfig(
            min_replicas=scaling.min_replicas,
            max_replicas=scaling.max_replicas,
            target_ongoing_requests=scaling.target or service.max_running / 2,
            upscale_delay_s=scaling.up_after,
            downscale_delay_s=scaling.down_after,
        ),
        max_ongoing_requests=most,
        max_queued_requests=most * scaling.max_replicas,
        ray_actor_options={"num_cpus": scaling.cpus},
        graceful_shutdown_timeout_s=service.drain_seconds + GRACE,
        graceful_shutdown_wait_loop_s=0.5,
        health_check_period_s=service.health_every,
        logging_config=quiet,
    )(Replica)
    fronts = serve.deployment(
        name="front",
        num_replicas=scaling.fronts,
        max_ongoing_requests=most * scaling.max_replicas,
        ray_actor_options={"num_cpus": 0.1},
        graceful_shutdown_timeout_s=service.drain_seconds + 2 * GRACE,
        graceful_shutdown_wait_loop_s=0.5,
        logging_config=quiet,
    )(serve.ingress()(RayEntrypoint))
    return fronts.bind(replicas.bind(settings), service)


def __getattr__(name: str) -> Any:
    """Build `app` when it is asked for, so that settings are read then and not by every import."""
    if name == "app":
        return build({})
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _unnamed(app: ASGIApp) -> ASGIApp:
    """Leave out the request's id, which Ray's proxy adds itself: twice is one too many for most clients."""

    async def unnamed(scope: Scope, receive: Receive, send: Send) -> None:
        async def pass_on(message: Message) -> None:
            if message["type"] == "http.response.start":
                del MutableHeaders(scope=message)["x-request-id"]
            await send(message)

        await app(scope, receive, pass_on)

    return unnamed


def _nested(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Spell ``service.max_running=8`` as one setting inside another."""
    nested: dict[str, Any] = {}
    for name, value in arguments.items():
        inner = value
        for part in reversed(name.split(".")):
            inner = {part: inner}
        nested = _joined(nested, cast("dict[str, Any]", inner))
    return nested


def _joined(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    joined = dict(one)
    for name, value in other.items():
        known = joined.get(name)
        if isinstance(known, dict) and isinstance(value, dict):
            joined[name] = _joined(cast("dict[str, Any]", known), cast("dict[str, Any]", value))
        elif name in joined:
            raise ConfigurationError(f"{name!r} is given twice")
        else:
            joined[name] = value
    return joined
