"""Serve an application until it is told to end, and let what runs then finish."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from types import FrameType

import uvicorn

from ..errors import ConfigurationError
from .app import Service
from .settings import ServiceSettings

GOODBYE = 5.0  # seconds to close what is open when the time to drain is over


def listen(host: str, port: int) -> socket.socket:
    """Open the port. Raise `ConfigurationError` if it cannot be had."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listening = socket.create_server((host, port), family=family, backlog=2048)
    except OSError as exc:
        raise ConfigurationError(
            f"cannot listen at {host} port {port}: {exc.strerror or exc}; choose another with --port (0: any)"
        ) from exc
    # Else a step waits up to 40 ms for the client to acknowledge the one before; connections inherit it.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening


class Server(uvicorn.Server):
    """
    A uvicorn server that drains: told to end, it goes on answering, takes no new work, and leaves when all is done.

    That takes *drain_seconds* at most. Told a second time, it leaves at once. *tell* hears what it is doing.
    """

    def __init__(self, service: Service, settings: ServiceSettings, tell: Callable[[str], None]) -> None:
        config = uvicorn.Config(
            service.app,
            host=settings.host,
            port=settings.port,
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=int(GOODBYE),
            timeout_keep_alive=75,  # longer than the proxies before it keep a connection
            h11_max_incomplete_event_size=64 * 1024,
        )
        super().__init__(config)
        self._gate, self._patience, self._tell = service.parts.gate, settings.drain_seconds, tell
        self._draining: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        await super().serve(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to drain; the second signal ends at once."""
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._begin_to_drain)

    def _begin_to_drain(self) -> None:
        if self._draining is not None:
            self._gate.give_up()
            self.should_exit = True
            return
        self._gate.close()
        self._draining = asyncio.create_task(self._drain())

    async def _drain(self) -> None:
        inside = self._gate.running + self._gate.waiting
        self._tell(f"shutting down: {inside} requests may finish within {self._patience:g} s")
        try:
            async with asyncio.timeout(self._patience):
                await self._gate.emptied()
        except TimeoutError:
            self._tell(f"giving up on {self._gate.running + self._gate.waiting} requests")
            self._gate.give_up()
        self.should_exit = True
