"""
``stepspec up``: check a pair's file, start its servers, print where they are, and keep them until a
signal.
"""

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

from stepspec.orchestrator.backends.vllm.client import Connection
from stepspec.orchestrator.backends.vllm.endpoint import warm_up
from stepspec.orchestrator.chain import Role
from stepspec.orchestrator.concurrency import background
from stepspec.orchestrator.endpoints.settings import Endpoint
from stepspec.orchestrator.errors import EndpointError

from .check import check_pair, inspect_machine, why_taken
from .commands import as_toml, outline, shell_line, solver_settings, visible_cards, waves
from .launch import Progress, RunningServer, Served, Server, launch
from .pair import Pair, load

FIRST_PORT = 8001  # of the ports in printed commands
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def load_checked(path: Path) -> Pair:
    """Load the pair at *path*. Raise `ConfigurationError` if it cannot run."""
    pair = load(path)
    check_pair(pair, inspect_machine(pair))
    return pair


def command_lines(pair: Pair) -> str:
    """
    Return the shell command of every server to start, one a line; the rest of *pair* is in
    comments.
    """
    urls = {path: ",".join(endpoint.urls) for path, endpoint in pair.connected.items()}
    lines = [
        f"# {path} is a pair: {nested.policy} over {path}.small and {path}.large"
        for path, nested in pair.nested.items()
    ]
    lines += [
        f"# {path} runs at {', '.join(endpoint.urls)}" for path, endpoint in pair.connected.items()
    ]
    return "\n".join([*lines, *shell_lines(waves(pair, visible_cards(os.environ)), urls)])


def shell_lines(
    waves: Sequence[Sequence[Server]], running: Mapping[str, str] | None = None
) -> Iterator[str]:
    """
    Yield the shell command of every server, with a comment before each of the *waves* but the
    first.

    A server whose port is 0 gets the next free one from `FIRST_PORT` on, as two commands cannot
    choose the same; the small model's comes first, as in the documents. The last line, a comment,
    names both models for the other commands; those that are *running* have the URLs given there.
    """
    servers = with_ports([server for wave in waves for server in wave])
    for place, wave in enumerate(waves):
        if place:
            yield (
                f"# when {' and '.join(server.name for server in waves[place - 1])} can be used, on"
                " the same cards:"
            )
        yield from (shell_line(servers[server.name]) for server in wave)
    urls = {
        **(running or {}),
        **{name: f"http://{each.host}:{each.port}/v1" for name, each in servers.items()},
    }
    if {"small", "large"} <= urls.keys():
        yield f'# then: stepspec solve "..." --small {urls["small"]} --large {urls["large"]}'


def with_ports(servers: Iterable[Server]) -> Mapping[str, Server]:
    """
    Return *servers* by name, each with a port that is free now; small models have the lower ones.
    """
    chosen = {server.name: server for server in servers}
    taken = {server.port for server in chosen.values()}
    ports = count(FIRST_PORT)
    for name in sorted(chosen, key=lambda name: [part != "small" for part in name.split(".")]):
        server = chosen[name]
        free = (port for port in ports if port not in taken and not why_taken(server.host, port))
        chosen[name] = replace(server, port=server.port or next(free))
    return chosen


async def up(
    pair: Pair, console: Console, *, json_output: bool = False, log_dir: Path | None = None
) -> None:
    """
    Start *pair*, print where its models are, and return when a signal has stopped the servers.

    Print the settings of a solver that uses them; with *json_output* one line: an object with the
    servers by role. Progress goes to *console*. A server that dies raises ServerDied, which stops
    the others.
    """

    async def serve() -> None:
        async with AsyncExitStack() as stack:
            with show_progress(console) as on_progress:
                starting = running(pair, log_dir=log_dir, on_progress=on_progress)
                models = await stack.enter_async_context(starting)
            by_role = outline(pair, lambda path: asdict(models[path]))
            print(
                json.dumps(by_role) if json_output else as_toml(solver_settings(pair, models)),
                flush=True,
            )
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
                variable = f"STEPSPEC_{path.upper().replace('.', '__')}__API_KEY"
                yield f"The key of {path} is not among them: set {variable}."
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
    Yield every model by its path once all answer. Servers that share a card are started one after
    the other.

    Raise an `EndpointError`, before anything is started, if a server does not answer that the
    pair's file describes as running, and `ServerError` as `launch` does.
    """
    endpoints = await asyncio.gather(
        *(_connect(path, endpoint) for path, endpoint in pair.connected.items())
    )
    connected = dict(zip(pair.connected, endpoints, strict=True))
    async with AsyncExitStack() as stack:
        served: dict[str, Served] = {}
        for wave in waves(pair, visible_cards(os.environ)):
            launching = launch(
                wave,
                log_dir=log_dir,
                ready_timeout=pair.ready_seconds,
                on_progress=on_progress,
                prepare=partial(_warm_up, pair),
            )
            served |= await stack.enter_async_context(launching)
        started = {
            path: served[path].running(server.suffix_scoring, server.speculation.method)
            for path, server in pair.started.items()
        }
        yield {
            path: connected[path] if path in connected else started[path] for path in pair.models
        }


async def _warm_up(pair: Pair, served: Served) -> None:
    role: Role = "large" if served.name.endswith("large") else "small"
    scoring = pair.started[served.name].suffix_scoring
    named = Endpoint(
        role=role, url=served.base_url, model=served.served_name, suffix_scoring=scoring
    )
    await warm_up(named.model_copy(update={"retries": 0, "priorities": False}))


async def _connect(path: str, endpoint: Endpoint) -> RunningServer:
    """Ask every replica of *endpoint* which model it serves."""
    try:
        models = [await _served_model(replica) for replica in endpoint.each]
    except EndpointError as exc:
        raise type(exc)(exc.cause, role=path, url=exc.url, verb=exc.verb) from exc
    return RunningServer(
        ",".join(replica.v1 for replica in endpoint.each), models[0], endpoint.suffix_scoring
    )


async def _served_model(endpoint: Endpoint) -> str:
    connection = Connection(endpoint)
    try:
        return await connection.model_name()
    finally:
        await connection.close()


async def until_signalled(coroutine: Coroutine[None, None, None]) -> None:
    """
    Run *coroutine*; one of the `STOP_SIGNALS` cancels it, and that is no error. Under ``nohup``,
    SIGHUP does not.
    """
    loop = asyncio.get_running_loop()
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    handled = STOP_SIGNALS[:-1] if ignored else STOP_SIGNALS
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
    """
    Show which servers are starting in a status line, updated by the yielded callback; print each
    that is ready.
    """
    latest: dict[str, Progress] = {}
    with console.status("starting vLLM") as status:

        def on_progress(progress: Progress) -> None:
            latest[progress.name] = progress
            if progress.state == "ready":
                console.print(
                    f"{progress.name} is ready after {progress.seconds:.0f} s", style="dim"
                )
            status.update(progress_line(latest.values()))

        yield on_progress


def progress_line(latest: Iterable[Progress]) -> str:
    """Name the servers that are still starting and for how long; empty if all are ready."""
    waiting = [progress for progress in latest if progress.state == "starting"]
    if not waiting:
        return ""
    names = " and ".join(progress.name for progress in waiting)
    return f"starting {names}: {max(progress.seconds for progress in waiting):.0f} s"
