"""``stepspec up``: check a pair's file, start its servers, print their URLs, stop at a signal."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import (
    AsyncGenerator,
    Callable,
    Coroutine,
    Generator,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import asdict, replace
from functools import partial
from itertools import count
from pathlib import Path

from rich.console import Console

from stepspec.orchestrator.backends.vllm.endpoint import warm_up
from stepspec.orchestrator.concurrency import background
from stepspec.orchestrator.endpoints.settings import Endpoint, key_variable
from stepspec.orchestrator.errors import EndpointError
from stepspec.orchestrator.http.client import Connection
from stepspec.orchestrator.toml import document

from .check import check_pair, inspect_machine, why_taken
from .commands import shell_line, solver_settings, visible_cards, waves
from .launch import Progress, RunningServer, Served, ServerCommand, launch
from .pair import Pair, load

FIRST_PORT = 8001  # of the ports in printed commands
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def load_checked(path: Path) -> Pair:
    """Load the pair at *path*. Raise `ConfigurationError` if it cannot run."""
    pair = load(path)
    check_pair(pair, inspect_machine(pair))
    return pair


def command_lines(pair: Pair) -> str:
    """Return the shell command of every server to start. The rest of *pair* is in comments."""
    urls = {role: ",".join(endpoint.urls) for role, endpoint in pair.connected.items()}
    lines = [f"# {role} runs at {url.replace(',', ', ')}" for role, url in urls.items()]
    commands = shell_lines(waves(pair, visible_cards(os.environ)), urls)
    return "\n".join([*lines, *commands])


def shell_lines(
    waves: Sequence[Sequence[ServerCommand]],
    running: Mapping[str, str] | None = None,
) -> Iterator[str]:
    """
    Yield the shell command of every server, with a comment between two *waves*.

    The last line is a comment with the URLs of both models. *running* has the URLs of servers that
    run already, by path. A port of 0 becomes a free one (see `with_ports`), because two commands
    cannot choose the same.
    """
    servers = with_ports([server for wave in waves for server in wave])
    before = ""
    for wave in waves:
        if before:
            yield f"# when {before} can be used, on the same cards:"
        for server in wave:
            yield shell_line(servers[server.name])
        before = " and ".join(server.name for server in wave)
    urls = dict(running or {})
    for name, server in servers.items():
        urls[name] = f"http://{server.host}:{server.port}/v1"
    if "small" in urls and "large" in urls:
        yield f'# then: stepspec solve "..." --small {urls["small"]} --large {urls["large"]}'


def with_ports(servers: Iterable[ServerCommand]) -> Mapping[str, ServerCommand]:
    """
    Return *servers* by name, each with a port that is free now.

    Ports of 0 become ports from `FIRST_PORT` on. Small models get the lower ones, as in the
    documents.
    """
    chosen = {server.name: server for server in servers}
    taken = {server.port for server in chosen.values()}
    ports = (port for port in count(FIRST_PORT) if port not in taken)
    for name in sorted(chosen, key=lambda name: [part != "small" for part in name.split(".")]):
        server = chosen[name]
        if server.port == 0:
            port = next(port for port in ports if not why_taken(server.host, port))
            chosen[name] = replace(server, port=port)
    return chosen


async def up(
    pair: Pair,
    console: Console,
    *,
    json_output: bool = False,
    log_dir: Path | None = None,
) -> None:
    """
    Start *pair*, print where its models are, and return when a signal has stopped the servers.

    The settings of a solver are printed, with *json_output* a JSON object of the servers. Progress
    goes to *console*. Raise `ServerDied` if a server dies. The others are then stopped.
    """

    async def serve() -> None:
        async with AsyncExitStack() as stack:
            with show_progress(console) as on_progress:
                starting = running(pair, log_dir=log_dir, on_progress=on_progress)
                models = await stack.enter_async_context(starting)
            if json_output:
                shown = {path: asdict(model) for path, model in models.items()}
                text = json.dumps(shown)
            else:
                text = document(solver_settings(pair, models)).rstrip()
            print(text, flush=True)
            for note in _notes(pair, settings_printed=not json_output):
                console.print(note, style="dim", highlight=False, soft_wrap=True)
            await asyncio.Event().wait()

    await until_signalled(serve())


def _notes(pair: Pair, *, settings_printed: bool) -> Iterator[str]:
    """Yield how to use the printed settings, and how to stop the servers."""
    if settings_printed:
        yield "These are settings of a solver: write them to a file, and name it with --config."
        for path, endpoint in pair.connected.items():
            if endpoint.api_key:
                yield f"The key of {path} is not among them: set {key_variable(path)}."
    if pair.started:
        yield "Ctrl-C stops them."


@asynccontextmanager
async def running(
    pair: Pair,
    *,
    log_dir: Path | None = None,
    on_progress: Callable[[Progress], object] = lambda progress: None,
) -> AsyncGenerator[Mapping[str, RunningServer]]:
    """
    Yield every model by its path once all answer. Servers that share a card start one by one.

    Raise an `EndpointError` before anything is started if a server does not answer that the file
    describes as running. Raise `ServerError` as `launch` does.
    """
    endpoints = await asyncio.gather(
        *(_connect(path, endpoint) for path, endpoint in pair.connected.items()),
    )
    found = dict(zip(pair.connected, endpoints, strict=True))
    async with AsyncExitStack() as stack:
        for wave in waves(pair, visible_cards(os.environ)):
            launching = launch(
                wave,
                log_dir=log_dir,
                ready_timeout=pair.ready_seconds,
                on_progress=on_progress,
                prepare=partial(_warm_up, pair),
            )
            for path, served in (await stack.enter_async_context(launching)).items():
                found[path] = served.running
        yield {path: found[path] for path in pair.models}


async def _warm_up(pair: Pair, served: Served) -> None:
    await warm_up(
        Endpoint(
            role="large" if served.name.endswith("large") else "small",
            url=served.base_url,
            model=served.served_name,
            suffix_scoring=pair.started[served.name].suffix_scoring,
            retries=0,
            priorities=False,
        ),
    )


async def _connect(path: str, endpoint: Endpoint) -> RunningServer:
    """Ask every replica of *endpoint* which model it serves."""
    try:
        models = [await _served_model(replica) for replica in endpoint.each]
    except EndpointError as exc:
        raise type(exc)(exc.cause, role=path, url=exc.url, verb=exc.verb) from exc
    return RunningServer(",".join(replica.v1 for replica in endpoint.each), models[0])


async def _served_model(endpoint: Endpoint) -> str:
    connection = Connection(endpoint)
    try:
        return await connection.model_name()
    finally:
        await connection.close()


async def until_signalled(coroutine: Coroutine[None, None, None]) -> None:
    """
    Run *coroutine* until it ends, or one of the `STOP_SIGNALS` cancels it, which is no error.

    Under ``nohup``, SIGHUP does not cancel it.
    """
    loop = asyncio.get_running_loop()
    handled = set(STOP_SIGNALS)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        handled.remove(signal.SIGHUP)
    async with background(coroutine) as (task,):
        for number in handled:
            loop.add_signal_handler(number, task.cancel)
        try:
            await asyncio.wait({task})
        finally:
            for number in handled:
                loop.remove_signal_handler(number)
    if not task.cancelled():
        task.result()


@contextmanager
def show_progress(console: Console) -> Generator[Callable[[Progress], None]]:
    """Show in a status line which servers are starting. Yield the callback that updates it."""
    latest: dict[str, Progress] = {}
    with console.status("starting vLLM") as status:

        def on_progress(progress: Progress) -> None:
            latest[progress.name] = progress
            if progress.state == "ready":
                console.print(
                    f"{progress.name} is ready after {progress.seconds:.0f} s",
                    style="dim",
                )
            status.update(progress_line(latest.values()))

        yield on_progress


def progress_line(latest: Iterable[Progress]) -> str:
    """Name the servers that are still starting, and for how long; "" if all are ready."""
    waiting = [progress for progress in latest if progress.state == "starting"]
    if not waiting:
        return ""
    names = " and ".join(progress.name for progress in waiting)
    seconds = max(progress.seconds for progress in waiting)
    return f"starting {names}: {seconds:.0f} s"
