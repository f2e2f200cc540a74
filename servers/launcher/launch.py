"""Start vLLM servers as children of this program, wait until they answer, and stop them."""

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
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

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

ENTRY = "vllm.entrypoints.launchers.api_server.entry"


def vllm_program(executable: str = sys.executable) -> tuple[str, ...]:
    """
    Return the start of the command that serves a model with the vLLM of this environment.

    It is ``vllm serve``, or ``python -m`` for vLLM's CPU build. There ``vllm`` fails, because it
    looks up its version under another distribution's name.
    """
    command = Path(executable).with_name("vllm")
    if command.is_file() and any(importlib.metadata.distributions(name="vllm")):
        return str(command), "serve"
    return executable, "-m", ENTRY


@dataclass(frozen=True, slots=True)
class ServerCommand:
    """One vLLM server to start."""

    name: str
    """Its name in progress and errors."""
    model: Path | str
    """The model's name on the hub, or its folder."""
    served_name: str
    """The name by which requests ask for the model."""
    args: tuple[str, ...] = ()
    """Further arguments of vLLM."""
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    """Variables that are added to those of this program."""
    host: str = "127.0.0.1"
    """The address to listen at."""
    port: int = 0
    """The port; 0: a free one."""
    program: tuple[str, ...] = field(default_factory=vllm_program)
    """The start of the command line, which may name another interpreter's vLLM."""

    def command(self, port: int) -> tuple[str, ...]:
        """Return the command line that serves the model at *port*."""
        program = self.program
        if program[-1] != "serve":
            program += ("--model",)
        return (
            *program,
            str(self.model),
            "--served-model-name",
            self.served_name,
            "--host",
            self.host,
            "--port",
            str(port),
            *self.args,
        )


@dataclass(frozen=True, slots=True)
class Served:
    """A server that answers."""

    name: str
    """Its name in progress and errors."""
    base_url: str
    """Its base URL, with ``/v1``."""
    served_name: str
    """The name by which requests ask for the model."""
    pid: int
    """The leader of its process group."""
    log: Path
    """The file with the output of the group."""

    @property
    def record(self) -> dict[str, object]:
        """The server as it is printed for other programs."""
        return {
            "base_url": self.base_url,
            "model": self.served_name,
            "pid": self.pid,
            "log": str(self.log),
        }


POLL_SECONDS = 0.2
"""Between two requests to a server that is starting."""
LOG_CHARACTERS = 65536
"""At the end of a failed server's log. The reason is looked for there."""
REQUEST_TIMEOUT = aiohttp.ClientTimeout(total=5.0)
Prepare: TypeAlias = Callable[[Served], Coroutine[Any, Any, None]]


@asynccontextmanager
async def launch(
    servers: Sequence[ServerCommand],
    *,
    log_dir: Path | None = None,
    ready_timeout: float = 300.0,
    grace: float = 5.0,
    on_ready: Callable[[str], object] = lambda name: None,
    prepare: Prepare | None = None,
) -> AsyncGenerator[Mapping[str, Served]]:
    """
    Start *servers* together, yield them by name once all are ready, and stop them on exit.

    A server is ready once it answers and *prepare*, if given, has returned for it. Raise
    `ServerNotReady` after *ready_timeout* seconds. Raise `ServerDied` as soon as a server ends by
    itself, and cancel the block as ``asyncio.timeout()`` does. Logs go to *log_dir*. Without it
    they go to a new folder, which is kept only after such an error. On exit a server is killed
    after *grace* seconds.
    """
    _check(servers)
    loop = asyncio.get_running_loop()
    ready: dict[str, asyncio.Future[Served]] = {
        server.name: loop.create_future() for server in servers
    }

    async def run(server: ServerCommand, log: Path) -> None:
        """Run *server* until cancelled. Raise `ServerError` if it fails, or ends by itself."""
        future = ready[server.name]
        env = {**os.environ, **server.env}
        with _reserve_port(server) as reserved:
            port = int(reserved.getsockname()[1])
            async with child(server.command(port), env=env, log=log, grace=grace) as process:
                url = f"http://{server.host}:{port}/v1"
                served = Served(server.name, url, server.served_name, process.pid, log)
                await _wait_until_ready(served, process, prepare, ready_timeout)
                # The future is cancelled if the block is cancelled just when the server is ready.
                if not process.ended.done() and not future.done():
                    on_ready(server.name)
                    future.set_result(served)
                await asyncio.wait({process.ended})
        when = "while it was in use" if future.done() else "before it answered"
        code = process.ended.result()
        cause = f"exit code {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"
        raise ServerDied(_failure(served, f"ended {when}, with {cause}"))

    with _log_folder(log_dir) as folder:
        runs = [run(server, folder / f"{server.name}.log") for server in servers]
        async with supervised(*runs):
            yield {name: await future for name, future in ready.items()}


def _check(servers: Sequence[ServerCommand]) -> None:
    if any({**os.environ, **server.env}.get("VLLM_API_KEY") for server in servers):
        raise ConfigurationError(
            "VLLM_API_KEY is set: unset it, or start the servers yourself",
        )
    uses_own_vllm = any(server.program == vllm_program() for server in servers)
    if uses_own_vllm and importlib.util.find_spec("vllm") is None:
        raise ConfigurationError(
            f"vLLM is not installed: {install_command('vllm')}; {VLLM_FOR_CPUS}",
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


def _reserve_port(server: ServerCommand) -> socket.socket:
    try:
        return reserve_port(server.host, server.port)
    except OSError as error:
        raise ConfigurationError(
            f"the {server.name} server cannot listen at {server.host}:{server.port}:"
            f" {error.strerror}",
        ) from error


async def _wait_until_ready(
    served: Served,
    process: Child,
    prepare: Prepare | None,
    ready_timeout: float,
) -> None:
    """Wait until the server answers and is prepared, or ends."""
    async with background(_become_ready(served, prepare)) as (ready,):
        tasks: set[asyncio.Task[Any]] = {ready, process.ended}
        done, _ = await asyncio.wait(
            tasks,
            timeout=ready_timeout,
            return_when=asyncio.FIRST_COMPLETED,
        )
        if not done:
            raise ServerNotReady(_failure(served, f"did not answer within {ready_timeout:g} s"))
    if not process.ended.done():
        ready.result()


async def _become_ready(served: Served, prepare: Prepare | None) -> None:
    async with aiohttp.ClientSession(timeout=REQUEST_TIMEOUT) as http:
        # No event tells that the server answers.
        while not await _answers(http, served):  # noqa: ASYNC110
            await asyncio.sleep(POLL_SECONDS)
    if prepare:
        await prepare(served)


def _failure(served: Served, failure: str) -> str:
    """Describe the *failure* of a server, with the lines of its log that state why."""
    log = ""
    with suppress(OSError):  # The log may have been deleted.
        log = served.log.read_text(encoding="utf-8", errors="replace")
    lines = failure_lines(log[-LOG_CHARACTERS:])
    first = f"the {served.name} server {failure}{':' if lines else ', silently'}"
    return "\n    ".join([first, *lines]) + f"\n  its log: {served.log}"


async def _answers(http: aiohttp.ClientSession, served: Served) -> bool:
    """
    Whether a healthy server answers there and serves the model.

    It may not: another program may have taken the port.
    """
    url = served.base_url
    try:
        async with (
            http.get(url.removesuffix("v1") + "health", raise_for_status=True),
            http.get(f"{url}/models") as reply,
        ):
            models = (await reply.json())["data"]
            return any(model["id"] == served.served_name for model in models)
    except (aiohttp.ClientError, TimeoutError, ValueError, LookupError):
        return False
