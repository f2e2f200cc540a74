"""Scripted replicas behind a front, and the reply that a client of the front gets."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson
from starlette.applications import Starlette
from starlette.types import Message

from stepspec.orchestrator.service.http.admission import Clients
from stepspec.orchestrator.service.http.middleware import RequestMiddleware
from stepspec.orchestrator.service.ray_proxy import BufferedRequest, Messages, ReplicaProxy, stream_messages
from stepspec.orchestrator.service.settings import ServiceSettings

from .served import chosen

CHAT = "/v1/chat/completions"
OPENED = chosen(insecure=True)


def head(kind: str, status: int = 200) -> Message:
    return {"type": "http.response.start", "status": status, "headers": [(b"content-type", kind.encode())]}


def body(piece: bytes, *, more: bool = False) -> Message:
    return {"type": "http.response.body", "body": piece, "more_body": more}


STREAM, JSON = head("text/event-stream; charset=utf-8"), head("application/json")


@dataclass
class Elsewhere:
    """Scripted replicas: each of *lives* sends its messages for one request, and dies if the last one is an error."""

    lives: Sequence[Sequence[Messages | Exception]]
    requests: list[BufferedRequest] = field(default_factory=list[BufferedRequest])
    left: int = 0

    async def ask(self, request: BufferedRequest) -> AsyncGenerator[Messages]:
        self.requests.append(request)
        try:
            for each in self.lives[len(self.requests) - 1]:
                if isinstance(each, Exception):
                    raise each
                yield each
        finally:
            self.left += 1


async def scrape() -> Mapping[str, bytes]:
    return {name: b"# HELP x_total A.\n# TYPE x_total counter\nx_total 1.0\n" for name in ("a", "b")}


@dataclass
class FrontReply:
    """The messages that a client got, and the events that the front logged."""

    messages: list[Message]
    events: list[dict[str, Any]]

    @property
    def status(self) -> int:
        return int(self.messages[0]["status"])

    @property
    def headers(self) -> dict[str, str]:
        return {name.decode(): value.decode() for name, value in self.messages[0]["headers"]}

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.messages)

    @property
    def ended(self) -> bool:
        return not self.messages[-1].get("more_body")

    @property
    def code(self) -> str:
        return str(orjson.loads(self.body)["error"]["code"])


async def fetch(
    ask: Callable[[BufferedRequest], AsyncGenerator[Messages]],
    path: str = CHAT,
    *,
    settings: ServiceSettings = OPENED,
    method: str = "POST",
    headers: Sequence[tuple[bytes, bytes]] = (),
    server: str = "127.0.0.1",
) -> FrontReply:
    events = list[dict[str, Any]]()

    def tell(event: str, **more: Any) -> None:
        events.append({"event": event, **more})

    app = fronting(ask, settings, tell)
    request = BufferedRequest(
        {"method": method, "path": path, "query_string": b"", "server": (server, 80)}, tuple(headers), b"{}"
    )
    return FrontReply([message async for messages in stream_messages(app, request) for message in messages], events)


def fronting(
    ask: Callable[[BufferedRequest], AsyncGenerator[Messages]], settings: ServiceSettings, tell: Callable[..., None]
) -> RequestMiddleware:
    return RequestMiddleware(
        ReplicaProxy(Starlette(), ask, scrape, settings, tell),
        settings=settings,
        clients=Clients(settings, limits=False),
        version="9",
        observe=lambda event: None,
    )
