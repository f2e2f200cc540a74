"""Whether both servers are up, from a light look at them now and then; asking for it waits for nothing."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import orjson

from ..chain import Role
from ..endpoints import ModelEndpoint, ReplicatedEndpoint
from . import payloads
from .errors import ApiError
from .middleware import ServiceRequest
from .run_requests import ServedModel
from .streaming import EVENT_STREAM, Line

WITHIN = 5.0  # seconds for one look


class HealthMonitor:
    """The last known state of each role's servers; *tell* hears of every look."""

    def __init__(
        self, http: aiohttp.ClientSession, endpoints: Mapping[Role, ModelEndpoint], tell: Callable[[Role, bool], None]
    ) -> None:
        self._http, self._endpoints, self._tell = http, endpoints, tell
        self.up: dict[Role, bool] = dict.fromkeys(endpoints, True)  # They answered when the engine was entered.

    @property
    def steady(self) -> bool:
        return all(self.up.values())

    @asynccontextmanager
    async def felt(self, every: float) -> AsyncGenerator[None]:
        """Look at every server *every* so many seconds while the block lasts."""

        async def feel() -> None:
            while True:
                await asyncio.gather(*map(self._look, self._endpoints))
                await asyncio.sleep(every)

        feeling = asyncio.create_task(feel())
        try:
            yield
        finally:
            feeling.cancel()
            await asyncio.wait([feeling])

    async def _look(self, role: Role) -> None:
        """A role is up if one of its servers is."""
        answers = await asyncio.gather(*map(self._healthy, self._endpoints[role].settings.urls))
        self.up[role] = any(answers)
        self._tell(role, self.up[role])

    async def _healthy(self, url: str) -> bool:
        try:
            async with self._http.get(f"{url}/health", timeout=aiohttp.ClientTimeout(total=WITHIN)) as response:
                return response.status < 500
        except (aiohttp.ClientError, TimeoutError):
            return False


RETURNED = ("Content-Type", "Retry-After", "x-should-retry")


class UpstreamProxy:
    """Passes requests on to both models' servers, over connections that are kept."""

    def __init__(self, http: aiohttp.ClientSession, small: ModelEndpoint, large: ModelEndpoint) -> None:
        self._http = http
        self._endpoints = {"small": small, "large": large}
        self._turns = itertools.count()

    async def __call__(
        self,
        raw: ServedModel,
        path: str,
        given: Mapping[str, Any],
        body: bytes,
        visit: ServiceRequest,
        line: Line,
        seconds: float,
    ) -> None:
        """Send *body* to the server of *raw*, and answer on *line* with what it says. Raise `Refusal`."""
        endpoint = self._endpoints[raw.role]
        if given["model"] != raw.name:
            body = orjson.dumps({**given, "model": raw.name})
        failures: list[str] = []
        for url in self._urls(endpoint):
            try:
                await self._ask(raw, f"{url}{path}", body, visit, line, seconds)
                return
            except (TimeoutError, aiohttp.ClientError) as exc:
                if line.open:
                    visit.refusal = ApiError(503, f"the answer broke off: {exc!r}", code="upstream_error", retry=False)
                    await line.fail(visit.refusal)
                    return
                if isinstance(exc, TimeoutError):
                    message = f"the {raw.role} model did not answer in time"
                    raise ApiError(504, message, code="deadline", retry=False) from None
                failures.append(f"{url}: {exc}")
        message = f"the {raw.role} model's server cannot be reached: {'; '.join(failures)}"
        raise ApiError(503, message, code="upstream_unavailable")

    async def _ask(
        self, raw: ServedModel, url: str, body: bytes, visit: ServiceRequest, line: Line, seconds: float
    ) -> None:
        endpoint = self._endpoints[raw.role]
        with visit.passing(raw.role, raw.name, url) as passed:
            async with self._open(endpoint, url, body, visit, seconds) as response:
                visit.upstream = visit.seconds - (visit.begun or 0.0)
                passed.answered(response.status, visit.seconds)
                if response.status in (401, 403):
                    raise _refused(raw, endpoint, url, response.status)
                await _forward(response, line, endpoint.settings.deadlines.between, payloads.failed(visit.path))
                visit.upstream = visit.seconds - (visit.begun or 0.0)

    def _urls(self, endpoint: ModelEndpoint) -> Sequence[str]:
        """The servers of *endpoint*, by turns, those that are known to be down last."""
        urls, turn = endpoint.settings.urls, next(self._turns)
        rotated = [urls[(turn + place) % len(urls)] for place in range(len(urls))]
        down: Mapping[str, str] = endpoint.down if isinstance(endpoint, ReplicatedEndpoint) else {}
        return sorted(rotated, key=lambda url: url in down)

    def _open(self, endpoint: ModelEndpoint, url: str, body: bytes, visit: ServiceRequest, seconds: float) -> Any:
        headers = {**visit.carried, "Content-Type": "application/json", "Accept-Encoding": "identity"}
        key = endpoint.settings.api_key
        if key is not None:
            headers["Authorization"] = f"Bearer {key.get_secret_value()}"
        deadlines = endpoint.settings.deadlines
        timeout = aiohttp.ClientTimeout(total=seconds, sock_connect=deadlines.connect)
        return self._http.post(url, data=body, headers=headers, timeout=timeout)


async def _forward(response: aiohttp.ClientResponse, line: Line, between: float, last: bytes) -> None:
    headers = {name: value for name in RETURNED if (value := response.headers.get(name)) is not None}
    streaming = response.content_type == "text/event-stream"
    await line.start(
        {**(EVENT_STREAM if streaming else {}), **headers}, response.status, last=last if streaming else b""
    )
    while piece := await _read(response, between):
        await line.send(piece)
    await line.end()


async def _read(response: aiohttp.ClientResponse, within: float) -> bytes:
    async with asyncio.timeout(within):
        return await response.content.readany()


def _refused(raw: ServedModel, endpoint: ModelEndpoint, url: str, status: int) -> ApiError:
    """The client's key is right, or it would not have come this far: the one that its server refuses is another."""
    had = "the service's key for it" if endpoint.settings.api_key else "a request without a key; the service has none"
    variable = f"STEPSPEC_{raw.role.upper()}__API_KEY"
    message = f"the {raw.role} model's server at {url} refused {had} (HTTP {status}): whoever runs it sets {variable}"
    return ApiError(500, message, code="upstream_error", retry=False)
