"""Bring a pair up: meet the servers that run already, start the others, and stop those when the block is left."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from rich.console import Console

from ..chain import Role
from ..endpoints.client import Connection
from ..endpoints.settings import Endpoint
from .checks import refuse
from .commands import servers, shown, waves
from .facts import look
from .launch import launch
from .pair import Pair, Started, load
from .progress import starting
from .server import Progress, Served
from .standing import Standing, as_json, as_text, until_signalled


def checked(path: Path, console: Console) -> Pair:
    """Read the pair at *path*, and tell what could not be checked. Raise `ConfigurationError` if it cannot work."""
    pair = load(path)
    for unchecked in refuse(pair, look(pair)):
        console.print(f"not checked: {unchecked}", style="dim", highlight=False, soft_wrap=True)
    return pair


def commands(pair: Pair) -> str:
    """Return every command line as a shell would take it, a line each; connected roles are comments."""
    lines = [f"# {role} runs at {', '.join(one.urls)}" for role, one in pair.connected.items()]
    return "\n".join([*lines, *map(shown, servers(pair))])


async def up(pair: Pair, console: Console, *, json_output: bool = False, log_dir: Path | None = None) -> None:
    """
    Bring *pair* up, print where both roles are, and return when a signal has stopped the servers.

    Progress goes to *console*. With *json_output*, standard output carries one line, an object by role.
    """

    async def stay() -> None:
        async with AsyncExitStack() as stack:
            with starting(console) as tell:
                standing = await stack.enter_async_context(running(pair, log_dir=log_dir, on_progress=tell))
            by_role: dict[str, Standing] = dict(standing.items())
            print(as_json(by_role) if json_output else as_text(by_role), flush=True)
            if pair.started:
                console.print("Ctrl-C stops them.", style="dim")
            await asyncio.Event().wait()

    await until_signalled(stay())


@asynccontextmanager
async def running(
    pair: Pair,
    *,
    log_dir: Path | None = None,
    on_progress: Callable[[Progress], object] = lambda progress: None,
) -> AsyncGenerator[Mapping[Role, Standing]]:
    """
    Yield both roles once they answer. Servers that share a card are started one after the other.

    Raise an `EndpointError` if one that should run does not, before anything is started, and `ServerError` as `launch`
    does.
    """
    met = dict(zip(pair.connected, await asyncio.gather(*map(_meet, pair.connected.values())), strict=True))
    async with AsyncExitStack() as stack:
        served: dict[str, Served] = {}
        for wave in waves(pair):
            launching = launch(wave, log_dir=log_dir, ready_timeout=pair.ready_seconds, on_progress=on_progress)
            served |= await stack.enter_async_context(launching)
        started = {role: _standing(one, served[role]) for role, one in pair.started.items()}
        yield {role: met[role] if role in met else started[role] for role in pair.roles}


async def _meet(endpoint: Endpoint) -> Standing:
    """Ask every server of *endpoint* which model it serves."""
    models = [await _served_by(each) for each in endpoint.each]
    return Standing(",".join(each.v1 for each in endpoint.each), models[0], endpoint.suffix_scoring)


async def _served_by(endpoint: Endpoint) -> str:
    connection = Connection(endpoint)
    try:
        return await connection.chosen()
    finally:
        await connection.close()


def _standing(one: Started, served: Served) -> Standing:
    return Standing(
        base_url=served.base_url,
        model=served.served_name,
        suffix_scoring=one.suffix_scoring,
        speculation=one.speculation.method,
        pid=served.pid,
        log=str(served.log),
    )
