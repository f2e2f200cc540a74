"""``stepspec up --testbed``: the miniature pair, for other programs to use, until it is told to stop."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console

from ...orchestrator.serving import Served, Speculation
from ...orchestrator.serving.standing import STOPPING, Standing, as_json, as_text, until_signalled
from .servers import MODELS, NOTHING, PAIR, SCORERS, running

__all__ = ["STOPPING", "up"]


async def up(
    profile: str = "paced",
    roles: Sequence[str] = PAIR,
    *,
    json_output: bool = False,
    models: Path = MODELS,
    log_dir: Path | None = None,
    speculation: Mapping[str, Speculation] = NOTHING,
) -> None:
    """
    Start the servers of *roles*, print where they are once all are ready, and return when a signal has stopped them.

    *speculation* is by role. Progress goes to standard error. With *json_output*, standard output carries one line, an
    object by role. Raise ServerError if a server does not start or ends by itself.
    """
    console = Console(stderr=True)

    async def stay() -> None:
        starting = running(profile, roles, console=console, models=models, log_dir=log_dir, speculation=speculation)
        async with starting as served:
            standing = {name: _standing(one, speculation.get(name)) for name, one in served.items()}
            print(as_json(standing) if json_output else as_text(standing), flush=True)
            for name in SCORERS & served.keys():
                console.print(f"{name} can score suffixes: suffix_scoring = true in its settings.", style="dim")
            console.print("Ctrl-C stops them.", style="dim")
            await asyncio.Event().wait()

    await until_signalled(stay())


def _standing(served: Served, speculation: Speculation | None) -> Standing:
    return Standing(
        base_url=served.base_url,
        model=served.served_name,
        suffix_scoring=served.name in SCORERS,
        speculation=(speculation or Speculation()).method,
        pid=served.pid,
        log=str(served.log),
    )
