"""``stepspec up``: check a pair's file, start its servers, print their URLs, stop at a signal."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Mapping
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    contextmanager,
)
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from stepspec.orchestrator.backends.vllm.endpoint import warm_up
from stepspec.orchestrator.concurrency import background
from stepspec.orchestrator.endpoints.settings import Endpoint
from stepspec.orchestrator.toml import document

from .check import check_pair, why_taken
from .commands import shell_line, visible_cards, waves
from .launch import Served, launch
from .pair import Pair, StartedServer, load

FIRST_PORT = 8001  # of the ports in printed commands
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
SETTINGS_NOTE = "These are settings of a solver: write them to a file, and name it with --config."
STOP_NOTE = "Ctrl-C stops the servers."


def load_checked(path: Path) -> Pair:
    """Load the pair at *path*. Raise `ConfigurationError` if it cannot run."""
    pair = load(path)
    check_pair(pair)
    return pair


def command_lines(pair: Pair) -> str:
    """
    Return the shell commands of both servers, and in comments what to do when they can be used.

    A port of 0 becomes a free one, because two commands cannot choose the same.
    """
    pair = with_ports(pair)
    lines: list[str] = []
    for wave in waves(pair, visible_cards(os.environ)):
        if lines:
            lines.append("# when large can be used, on the same cards:")
        lines.extend(map(shell_line, wave))
    urls = [
        f"--{role} http://{server.host}:{server.port}/v1" for role, server in pair.models.items()
    ]
    return "\n".join([*lines, f'# then: stepspec solve "..." {" ".join(urls)}'])


def with_ports(pair: Pair) -> Pair:
    """
    Return *pair* with ports that are free now in the place of ports of 0.

    They count from `FIRST_PORT`. The small model gets the lower one, as in the documents.
    """
    taken = {pair.large.port, pair.small.port}
    ports = (port for port in count(FIRST_PORT) if port not in taken)
    chosen: dict[str, StartedServer] = {}
    for role in ("small", "large"):
        server = pair.models[role]
        if not server.port:
            port = next(port for port in ports if not why_taken(server.host, port))
            chosen[role] = server.model_copy(update={"port": port})
    return pair.model_copy(update=chosen)


async def up(
    starting: AbstractAsyncContextManager[Mapping[str, Served]],
    settings: Callable[[Mapping[str, str]], dict[str, Any]],
    console: Console,
    *,
    json_output: bool = False,
) -> None:
    """
    Start servers, print where they are, and return when a signal has stopped them.

    *starting* yields them by role. Of their URLs *settings* makes the settings of a solver, which
    are printed, with *json_output* a JSON object of the servers. Notes go to *console*. Raise
    `ServerError` if a server does not start, or ends by itself. The other is then stopped.
    """

    async def serve() -> None:
        async with starting as models:
            if json_output:
                text = json.dumps({role: served.record for role, served in models.items()})
                notes = STOP_NOTE
            else:
                urls = {role: served.base_url for role, served in models.items()}
                text = document(settings(urls)).rstrip()
                notes = f"{SETTINGS_NOTE}\n{STOP_NOTE}"
            print(text, flush=True)
            console.print(notes, style="dim", highlight=False, soft_wrap=True)
            await asyncio.Event().wait()

    await until_signalled(serve())


@asynccontextmanager
async def running(
    pair: Pair,
    console: Console,
    *,
    log_dir: Path | None = None,
) -> AsyncGenerator[Mapping[str, Served]]:
    """
    Yield the servers by role once all answer. Servers that share a card start one by one.

    Progress goes to *console*. Raise `ServerError` as `launch` does.
    """
    found: dict[str, Served] = {}
    async with AsyncExitStack() as stack:
        with show_progress(console) as on_ready:
            for wave in waves(pair, visible_cards(os.environ)):
                launching = launch(
                    wave,
                    log_dir=log_dir,
                    ready_timeout=pair.ready_seconds,
                    on_ready=on_ready,
                    prepare=partial(_warm_up, pair),
                )
                found.update(await stack.enter_async_context(launching))
        yield found


async def _warm_up(pair: Pair, served: Served) -> None:
    await warm_up(
        Endpoint(
            role="large" if served.name == "large" else "small",
            url=served.base_url,
            model=served.served_name,
            suffix_scoring=pair.models[served.name].suffix_scoring,
            retries=0,
            priorities=False,
        ),
    )


async def until_signalled(coroutine: Coroutine[None, None, None]) -> None:
    """
    Run *coroutine* until it ends, or one of the `STOP_SIGNALS` cancels it, which is no error.

    A signal that is ignored does not cancel it, such as SIGHUP under ``nohup``.
    """
    loop = asyncio.get_running_loop()
    handled = [number for number in STOP_SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
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
def show_progress(console: Console) -> Generator[Callable[[str], None]]:
    """Show how long servers have been starting. Yield the callback that reports a ready one."""
    columns = (SpinnerColumn(), TextColumn("starting vLLM"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        progress.add_task("")
        yield lambda name: console.print(f"{name} is ready", style="dim")
