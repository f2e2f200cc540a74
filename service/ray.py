"""
The service as a Ray Serve application, for more requests than one process can serve.

    serve run stepspec.service.ray:build
    serve run stepspec.service.ray:build small=http://a:8000/v1 large=http://b:8000/v1

Each replica is a complete service, and their number follows the load. This is the only module of
the service that imports Ray, and the only one that imports from above (docs/decisions/0008).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from prometheus_client import Metric, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector
from starlette.datastructures import MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from stepspec.orchestrator.errors import ConfigurationError, install_command

try:
    from ray import serve
    from ray.serve.config import AutoscalingConfig
    from ray.serve.schema import LoggingConfig
except ImportError as exc:
    raise ConfigurationError(
        f"the service on Ray needs {exc.name}: {install_command('serve', 'ray')}"
    ) from exc

from stepspec import service_factory
from stepspec.settings import Settings

from .errors import ApiError
from .http.middleware import request_path
from .records import PUBLIC_PATHS
from .settings import ServiceSettings, private

if TYPE_CHECKING:
    from ray.serve import Application

REPLICA = "replica"
"""The name of the deployment, and of the label that tells replicas apart in metrics."""
SPARE_REQUESTS = 64
"""
Requests that Ray passes to a replica beyond those that the replica runs and queues. The replica
refuses them, or they are health checks.
"""
GRACE_SECONDS = 5.0
"""Seconds that Ray waits beyond the time to drain."""
SCRAPE_SECONDS = 5.0
"""Seconds for all replicas to return their metrics."""


class ServiceReplica:
    """A complete service, with its own connections to both models."""

    async def __init__(self, settings: Settings) -> None:  # type: ignore[misc]  # Ray awaits it.
        self._context = serve.get_replica_context()
        self._settings = settings.service
        self._open = AsyncExitStack()
        self._service = await self._open.enter_async_context(service_factory.opened(settings))

    def __serve_build_asgi_app__(self) -> ASGIApp:
        return guarded(self._answer, self._settings)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and request_path(scope) == "/metrics":
            metrics = generate_latest(ScrapedMetrics(await self._scrape()))
            response = Response(metrics, headers={"Content-Type": CONTENT_TYPE_LATEST})
            await response(scope, receive, send)
        else:
            await self._service.app(scope, receive, send)

    async def metrics(self) -> tuple[str, bytes]:
        """Return the name of this replica and its metrics, for another replica."""
        return self._context.replica_tag, self._service.metrics.scrape()[0]

    async def _scrape(self) -> Mapping[str, bytes]:
        handle = cast("Any", serve.get_deployment_handle(REPLICA, self._context.app_name))
        return dict(await handle.broadcast("metrics").results_async(timeout_s=SCRAPE_SECONDS))

    async def check_health(self) -> None:
        """Do nothing: a replica that answers is healthy. A restart would not help a model."""

    async def __del__(self) -> None:
        if hasattr(self, "_open"):
            await self._open.aclose()


def build(arguments: dict[str, Any]) -> Application:
    """
    Build the application.

    *arguments* are settings, nested as in a settings file. They override variables and file. Raise
    `ConfigurationError` if a setting is unknown or wrong.
    """
    settings = service_factory.read(arguments)
    service = settings.service
    scaling = service.ray
    max_requests = service.max_running + service.max_waiting + SPARE_REQUESTS
    replicas = serve.deployment(
        name=REPLICA,
        autoscaling_config=AutoscalingConfig(
            min_replicas=scaling.min_replicas,
            max_replicas=scaling.max_replicas,
            target_ongoing_requests=service.max_running / 2,
        ),
        max_ongoing_requests=max_requests,
        max_queued_requests=max_requests * scaling.max_replicas,
        ray_actor_options={"num_cpus": scaling.cpus},
        graceful_shutdown_timeout_s=service.drain_seconds + GRACE_SECONDS,
        graceful_shutdown_wait_loop_s=0.5,
        health_check_period_s=service.health_every,
        logging_config=LoggingConfig(enable_access_log=False),
    )(serve.ingress()(ServiceReplica))
    return replicas.bind(settings)


def guarded(app: ASGIApp, settings: ServiceSettings) -> ASGIApp:
    """
    Return *app* for use behind Ray's proxy, which chooses its own address.

    Requests without a key at a public address are refused, unless the settings allow them. The
    header with the request's id is removed, as the proxy adds it, and most clients reject a header
    that comes twice.
    """
    allowed_everywhere = settings.locked or settings.insecure

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_without_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                del MutableHeaders(scope=message)["x-request-id"]
            await send(message)

        server = scope.get("server")
        host = str(server[0]) if server else "localhost"
        allowed = allowed_everywhere or private(host)
        if allowed or request_path(scope) in PUBLIC_PATHS:
            await app(scope, receive, send_without_id)
            return
        message = (
            f"the service has no key, and {host} can be reached from outside: set"
            " STEPSPEC_SERVICE__KEYS, or STEPSPEC_SERVICE__INSECURE=true to admit every client"
        )
        refusal = ApiError(403, message, code="no_key")
        response = Response(refusal.body, refusal.status, media_type="application/json")
        await response(scope, receive, send)

    return answer


@dataclass(frozen=True, eq=False)
class ScrapedMetrics(Collector):
    """Collects metrics that were scraped from replicas, each sample with its replica as a label."""

    scrapes: Mapping[str, bytes]
    """The metrics in Prometheus' format, by the name of the replica."""

    def collect(self) -> Iterable[Metric]:
        families: dict[str, Metric] = {}
        for replica, text in self.scrapes.items():
            for scraped in text_string_to_metric_families(text.decode()):
                for sample in scraped.samples:
                    sample.labels[REPLICA] = replica
                family = families.setdefault(scraped.name, scraped)
                if family is not scraped:
                    family.samples += scraped.samples
        return families.values()
