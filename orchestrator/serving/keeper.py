"""One server from its start to its end: the port, the wait until it answers, and what is said when it fails."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from ..errors import ConfigurationError, ServerDied, ServerNotReady
from .child import Child, child, reserve
from .logs import port_taken, reasons
from .server import Progress, Served, Server, State

ATTEMPTS = 3  # a port that somebody else took in the meantime is worth another try
POLL = 0.2  # seconds between two looks at a server that is starting
LOG_END = 65536  # characters: where a failed server's reasons are looked for


@dataclass(frozen=True, slots=True)
class Terms:
    """What all servers of one launch share."""

    folder: Path
    launched: float
    ready_timeout: float
    grace: float
    on_progress: Callable[[Progress], object]
    http: aiohttp.ClientSession

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self.launched


class Keeper:
    """Keeps one server; *served* is set once it answers."""

    def __init__(self, server: Server, terms: Terms) -> None:
        self.server, self.terms = server, terms
        self.served: asyncio.Future[Served] = asyncio.get_running_loop().create_future()
        self.log = terms.folder / f"{server.name}.log"

    async def keep(self) -> None:
        """Start the server and keep it until cancelled; raise ServerError if it does not start, or ends by itself."""
        for attempt in range(1, ATTEMPTS + 1):
            code = await self._run()
            stolen = not self.served.done() and not self.server.port and port_taken(self._log_end())
            if not stolen or attempt == ATTEMPTS:
                raise self._died(code)

    async def _run(self) -> int:
        """Run the server once and return its exit code."""
        env = {**os.environ, **self.server.env}
        with self._reserve() as held:
            port = int(held.getsockname()[1])
            root = f"http://{self.server.host}:{port}"
            async with child(self.server.command(port), env=env, log=self.log, grace=self.terms.grace) as process:
                if await self._healthy(root, process):
                    self._announce(
                        Served(self.server.name, f"{root}/v1", self.server.served_name, process.pid, self.log)
                    )
                await asyncio.wait({process.ended})
                return process.ended.result()

    def _reserve(self) -> socket.socket:
        where = self.server.host, self.server.port
        try:
            return reserve(*where)
        except OSError as error:
            raise ConfigurationError(
                f"the {self.server.name} server cannot have {where[0]}:{where[1]}: {error.strerror}"
            ) from error

    async def _healthy(self, root: str, process: Child) -> bool:
        """Wait until the server answers; return False if it ends instead."""
        while not process.ended.done():
            if await _answers(self.terms.http, root, self.server.served_name):
                return True
            if self.terms.elapsed > self.terms.ready_timeout:
                raise ServerNotReady(self._report(f"did not answer within {self.terms.ready_timeout:g} s"))
            self._tell("starting")
            await asyncio.wait({process.ended}, timeout=POLL)
        return False

    def _announce(self, served: Served) -> None:
        if not self.served.done():  # It is cancelled if the block is, at the very moment the server is ready.
            self.served.set_result(served)
            self._tell("ready")

    def _tell(self, state: State) -> None:
        self.terms.on_progress(Progress(self.server.name, self.terms.elapsed, state))

    def _died(self, code: int) -> ServerDied:
        when = "while it was in use" if self.served.done() else "before it answered"
        return ServerDied(self._report(f"ended {when}, with {_spelled(code)}"))

    def _report(self, what: str) -> str:
        said = "".join(f"\n    {line}" for line in reasons(self._log_end()))
        return f"the {self.server.name} server {what}{':' if said else ', silently'}{said}\n  its log: {self.log}"

    def _log_end(self) -> str:
        try:
            return self.log.read_text(encoding="utf-8", errors="replace")[-LOG_END:]
        except OSError:  # Somebody tidied it away; what is reported matters more.
            return ""


async def _answers(http: aiohttp.ClientSession, root: str, served_name: str) -> bool:
    """Say whether the server at *root* is healthy and the one we mean: a stolen port may be healthy too."""
    try:
        async with http.get(f"{root}/health", raise_for_status=True), http.get(f"{root}/v1/models") as models:
            return any(model["id"] == served_name for model in (await models.json())["data"])
    except (aiohttp.ClientError, TimeoutError, ValueError, LookupError):
        return False


def _spelled(code: int) -> str:
    return f"exit code {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"
