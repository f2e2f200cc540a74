"""The servers of both models: whether they are up, and forwarding of requests to a served model by its own name."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Literal

import aiohttp
import orjson

from ...chain import Role
from ...concurrency import background
from ...endpoints import ModelEndpoint, ReplicatedEndpoint
from ...endpoints.client import run_place
from ...endpoints.failures import no_connection
from ...endpoints.placement import in_order
from ..formats import deltas as payloads
from ..formats.requests import ServedModel
from ..watch.records import HealthChecked, ServiceObserver, ServiceRequest
from .errors import ApiError
from .sse import ForwardedUsage, asking_for_usage
from .streaming import EVENT_STREAM, ClientConnection

IDLE = 2.0  # seconds that an idle connection stays open; vLLM closes its own after 5, maybe as a request is under way
CHECK_SECONDS = 5.0  # for one health check
RETURNED_HEADERS = ("Content-Type", "Retry-After", "x-should-retry")


class HealthMonitor:
    """Checks the health of the servers; `up` is the last result by role. *observe* receives every result."""

    def __init__(
        self, http: aiohttp.ClientSession, endpoints: Mapping[Role, ModelEndpoint], observe: ServiceObserver
    ) -> None:
        self._http, self._endpoints, self._observe = http, endpoints, observe
        self.up: dict[Role, bool] = {role: endpoint.usable for role, endpoint in endpoints.items()}

    @property
    def status(self) -> Literal["ready", "degraded", "down"]:
        """Degraded while the small model is down, as runs go on with the large one alone; down without the large."""
        return "ready" if all(self.up.values()) else "degraded" if self.up["large"] else "down"

    @asynccontextmanager
    async def checking(self, seconds: float) -> AsyncGenerator[None]:
        """Check every server, and again *seconds* after that, while the block lasts."""

        async def check() -> None:
            while True:
                await asyncio.gather(*map(self._check, self._endpoints))
                await asyncio.sleep(seconds)

        async with background(check()):
            yield

    async def _check(self, role: Role) -> None:
        """A role is up if one of its servers is, and not all of them fail the probes of their circuit breakers."""
        healthy = await asyncio.gather(*map(self._healthy, self._endpoints[role].settings.urls))
        self.up[role] = any(healthy) and self._endpoints[role].usable
        self._observe(HealthChecked(role, self.up[role]))

    async def _healthy(self, url: str) -> bool:
        try:
            async with self._http.get(f"{url}/health", timeout=aiohttp.ClientTimeout(total=CHECK_SECONDS)) as response:
                return response.status < 500
        except (aiohttp.ClientError, TimeoutError):
            return False


class UpstreamProxy:
    """Forwards requests to both models' servers, over connections that are kept open."""

    def __init__(self, http: aiohttp.ClientSession, small: ModelEndpoint, large: ModelEndpoint) -> None:
        self._http = http
        self._endpoints = {"small": small, "large": large}
        self._turns = itertools.count()

    async def forward(
        self,
        request: ServiceRequest,
        model: ServedModel,
        content: Mapping[str, Any],
        body: bytes,
        connection: ClientConnection,
        seconds: float,
        priority: int | None = None,
    ) -> None:
        """
        Send *body* (parsed: *content*) to *model*, and its answer over *connection*. Raise `ApiError`.

        *priority* is that of a run; None: the request keeps its own.
        """
        endpoint, changed = self._endpoints[model.role], content
        if content["model"] != model.name:
            changed = {**changed, "model": model.name}
        if priority is not None and endpoint.settings.priorities:
            changed = {**changed, "priority": run_place(priority)}
        counted = bool(request.client) and model.role == "large"
        asking = asking_for_usage(request.path, changed) if counted else None
        changed = asking or changed
        if changed is not content:
            body = orjson.dumps(changed)
        failures: list[str] = []
        hidden = asking is not None
        send = partial(
            self._send,
            request,
            model,
            body=body,
            connection=connection,
            seconds=seconds,
            counted=counted,
            hidden=hidden,
        )
        for url in self._urls(endpoint, request.session):
            try:
                await _once_more(partial(send, f"{url}{request.path}"), connection)
                return
            except (TimeoutError, aiohttp.ClientError) as exc:
                if connection.started:
                    message = "the answer broke off: did the server die?"
                    error = ApiError(503, message, code="upstream_error", retry=False)
                    request.error = error
                    await connection.fail(error)
                    return
                if isinstance(exc, TimeoutError):
                    message = f"the {model.role} model did not answer in time"
                    raise ApiError(504, message, code="deadline", retry=False) from None
                failures.append(f"{url}: {no_connection(exc, url, endpoint.settings.deadlines.connect)}")
        message = f"the {model.role} model's server cannot be reached: {'; '.join(failures)}"
        raise ApiError(503, message, code="upstream_unavailable")

    async def _send(
        self,
        request: ServiceRequest,
        model: ServedModel,
        url: str,
        *,
        body: bytes,
        connection: ClientConnection,
        seconds: float,
        counted: bool,
        hidden: bool,
    ) -> None:
        endpoint = self._endpoints[model.role]
        with request.calling(model.role, model.name, url) as call:
            async with self._open(request, endpoint, url, body, seconds) as response:
                request.upstream = request.seconds - (request.admitted or 0.0)
                call.answered(response.status, request.seconds)
                if response.status in (401, 403):
                    raise _key_refused(model, endpoint, url, response.status)
                failure = payloads.failure(request.path)
                usage = ForwardedUsage(stream=_streams(response), hidden=hidden) if counted else None
                try:
                    await _return(response, connection, endpoint.settings.deadlines.between, failure, usage)
                finally:
                    request.large_tokens += usage.written if usage else 0
                request.upstream = request.seconds - (request.admitted or 0.0)

    def _urls(self, endpoint: ModelEndpoint, session: str) -> Sequence[str]:
        """
        Return the servers of *endpoint* in the order to try, with those that are known to be down at the end.

        It is the order that the *session* prefers, as for its runs; without one the servers take turns.
        """
        urls = endpoint.settings.urls
        turn = 0 if session else next(self._turns)
        ordered = in_order(urls, session) if session else [urls[(turn + at) % len(urls)] for at in range(len(urls))]
        down: Mapping[str, str] = endpoint.down if isinstance(endpoint, ReplicatedEndpoint) else {}
        return sorted(ordered, key=lambda url: url in down)

    def _open(self, request: ServiceRequest, endpoint: ModelEndpoint, url: str, body: bytes, seconds: float) -> Any:
        headers = {**request.forwarded, "Content-Type": "application/json", "Accept-Encoding": "identity"}
        key = endpoint.settings.api_key
        if key is not None:
            headers["Authorization"] = f"Bearer {key.get_secret_value()}"
        deadlines = endpoint.settings.deadlines
        timeout = aiohttp.ClientTimeout(total=seconds, sock_connect=deadlines.connect)
        return self._http.post(url, data=body, headers=headers, timeout=timeout)


async def _once_more(send: Callable[[], Awaitable[None]], connection: ClientConnection) -> None:
    """Send what a server did not read, because it closed an idle connection just then, a second time."""
    try:
        await send()
    except aiohttp.ServerDisconnectedError:
        if connection.started:
            raise
        await send()


def _streams(response: aiohttp.ClientResponse) -> bool:
    return response.content_type == "text/event-stream"


async def _return(
    response: aiohttp.ClientResponse,
    connection: ClientConnection,
    between: float,
    failure: bytes,
    usage: ForwardedUsage | None,
) -> None:
    headers = {name: value for name in RETURNED_HEADERS if (value := response.headers.get(name)) is not None}
    stream = _streams(response)
    await connection.start(
        {**(EVENT_STREAM if stream else {}), **headers}, response.status, failure=failure if stream else b""
    )
    while part := await _read(response, between):
        await connection.send(usage.add(part) if usage else part)
    await connection.finish(usage.finish() if usage else b"")


async def _read(response: aiohttp.ClientResponse, seconds: float) -> bytes:
    async with asyncio.timeout(seconds):
        return await response.content.readany()


def _key_refused(model: ServedModel, endpoint: ModelEndpoint, url: str, status: int) -> ApiError:
    """Make the error for the operator: the service's key is wrong; the client's was accepted already."""
    key = "the service's key for it" if endpoint.settings.api_key else "a request without a key; the service has none"
    variable = f"STEPSPEC_{model.role.upper()}__API_KEY"
    message = (
        f"the {model.role} model's server at {url} refused {key} (HTTP {status}): the operator has to set {variable}"
    )
    return ApiError(500, message, code="upstream_error", retry=False)
