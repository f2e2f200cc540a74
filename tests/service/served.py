"""A service on a real socket, over servers that are real but for their models."""

from __future__ import annotations

import asyncio
import io
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any

import aiohttp
import orjson
from aiohttp import web

from stepspec import Solver
from stepspec.orchestrator.backends.vllm import VllmEndpoint
from stepspec.orchestrator.chain import Role
from stepspec.orchestrator.endpoints import GREEDY, ReplicatedEndpoint
from stepspec.orchestrator.endpoints.interfaces import Server
from stepspec.orchestrator.events import Event
from stepspec.orchestrator.http.client import Connection
from stepspec.orchestrator.http.http_errors import Call
from stepspec.service.http.app import Service, ServiceServer, listen
from stepspec.service.records import (
    RequestFailed,
    RequestFinished,
    RunEvent,
    ServiceEvent,
    ServiceObserver,
    ServiceRequest,
)
from stepspec.service.settings import ServiceSettings
from stepspec.service_factory import offer

from ..stand_in import FakeVllm

SCRIPT = (
    "So",
    " one",
    ".\n\n",
    "Then",
    " two",
    ".\n\n",
    "Done",
    "</think>",
    "\n\n",
    "It is ",
    "\\boxed{2}",
    ".",
)
THINKING = "So one.\n\nThen two.\n\nDone"
ANSWER = "It is \\boxed{2}."
TURN = {"role": "user", "content": "What is 1 + 1?"}


@dataclass
class Noting(FakeVllm):
    """
    A server that notes the headers of requests for a completion, and answers ``/health`` with
    status *health*.
    """

    heads: list[Mapping[str, str]] = field(default_factory=list[Mapping[str, str]])
    health: int = 200

    def application(self) -> web.Application:
        app = super().application()
        app.router.add_get("/health", self.healthy)
        return app

    async def healthy(self, request: web.Request) -> web.Response:
        return web.Response(status=self.health)

    async def complete(self, request: web.Request) -> web.StreamResponse:
        self.heads.append(request.headers)
        return await super().complete(request)


@dataclass
class RecordingObserver:
    """An observer that remembers."""

    events: list[Event] = field(default_factory=list[Event])
    requests: list[ServiceRequest] = field(default_factory=list[ServiceRequest])
    failures: list[Exception] = field(default_factory=list[Exception])

    def __call__(self, event: ServiceEvent) -> None:
        match event:
            case RunEvent(event=run_event):
                self.events.append(run_event)
            case RequestFailed(exception=exception):
                self.failures.append(exception)
            case RequestFinished(request=request):
                self.requests.append(request)
            case _:
                pass


@dataclass
class Served:
    """A service that runs: where, what it talks to, and a client of it."""

    base: str
    small: Noting
    large: Noting
    service: Service
    server: ServiceServer
    running: asyncio.Task[None]
    recorded: RecordingObserver
    http: aiohttp.ClientSession
    behind: AsyncExitStack

    async def post(self, path: str, body: Any, **headers: str) -> Reply:
        content = body if isinstance(body, bytes) else orjson.dumps(body)
        spelt = {name.replace("_", "-"): value for name, value in headers.items()}
        async with self.http.post(
            self.base + path,
            data=io.BytesIO(content),
            headers={"Content-Type": "application/json", **spelt},
        ) as reply:
            return Reply(reply.status, reply.headers, await reply.read())

    async def chat(
        self, *, method: str = "auto", headers: dict[str, str] | None = None, **fields: Any
    ) -> Reply:
        body = {"model": method, "messages": [TURN], **fields}
        return await self.post("/v1/chat/completions", body, **(headers or {}))

    async def get(self, path: str, **headers: str) -> Reply:
        spelt = {name.replace("_", "-"): value for name, value in headers.items()}
        async with self.http.get(self.base + path, headers=spelt) as reply:
            return Reply(reply.status, reply.headers, await reply.read())


def down(served: Served) -> Mapping[str, str]:
    """The servers of the large model that fail, with the causes."""
    large = served.service.context.offer.engine.large
    return large.down


async def until(true: Callable[[], object]) -> None:
    """Wait until something is *true*."""
    for _ in range(1000):
        if true():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it did not come true within ten seconds")


@dataclass(frozen=True)
class Reply:
    """An answer of the service."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return orjson.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        error: dict[str, Any] = self.json["error"]
        return error

    @property
    def message(self) -> dict[str, Any]:
        message: dict[str, Any] = self.json["choices"][0]["message"]
        return message

    @property
    def lines(self) -> list[str]:
        return [line for line in self.body.decode().split("\n\n") if line]

    @property
    def chunks(self) -> list[dict[str, Any]]:
        return [
            orjson.loads(line.removeprefix("data: "))
            for line in self.lines
            if line.startswith("data: {")
        ]

    def joined(self, name: str, choice: int = 0) -> str:
        """Join what the deltas of a choice say in one field."""
        choices = [
            each for chunk in self.chunks for each in chunk["choices"] if each["index"] == choice
        ]
        return "".join(each["delta"].get(name, "") for each in choices)


def chosen(**overrides: Any) -> ServiceSettings:
    """Settings as a user gives them; any port will do."""
    return ServiceSettings.model_validate({"port": 0, **overrides})


@asynccontextmanager
async def serving(
    settings: ServiceSettings | None = None,
    *,
    script: Sequence[str] = SCRIPT,
    names: tuple[str, str] = ("tiny", "huge"),
    key: str = "",
    metrics: bytes = b"",
    observers: Sequence[ServiceObserver] = (),
    replicas: Sequence[Noting] = (),
    max_concurrency: int | None = None,
    **solving: Any,
) -> AsyncGenerator[Served]:
    """
    Run a service over two fake servers; the large model's wants *key*, shows *metrics*, and may
    have *replicas*. Each takes *max_concurrency* requests at a time.
    """
    settings = settings or chosen()
    small = Noting(script, digits={"9": -0.1}, names=names[:1])
    large = replace(
        small, faults=deque(), requests=[], heads=[], names=names[1:], key=key, left=asyncio.Event()
    )
    large.metrics = metrics
    for each in replicas:
        each._ids = large._ids  # pyright: ignore[reportPrivateUsage]  # one model, one vocabulary
    recorded, messages = RecordingObserver(), list[str]()
    solving = {"sampling": GREEDY, "ending": "small", "answer": "large", "auto": False, **solving}
    endpoints = {"retries": 0, "max_concurrency": max_concurrency}
    async with (
        AsyncExitStack() as stack,
        small.serve("small", **endpoints) as one,
        large.serve("large", **endpoints, **({"api_key": key} if key else {})) as other,
    ):
        urls = [
            (await stack.enter_async_context(each.serve("large", **endpoints))).url
            for each in replicas
        ]
        other = other.model_copy(update={"url": ",".join((other.url, *urls))})
        solver = await stack.enter_async_context(Solver(one, other, **solving))
        http = await stack.enter_async_context(
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        )
        service = Service(offer(solver), settings, [recorded, *observers])
        async with (
            reachable(service, settings, messages.append) as (base, server, running),
            AsyncExitStack() as behind,
        ):
            try:
                yield Served(
                    base,
                    small,
                    large,
                    service,
                    server,
                    running,
                    recorded,
                    http,
                    behind,
                )
            finally:
                for each in (small, large):
                    if each.gate:
                        for _ in range(1000):
                            each.gate.release()


@asynccontextmanager
async def reachable(
    service: Service, settings: ServiceSettings, log: Callable[[str], None] = lambda message: None
) -> AsyncGenerator[tuple[str, ServiceServer, asyncio.Task[None]]]:
    """Serve at a real socket until the block is left; yield the URL."""
    server = ServiceServer(service, settings, log)
    with listen(settings.host, settings.port, settings.send_seconds) as listening:
        host, port = listening.getsockname()[:2]
        running = asyncio.create_task(server.serve([listening]))
        try:
            yield f"http://{host}:{port}", server, running
        finally:
            server.should_exit = True
            await running


STREAM = "text/event-stream"


class FullDisk(io.TextIOBase):
    """
    What cannot be written: a full disk, a pipe whose reader has left, or a stream that is closed.
    """

    def __init__(self, exc: Exception) -> None:
        self._exc = exc

    def write(self, text: str, /) -> int:
        raise self._exc

    def flush(self) -> None:
        raise self._exc


@dataclass(eq=False)
class Behind:
    """
    A model's server: it records its requests and returns *pieces*, of an answer of this *kind*.
    """

    pieces: list[bytes] = field(default_factory=lambda: [b'{"any": "thing"}'])
    kind: str = "application/json"
    status: int = 200
    gate: asyncio.Event | None = None
    silent: bool = False
    got: list[tuple[str, dict[str, str], bytes]] = field(
        default_factory=list[tuple[str, dict[str, str], bytes]]
    )
    left: asyncio.Event = field(default_factory=asyncio.Event)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.got.append((request.path, dict(request.headers), await request.read()))
        if self.silent:
            await asyncio.Event().wait()
        response = web.StreamResponse(
            status=self.status, headers={"Content-Type": self.kind, "Retry-After": "7"}
        )
        await response.prepare(request)
        try:
            for piece in self.pieces:
                await response.write(piece)
                if self.gate:
                    await self.gate.wait()
        except (asyncio.CancelledError, ConnectionError):
            self.left.set()
            raise
        return response


def change(server: Server, **settings: Any) -> None:
    """
    Give the requests that pass through to *server* other *settings*. Its other requests, such as
    probes, stay as they are.
    """
    assert isinstance(server, VllmEndpoint)
    server.settings = server.settings.model_copy(update=settings)
    own = server.connection
    forwarding = copy(own)
    forwarding.endpoint = server.settings

    async def opened(call: Call, *request: Any) -> aiohttp.ClientResponse:
        connection = forwarding if call.verb == "forward" else own
        return await Connection.open(connection, call, *request)

    vars(own).update(open=opened)


def move(endpoint: ReplicatedEndpoint, url: str, replica: int = 0) -> None:
    """Have the requests that pass through to a *replica* of *endpoint* sent to *url*."""
    change(endpoint.up[replica], url=url)


async def put_behind(
    served: Served, behind: Behind, *roles: Role, replica: int = 0
) -> web.AppRunner:
    """
    Let the requests for the models of *roles*, by default the large one, pass through to another
    server.
    """
    app = web.Application()
    app.router.add_post("/v1/{rest:.*}", behind.answer)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.0)
    await runner.setup()
    served.behind.push_async_callback(runner.cleanup)
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    engine = served.service.context.offer.engine
    for role in roles or ("large",):
        endpoint = engine.small if role == "small" else engine.large
        move(endpoint, f"http://{host}:{port}", replica)
    return runner


@asynccontextmanager
async def passing(
    behind: Behind, settings: ServiceSettings | None = None, **solving: Any
) -> AsyncGenerator[Served]:
    """Run a service that lets requests for the large model pass through to *behind*."""
    async with serving(settings, **solving) as served:
        await put_behind(served, behind)
        yield served
