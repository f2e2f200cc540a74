"""
The service as a Ray Serve application, for more requests than one process can serve.

    serve run stepspec.orchestrator.service.ray:app
    serve run stepspec.orchestrator.service.ray:build small=http://a:8000/v1 service.ray.max_replicas=8

Two deployments: replicas, each a complete service, whose number follows the load; and fronts, which hold the clients'
connections. This is the only module of the service that imports Ray, and the only one that imports from above
(docs/decisions/0008).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, cast

from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..errors import ConfigurationError
from ..installation import install_command

try:
    from ray import serve
    from ray.exceptions import NodeDiedError, ObjectLostError, RayActorError, WorkerCrashedError
    from ray.serve.config import AutoscalingConfig
    from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError
    from ray.serve.handle import DeploymentHandle, DeploymentResponseGenerator
    from ray.serve.schema import LoggingConfig
except ImportError as exc:
    raise ConfigurationError(f"the service on Ray needs {exc.name}: {install_command('serve', 'ray')}") from exc

from stepspec import service_factory
from stepspec.settings import Settings

from .http.admission import Clients
from .http.errors import QUEUE_FULL, ApiError
from .http.middleware import RequestMiddleware
from .ray_proxy import BufferedRequest, Messages, ReplicaLost, ReplicaProxy, stream_messages
from .settings import ServiceSettings
from .watch.log import RequestLog
from .watch.records import RequestFailed, RequestFinished, ServiceEvent

if TYPE_CHECKING:
    from ray.serve import Application

DIED = (RayActorError, WorkerCrashedError, NodeDiedError, ObjectLostError)
SPARE = 64  # requests beyond those that a replica queues: those that it refuses, and health checks
GRACE = 5.0  # seconds that Ray waits beyond the time to drain
SCRAPE_SECONDS = 5.0  # for every replica to return its metrics
HEALTH = BufferedRequest({"method": "GET", "path": "/health", "query_string": b""}, (), b"")


class ServiceReplica:
    """A complete service, with its own connections to both models."""

    async def __init__(self, settings: Settings) -> None:  # type: ignore[misc]  # Ray awaits it.
        context = serve.get_replica_context()
        self._name = context.replica_tag
        self._open = AsyncExitStack()
        self._service = await self._open.enter_async_context(service_factory.opened(settings.turned(context.rank.rank)))

    async def answer(self, request: BufferedRequest) -> AsyncGenerator[Messages]:
        async for messages in stream_messages(self._service.app, request):
            yield messages

    async def metrics(self) -> tuple[str, bytes]:
        return self._name, self._service.metrics.scrape()[0]

    async def check_health(self) -> None:
        """Send the service a request. It is healthy while a model is down: a restart would not help."""
        answer = [message async for messages in stream_messages(self._service.app, HEALTH) for message in messages]
        if not answer or answer[0]["status"] != 200:
            raise RuntimeError(f"the service is not healthy: {answer}")

    async def __del__(self) -> None:
        if hasattr(self, "_open"):
            await self._open.aclose()


class ServiceFront:
    """A front: holds clients' connections and has the replicas answer."""

    def __init__(self, replicas: DeploymentHandle[Any], settings: ServiceSettings) -> None:
        self._replicas, self._settings, self._log = replicas, settings, RequestLog(settings)

    def __serve_build_asgi_app__(self) -> ASGIApp:
        proxy = ReplicaProxy(Starlette(), self._send, self._scrape, self._settings, self._log.log.warning)
        middleware = RequestMiddleware(
            proxy,
            settings=self._settings,
            clients=Clients(self._settings, limits=False),  # the replicas count
            version=version("stepspec"),
            observe=self._observe,
        )
        return _without_id(middleware)

    def _observe(self, event: ServiceEvent) -> None:
        """Log what no replica has logged: requests that the front itself refused, and its own bugs."""
        if isinstance(event, RequestFailed) or (isinstance(event, RequestFinished) and event.request.error):
            self._log(event)

    async def _send(self, request: BufferedRequest) -> AsyncGenerator[Messages]:
        handle = self._replicas.options(method_name="answer", stream=True)
        answer = cast("DeploymentResponseGenerator[Messages]", handle.remote(request))
        try:
            async for messages in answer:
                yield messages
        except DIED as exc:
            raise ReplicaLost(str(exc).partition("\n")[0]) from exc
        except BackPressureError:
            raise ApiError(429, "too many requests wait for a replica already", code=QUEUE_FULL, retry=True) from None
        except DeploymentUnavailableError as exc:
            raise ApiError(503, exc.message, code="no_replica", retry=True) from exc
        finally:
            answer.cancel()  # type: ignore[no-untyped-call]

    async def _scrape(self) -> Mapping[str, bytes]:
        responses = self._replicas.broadcast("metrics")
        return dict(await responses.results_async(timeout_s=SCRAPE_SECONDS))


def build(arguments: dict[str, Any]) -> Application:
    """
    Build the application. *arguments* are settings, nested or with dots; they override variables and file.

    Raise `ConfigurationError` if one is unknown or wrong.
    """
    settings = service_factory.read(_nested(arguments))
    service, scaling = settings.service, settings.service.ray
    max_requests = service.max_running + service.max_waiting + SPARE
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
        max_ongoing_requests=max_requests,
        max_queued_requests=max_requests * scaling.max_replicas,
        ray_actor_options={"num_cpus": scaling.cpus},
        graceful_shutdown_timeout_s=service.drain_seconds + GRACE,
        graceful_shutdown_wait_loop_s=0.5,
        health_check_period_s=service.health_every,
        logging_config=quiet,
    )(ServiceReplica)
    fronts = serve.deployment(
        name="front",
        num_replicas=scaling.fronts,
        max_ongoing_requests=max_requests * scaling.max_replicas,
        ray_actor_options={"num_cpus": 0.1},
        graceful_shutdown_timeout_s=service.drain_seconds + 2 * GRACE,
        graceful_shutdown_wait_loop_s=0.5,
        logging_config=quiet,
    )(serve.ingress()(ServiceFront))
    return fronts.bind(replicas.bind(settings), service)


def __getattr__(name: str) -> Any:
    """Build `app` on first access: an import alone reads no settings."""
    if name == "app":
        return build({})
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _without_id(app: ASGIApp) -> ASGIApp:
    """Remove the header with the request's id: Ray's proxy adds it, and most clients reject it twice."""

    async def without_id(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_without_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                del MutableHeaders(scope=message)["x-request-id"]
            await send(message)

        await app(scope, receive, send_without_id)

    return without_id


def _nested(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Turn ``service.max_running=8`` into nested settings."""
    nested: dict[str, Any] = {}
    for name, value in arguments.items():
        inner = value
        for part in reversed(name.split(".")):
            inner = {part: inner}
        nested = _merged(nested, cast("dict[str, Any]", inner))
    return nested


def _merged(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(first)
    for name, value in second.items():
        known = merged.get(name)
        if isinstance(known, dict) and isinstance(value, dict):
            merged[name] = _merged(cast("dict[str, Any]", known), cast("dict[str, Any]", value))
        elif name in merged:
            raise ConfigurationError(f"{name!r} is set twice")
        else:
            merged[name] = value
    return merged
