"""What to serve, and what is then served. Values only: nothing here starts anything."""

from __future__ import annotations

import asyncio
import importlib.metadata
import importlib.util
import os
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Literal, TypeAlias

import aiohttp

from ..concurrency import supervised
from ..errors import ConfigurationError, ServerDied, ServerError, ServerNotReady
from .process import Child, child, port_taken, reasons, reserve

State: TypeAlias = Literal["starting", "ready"]

ENTRY, DEPRECATED = "vllm.entrypoints.launchers.api_server.entry", "vllm.entrypoints.openai.api_server"


def program(executable: str = sys.executable) -> tuple[str, ...]:
    """
    Return what serves a model with the vLLM of this environment: ``vllm serve``, or else a module.

    The command fails on vLLM's CPU build, which is installed under another distribution's name than the one whose
    version it looks up. The older one of the modules is deprecated, and the only one that an older vLLM has.
    """
    command = Path(executable).with_name("vllm")
    if command.is_file() and _installed_as("vllm"):
        return str(command), "serve"
    found = importlib.util.find_spec("vllm")
    places = (Path(place).parent for place in (found and found.submodule_search_locations) or ())
    entry = Path(*ENTRY.split(".")).with_suffix(".py")
    return executable, "-m", ENTRY if any((place / entry).is_file() for place in places) else DEPRECATED


def _installed_as(distribution: str) -> bool:
    try:
        return bool(importlib.metadata.version(distribution))
    except importlib.metadata.PackageNotFoundError:
        return False


@cache
def vllm() -> tuple[str, ...]:
    """Return `program` for this interpreter, looked up once."""
    return program()


@dataclass(frozen=True, slots=True)
class Server:
    """
    One vLLM server to start.

    *name* is what progress and errors call it. *args* go to vLLM as they are, *env* is added to our own environment.
    *port* 0 takes a free one. *program* may be another interpreter's vLLM.
    """

    name: str
    model: Path | str
    served_name: str
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    host: str = "127.0.0.1"
    port: int = 0
    program: tuple[str, ...] = field(default_factory=vllm)

    def command(self, port: int) -> tuple[str, ...]:
        """Return the command line that serves it at *port*."""
        where = ("--host", self.host, "--port", str(port))
        model = (str(self.model),) if self.program[-1] == "serve" else ("--model", str(self.model))
        return (*self.program, *model, "--served-model-name", self.served_name, *where, *self.args)


@dataclass(frozen=True, slots=True)
class Served:
    """A server that answers. *pid* is the leader of its process group, *log* what the group has printed."""

    name: str
    base_url: str
    served_name: str
    pid: int
    log: Path


@dataclass(frozen=True, slots=True)
class RunningPair:
    """
    One server that answers: its base URL, the *model*'s served name, what is set for its endpoint.

    *speculation* is the method that drafts tokens for it; of a server that we did not start we do not know it, and
    there is neither *pid* nor *log*.
    """

    base_url: str
    model: str
    suffix_scoring: bool = False
    speculation: str | None = None
    pid: int | None = None
    log: str | None = None


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the server called *name* is, *seconds* after it was launched."""

    name: str
    seconds: float
    state: State


ATTEMPTS = 3  # a port that somebody else took in the meantime is worth another try
POLL = 0.2  # seconds between two looks at a server that is starting
LOG_END = 65536  # characters: where a failed server's reasons are looked for


@dataclass(frozen=True, slots=True)
class StartTerms:
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


class ServerProcess:
    """Keeps one server; *served* is set once it answers."""

    def __init__(self, server: Server, terms: StartTerms) -> None:
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


LOOK = aiohttp.ClientTimeout(total=5.0)


@asynccontextmanager
async def launch(
    servers: Sequence[Server],
    *,
    log_dir: Path | None = None,
    ready_timeout: float = 300.0,
    grace: float = 5.0,
    on_progress: Callable[[Progress], object] = lambda progress: None,
) -> AsyncGenerator[Mapping[str, Served]]:
    """
    Start *servers* together and yield them by name once all of them answer; stop them on the way out.

    Raise ServerNotReady after *ready_timeout* seconds, and ServerDied as soon as one ends by itself, cancelling the
    block as asyncio.timeout() does. Logs go to *log_dir*; without one, to a new folder that is kept only after such an
    error. On the way out a server has *grace* seconds to end before it is killed.
    """
    _check(servers)
    with _log_folder(log_dir) as folder:
        async with aiohttp.ClientSession(timeout=LOOK) as http:
            terms = StartTerms(folder, time.monotonic(), ready_timeout, grace, on_progress, http)
            keepers = [ServerProcess(server, terms) for server in servers]
            async with supervised(*(keeper.keep() for keeper in keepers)):
                yield {keeper.server.name: await keeper.served for keeper in keepers}


def _check(servers: Sequence[Server]) -> None:
    names = [server.name for server in servers]
    if len(set(names)) < len(names):
        raise ConfigurationError(f"two servers share a name: {', '.join(names)}")
    if any(server.program == vllm() for server in servers) and importlib.util.find_spec("vllm") is None:
        raise ConfigurationError("vLLM is not installed: pip install 'stepspec[testbed]', with a GPU 'stepspec[vllm]'")


@contextmanager
def _log_folder(wanted: Path | None) -> Generator[Path]:
    if wanted is not None:
        wanted.mkdir(parents=True, exist_ok=True)
        yield wanted
        return
    made, keep = Path(tempfile.mkdtemp(prefix="stepspec-")), False
    try:
        yield made
    except ServerError:
        keep = True
        raise
    finally:
        if not keep:
            shutil.rmtree(made, ignore_errors=True)
