"""Servers that stand ready for other programs: how they are told of, and how long they stay."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Coroutine, Mapping
from dataclasses import asdict, dataclass

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True, slots=True)
class Standing:
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


def as_json(standing: Mapping[str, Standing]) -> str:
    """Return one line: an object by role."""
    return json.dumps({role: asdict(one) for role, one in standing.items()})


def as_text(standing: Mapping[str, Standing]) -> str:
    """Return a line for each server: its role and its base URL."""
    width = max(map(len, standing))
    return "\n".join(f"{role:<{width}}  {one.base_url}" for role, one in standing.items())


async def until_signalled(work: Coroutine[None, None, None]) -> None:
    """Do *work*; a signal that asks us to stop cancels it, and that is no error."""
    task = asyncio.create_task(work)
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
