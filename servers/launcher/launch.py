"""
Start vLLM servers as children of this program, wait until they answer, supervise them, and stop
them at the end.
"""

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
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

import aiohttp

from stepspec.orchestrator.concurrency import background, supervised
from stepspec.orchestrator.errors import (
    VLLM_FOR_CPUS,
    ConfigurationError,
    ServerDied,
    ServerError,
    ServerNotReady,
    install_command,
)

from .process import Child, child, failure_lines, reserve_port

State: TypeAlias = Literal["starting", "ready"]

ENTRY = "vllm.entrypoints.launchers.api_server.entry"


def vllm_program(executable: str = sys.executable) -> tuple[str, ...]:
    """
    Return the program that serves a model with the vLLM of this environment: ``vllm serve`` or
    ``python -m``.

    The command fails on vLLM's CPU build, because it looks up its version under another
    distribution's name.
    """
    command = Path(executable).with_name("vllm")
    if command.is_file() and any(importlib.metadata.distributions(name="vllm")):
        return str(command), "serve"
    return executable, "-m", ENTRY


@dataclass(frozen=True, slots=True)
class Server:
    """
    One vLLM server to start.

    *name* identifies it in progress and errors. *args* go to vLLM as they are, *env* is added to
    this program's environment. *port* 0 takes a free one. *program* may be another interpreter's
    vLLM.
    """

    name: str
    model: Path | str
    served_name: str
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    host: str = "127.0.0.1"
    port: int = 0
    program: tuple[str, ...] = field(default_factory=vllm_program)

    def command(self, port: int) -> tuple[str, ...]:
        """Return the command line that serves the model at *port*."""
        address = ("--host", self.host, "--port", str(port))
        model = (str(self.model),) if self.program[-1] == "serve" else ("--model", str(self.model))
        return (
            *self.program,
            *model,
            "--served-model-name",
            self.served_name,
            *address,
            *self.args,
        )


@dataclass(frozen=True, slots=True)
class Served:
    """
    A server that answers. *pid* is the leader of its process group, *log* the file with the group's
    output.
    """

    name: str
    base_url: str
    served_name: str
    pid: int
    log: Path

    def running(self, suffix_scoring: bool, speculation: str) -> RunningServer:
        """Describe the server for other programs."""
        return RunningServer(
            self.base_url, self.served_name, suffix_scoring, speculation, self.pid, str(self.log)
        )


@dataclass(frozen=True, slots=True)
class RunningServer:
    """
    A server that answers, as it is printed for other programs: its base URL and the served name of
    its *model*.

    *speculation* is the method that drafts tokens under the model. It is None, as *pid* and *log*
    are, for a server that this program has not started.
    """

    base_url: str
    model: str
    suffix_scoring: bool = False
    speculation: str | None = None
    pid: int | None = None
    log: str | None = None


@dataclass(frozen=True, slots=True)
class Progress:
    """The state of the server called *name*, *seconds* after it was launched."""

    name: str
    seconds: float
    state: State


POLL_SECONDS = 0.2  # between two requests to a server that is starting
LOG_CHARACTERS = 65536  # of the end of a failed server's log, searched for the reason
REQUEST_TIMEOUT = aiohttp.ClientTimeout(total=5.0)
Prepare: TypeAlias = Callable[[Served], Coroutine[Any, Any, None]]


@asynccontextmanager
async def launch(
    servers: Sequence[Server],
    *,
    log_dir: Path | None = None,
    ready_timeout: float = 300.0,
    grace: float = 5.0,
    on_progress: Callable[[Progress], object] = lambda progress: None,
    prepare: Prepare | None = None,
) -> AsyncGenerator[Mapping[str, Served]]:
    """
    Start *servers* together and yield them by name once all of them answer; stop them on the way
    out.

    A server that answers is ready once *prepare*, if there is one, has returned for it.

    Raise ServerNotReady after *ready_timeout* seconds, and ServerDied as soon as one ends by
    itself, cancelling the block as asyncio.timeout() does. Logs go to *log_dir*; without one, to a
    new folder that is kept only after such an error. On the way out a server has *grace* seconds to
    end before it is killed.
    """
    _check(servers)
    with _log_folder(log_dir) as folder:
        async with aiohttp.ClientSession(timeout=REQUEST_TIMEOUT) as http:
            launched = time.monotonic()
            processes = [
                _ServerProcess(
                    server, folder, http, launched, ready_timeout, grace, on_progress, prepare
                )
                for server in servers
            ]
            async with supervised(*(process.run() for process in processes)):
                yield {process.server.name: await process.served for process in processes}


def _check(servers: Sequence[Server]) -> None:
    names = [server.name for server in servers]
    if len(set(names)) < len(names):
        raise ConfigurationError(f"two servers share a name: {', '.join(names)}")
    if any({**os.environ, **server.env}.get("VLLM_API_KEY") for server in servers):
        raise ConfigurationError(
            "VLLM_API_KEY is set: unset it, or start a server with a key yourself, and name its url"
            " and api_key"
        )
    if (
        any(server.program == vllm_program() for server in servers)
        and importlib.util.find_spec("vllm") is None
    ):
        raise ConfigurationError(
            f"vLLM is not installed: {install_command('vllm')}; {VLLM_FOR_CPUS}"
        )


@contextmanager
def _log_folder(log_dir: Path | None) -> Generator[Path]:
    """Yield *log_dir*; if None, a temporary folder that is kept only if a server fails."""
    folder = log_dir or Path(tempfile.mkdtemp(prefix="stepspec-"))
    keep = log_dir is not None
    folder.mkdir(parents=True, exist_ok=True)
    try:
        yield folder
    except ServerError:
        keep = True
        raise
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)


@dataclass(eq=False)
class _ServerProcess:
    """Runs one *server* of those that were *launched* together; `served` is set once it answers."""

    server: Server
    log_folder: Path
    http: aiohttp.ClientSession
    launched: float
    ready_timeout: float
    grace: float
    on_progress: Callable[[Progress], object]
    prepare: Prepare | None

    def __post_init__(self) -> None:
        self.served: asyncio.Future[Served] = asyncio.get_running_loop().create_future()
        self._log = self.log_folder / f"{self.server.name}.log"

    async def run(self) -> None:
        """
        Run the server until cancelled; raise `ServerError` if it does not start, or ends by itself.
        """
        server = self.server
        env = {**os.environ, **self.server.env}
        with self._reserve_port() as reserved:
            port = int(reserved.getsockname()[1])
            root = f"http://{server.host}:{port}"
            async with child(
                server.command(port), env=env, log=self._log, grace=self.grace
            ) as process:
                served = Served(
                    server.name, f"{root}/v1", server.served_name, process.pid, self._log
                )
                if await self._wait_until_ready(root, served, process):
                    self._announce(served)
                await asyncio.wait({process.ended})
        raise self._died(process.ended.result())

    def _reserve_port(self) -> socket.socket:
        host = self.server.host
        port = self.server.port
        try:
            return reserve_port(host, port)
        except OSError as error:
            raise ConfigurationError(
                f"the {self.server.name} server cannot listen at {host}:{port}: {error.strerror}"
            ) from error

    async def _wait_until_ready(self, root: str, served: Served, process: Child) -> bool:
        """Wait until the server answers and is prepared; return False if it ends instead."""
        async with background(self._become_ready(root, served)) as (ready,):
            tasks: set[asyncio.Task[Any]] = {ready, process.ended}
            while not (ready.done() or process.ended.done()):
                if self._elapsed > self.ready_timeout:
                    raise ServerNotReady(
                        self._report(f"did not answer within {self.ready_timeout:g} s")
                    )
                self._report_progress("starting")
                await asyncio.wait(tasks, timeout=POLL_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        if process.ended.done():
            return False
        ready.result()
        return True

    @property
    def _elapsed(self) -> float:
        return time.monotonic() - self.launched

    async def _become_ready(self, root: str, served: Served) -> None:
        while not await _answers(self.http, root, served.served_name):  # noqa: ASYNC110  # no event tells it
            await asyncio.sleep(POLL_SECONDS)
        if self.prepare:
            await self.prepare(served)

    def _announce(self, served: Served) -> None:
        # The future is cancelled if the block is cancelled just when the server is ready.
        if not self.served.done():
            self.served.set_result(served)
            self._report_progress("ready")

    def _report_progress(self, state: State) -> None:
        self.on_progress(Progress(self.server.name, self._elapsed, state))

    def _died(self, code: int) -> ServerDied:
        when = "while it was in use" if self.served.done() else "before it answered"
        return ServerDied(self._report(f"ended {when}, with {_exit_text(code)}"))

    def _report(self, failure: str) -> str:
        lines = "".join(f"\n    {line}" for line in failure_lines(self._log_end()))
        return (
            f"the {self.server.name} server {failure}{':' if lines else ', silently'}{lines}\n  its"
            f" log: {self._log}"
        )

    def _log_end(self) -> str:
        try:
            return self._log.read_text(encoding="utf-8", errors="replace")[-LOG_CHARACTERS:]
        except OSError:  # The log may have been deleted; the report of the failure matters more.
            return ""


async def _answers(http: aiohttp.ClientSession, root: str, served_name: str) -> bool:
    """
    Return whether a healthy server at *root* serves *served_name*: another program may have taken
    the port.
    """
    try:
        async with (
            http.get(f"{root}/health", raise_for_status=True),
            http.get(f"{root}/v1/models") as models,
        ):
            return any(model["id"] == served_name for model in (await models.json())["data"])
    except (aiohttp.ClientError, TimeoutError, ValueError, LookupError):
        return False


def _exit_text(code: int) -> str:
    return f"exit code {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"
