"""
The end of a worker: the channel to the program that started it, the slots that it asks for there, and its server.

Messages are lines of JSON, a list each. To the parent: ``ready``, ``failed KIND TEXT``, ``enter N``, ``leave N``; from
it: ``granted N``, ``refused N STATUS TEXT CODE``, ``close``, ``abort``, ``exit``. N is a number that the worker chooses
for a request.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import pickle
import socket
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import orjson
import uvicorn

from .app import CLOSE_SECONDS, Service, server_config
from .errors import ApiError
from .settings import ServiceSettings

END_SECONDS = 3 * CLOSE_SECONDS  # for a worker to end, before it is killed: connections, spans, and as much again
SIZE_BYTES = 8


@dataclass(frozen=True, slots=True)
class Start:
    """
    The first message to a worker: its *number*, from 1, and the *folder* of all workers' metrics.

    *connections* is the file descriptor over which the clients' connections come, *path* the parent's ``sys.path``, and
    *settings* are pickled, because they may name what is found there.
    """

    number: int
    folder: Path
    connections: int
    path: tuple[str, ...]
    settings: bytes


class Channel:
    """One end of a socket pair, for messages. A message to a process that has ended is lost."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    @asynccontextmanager
    async def over(cls, end: socket.socket) -> AsyncGenerator[Channel]:
        """Use this *end* while the block lasts."""
        reader, writer = await asyncio.open_connection(sock=end)
        try:
            yield cls(reader, writer)
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    def send(self, *message: object) -> None:
        self.write(orjson.dumps(message) + b"\n")

    def write(self, data: bytes) -> None:
        if not self._writer.is_closing():
            self._writer.write(data)

    async def receive(self) -> list[Any] | None:
        """Wait for a message; None when the other process has ended."""
        try:
            line = await self._reader.readline()
        except ConnectionError:
            return None
        return orjson.loads(line) if line.endswith(b"\n") else None


class SharedSlots:
    """The slots that the parent grants to all workers."""

    def __init__(self, channel: Channel) -> None:
        self._send = channel.send
        self._numbers = itertools.count()
        self._asked: dict[int, asyncio.Future[None]] = {}

    async def acquire(self, priority: int) -> Callable[[], None]:
        number = next(self._numbers)
        answer = self._asked[number] = asyncio.get_running_loop().create_future()
        leave = partial(self._send, "leave", number)
        self._send("enter", number, priority)
        try:
            await answer
        except asyncio.CancelledError:
            leave()
            raise
        finally:
            del self._asked[number]
        return leave

    def granted(self, number: int) -> None:
        if (answer := self._asked.get(number)) and not answer.done():
            answer.set_result(None)

    def refused(self, number: int, status: int, message: str, code: str) -> None:
        if (answer := self._asked.get(number)) and not answer.done():
            answer.set_exception(ApiError(status, message, code=code, retry=True))


class Stopped(Exception):
    """The service ends before this worker serves."""


class WorkerServer(uvicorn.Server):
    """
    A uvicorn server that takes its connections from the parent, over *connections*.

    It leaves signals to the parent, even if a terminal or systemd sends them to every process.
    """

    def __init__(
        self, service: Service, settings: ServiceSettings, channel: Channel, connections: socket.socket
    ) -> None:
        super().__init__(server_config(service, settings))
        self.admission, self._channel, self._connections = service.context.admission, channel, connections
        self._taking = set[asyncio.Task[Any]]()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=[])
        self._connections.setblocking(False)
        asyncio.get_running_loop().add_reader(self._connections, self._take)
        self._channel.send("ready")

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        asyncio.get_running_loop().remove_reader(self._connections)
        await super().shutdown(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Do nothing."""

    def _take(self) -> None:
        """Take the next connection; there is none if the parent has ended."""
        _, files, _, _ = socket.recv_fds(self._connections, 1, 1)
        loop = asyncio.get_running_loop()
        if not files:
            loop.remove_reader(self._connections)
            return
        connection = socket.socket(fileno=files[0])
        connection.setblocking(False)
        taking = loop.create_task(loop.connect_accepted_socket(self._protocol, connection))
        self._taking.add(taking)
        taking.add_done_callback(self._taking.discard)

    def _protocol(self) -> asyncio.Protocol:
        """Make what speaks HTTP over a connection, as uvicorn does for a port of its own."""
        kind: Any = self.config.http_protocol_class
        protocol: asyncio.Protocol = kind(
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )
        return protocol


class Orders:
    """
    What the parent decides, for the *server*, once there is one; before that, every end of the service is the worker's.

    *orphaned* says that the parent has ended first. Then nobody is left to kill a worker that does not end by itself.
    """

    def __init__(self, channel: Channel, slots: SharedSlots) -> None:
        self._channel, self._slots = channel, slots
        self.server: WorkerServer | None = None
        self.orphaned = False

    async def obey(self) -> None:
        """Obey until the parent has ended. Raise `Stopped` if that, or an order to end, comes before the server."""
        while message := await self._channel.receive():
            match message:
                case ["granted", int(number)]:
                    self._slots.granted(number)
                case ["refused", int(number), int(status), str(text), str(code)]:
                    self._slots.refused(number, status, text, code)
                case ["close"]:
                    self._running.admission.close()
                case ["abort"]:
                    self._running.admission.abort()
                case ["exit"]:
                    self._running.should_exit = True
                case _:
                    raise ValueError(f"a message that a worker does not know: {message}")
        self.orphaned = True
        asyncio.get_running_loop().call_later(END_SECONDS, os._exit, 1)
        self._running.admission.close()
        self._running.admission.abort()
        self._running.should_exit = True

    @property
    def _running(self) -> WorkerServer:
        if self.server is None:
            raise Stopped
        return self.server


def receive_start(end: socket.socket) -> Start:
    """Wait for the first message of the parent."""
    size = int.from_bytes(_exactly(end, SIZE_BYTES))
    start = pickle.loads(_exactly(end, size))
    assert isinstance(start, Start)
    return start


def first_message(start: Start) -> bytes:
    """Write *start* as `receive_start` reads it."""
    data = pickle.dumps(start)
    return len(data).to_bytes(SIZE_BYTES) + data


def _exactly(end: socket.socket, size: int) -> bytes:
    """Read *size* bytes and no more: what follows is for the channel."""
    data = b""
    while len(data) < size:
        if not (part := end.recv(size - len(data))):
            raise EOFError("the parent has ended")
        data += part
    return data
