"""``stepspec up --testbed``: the miniature pair, for other programs to use, until it is told to stop."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console

from ...orchestrator.serving import Served
from .servers import MODELS, PAIR, SCORERS, running

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


async def up(
    profile: str = "paced",
    roles: Sequence[str] = PAIR,
    *,
    json_output: bool = False,
    models: Path = MODELS,
    log_dir: Path | None = None,
) -> None:
    """
    Start the servers of *roles*, print where they are once all are ready, and return when a signal has stopped them.

    Progress goes to standard error. With *json_output*, standard output carries one line, an object by role. Raise
    ServerError if a server does not start or ends by itself.
    """
    console = Console(stderr=True)

    async def stay() -> None:
        async with running(profile, roles, console=console, models=models, log_dir=log_dir) as served:
            print(as_json(served) if json_output else as_text(served), flush=True)
            for name in SCORERS & served.keys():
                console.print(f"{name} can score suffixes: suffix_scoring = true in its settings.", style="dim")
            console.print("Ctrl-C stops them.", style="dim")
            await asyncio.Event().wait()

    await _until_signalled(asyncio.create_task(stay()))


def as_json(served: Mapping[str, Served]) -> str:
    """Return one line: by role, the base URL, the model's name, the endpoint's options, the process id and the log."""
    return json.dumps(
        {
            name: {
                "base_url": one.base_url,
                "model": one.served_name,
                "suffix_scoring": name in SCORERS,
                "pid": one.pid,
                "log": str(one.log),
            }
            for name, one in served.items()
        }
    )


def as_text(served: Mapping[str, Served]) -> str:
    """Return a line for each server: its role and its base URL."""
    width = max(map(len, served))
    return "\n".join(f"{name:<{width}}  {one.base_url}" for name, one in served.items())


async def _until_signalled(task: asyncio.Task[None]) -> None:
    """Wait for *task*; a signal that asks us to stop cancels it, and that is no error."""
    loop = asyncio.get_running_loop()
    for number in STOPPING:
        loop.add_signal_handler(number, task.cancel)
    try:
        await asyncio.wait({task})
    finally:
        for number in STOPPING:
            loop.remove_signal_handler(number)
        task.cancel()
        await asyncio.wait({task})
    if not task.cancelled():
        task.result()
