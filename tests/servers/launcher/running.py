"""
Shared by the tests of launching: scripted servers, and a list of running processes.
"""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from stepspec.servers.launcher import Served, ServerCommand

SCRIPT = Path(__file__).with_name("scripted_server.py")
PATIENCE = 10.0


def scripted(behaviour: str = "serve", name: str = "large", **options: Any) -> ServerCommand:
    program = (sys.executable, str(SCRIPT))
    return ServerCommand(name, behaviour, served_name=f"toy-{name}", program=program, **options)


async def die(served: Served) -> None:
    """Have a scripted server end by itself."""
    async with aiohttp.ClientSession() as http:
        with pytest.raises(aiohttp.ClientError):
            await http.get(served.base_url.removesuffix("/v1") + "/die")


def members(group: int) -> list[int]:
    """Return the processes of a group that have not ended."""
    return [
        pid
        for pid in _processes()
        if (stat := _stat(pid)) and stat[2] == str(group) and stat[0] != "Z"
    ]


def children(pid: int) -> list[int]:
    """Return the processes that *pid* has started and that are still there."""
    return [child for child in _processes() if (stat := _stat(child)) and stat[1] == str(pid)]


def parent(pid: int) -> int:
    return int(_stat(pid)[1])


def _processes() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").glob("[0-9]*")]


def _stat(pid: int) -> list[str]:
    """Return state, parent, group and so on of a process; nothing if it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


async def gone(group: int) -> bool:
    """Say whether the whole group ends within a few seconds. No event tells that."""
    deadline = time.monotonic() + PATIENCE
    while members(group) and time.monotonic() < deadline:  # noqa: ASYNC110
        await asyncio.sleep(0.02)
    return not members(group)
