"""``stepspec serve`` as a program of its own, which always ends with its block."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from stepspec.orchestrator.endpoints.metrics import read_queue
from stepspec.orchestrator.errors import ServerDied
from stepspec.servers.launcher.process import Child, child

PATIENCE = 120.0  # seconds to start, which is mostly importing
GRACE = 5.0  # seconds to end
SETTLING = 15.0  # seconds in which open requests have to be gone


@dataclass(frozen=True, slots=True)
class Program:
    """A service that runs."""

    base: str
    """Where it is reached."""
    log: Path
    """What it writes."""
    child: Child
    """Its process."""

    def terminate(self) -> None:
        """Tell it to end, as whoever runs services does."""
        os.kill(self.child.pid, signal.SIGTERM)


@asynccontextmanager
async def serve(
    small: str,
    large: str,
    log: Path,
    *flags: str,
    settings: Mapping[str, str] | None = None,
) -> AsyncGenerator[Program]:
    """Run a service over the servers at these URLs, with its *settings* in the environment."""
    servers = ("--small", small, "--large", large, "--port", "0", "--log-format", "json")
    command = (sys.executable, "-m", "stepspec", "serve", *servers, *flags)
    async with child(
        command,
        env={**os.environ, **(settings or {})},
        log=log,
        grace=GRACE,
    ) as running:
        async with asyncio.timeout(PATIENCE):
            base = await _base(log, running)
        yield Program(base, log, running)


async def _base(log: Path, running: Child) -> str:
    """Wait until the service says where it is."""
    while not running.ended.done():
        for line in logged(log):
            if line["event"] == "serving":
                return str(line["url"]).removesuffix("/v1")
        await asyncio.sleep(0.1)
    raise _ended(log)


def _ended(log: Path) -> ServerDied:
    return ServerDied(f"the service ended by itself:\n{log.read_text()}")


def logged(log: Path) -> list[dict[str, Any]]:
    """Return what the service has logged so far, a mapping for each whole line."""
    lines = log.read_text().splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("\n")]


async def _text(http: aiohttp.ClientSession, url: str) -> str:
    async with http.get(url, raise_for_status=True) as reply:
        return await reply.text()


async def settled(
    http: aiohttp.ClientSession,
    base: str,
    servers: Mapping[str, str],
) -> dict[str, int]:
    """Return the open requests by place as soon as there are none, or after `SETTLING` seconds."""
    loop = asyncio.get_running_loop()
    ends = loop.time() + SETTLING
    while True:
        still_open = {role: await queued(http, url) for role, url in servers.items()}
        still_open["the service"] = await _active(http, base)
        if not any(still_open.values()) or loop.time() > ends:
            return still_open
        await asyncio.sleep(0.1)


async def queued(http: aiohttp.ClientSession, url: str) -> int:
    """Return how many requests the server at *url* works on or keeps waiting, by its own count."""
    queue = read_queue((await _text(http, url.removesuffix("/v1") + "/metrics")).encode())
    return queue.running + queue.waiting if queue is not None else 0


async def _active(http: aiohttp.ClientSession, base: str) -> int:
    names = ("stepspec_requests_running", "stepspec_requests_waiting")
    families = text_string_to_metric_families(await _text(http, f"{base}/metrics"))
    return sum(
        int(sample.value)
        for family in families
        for sample in family.samples
        if sample.name in names
    )


def resident(group: int) -> int:
    """Return the resident memory of all processes of a process group, in KiB."""
    page = os.sysconf("SC_PAGE_SIZE") // 1024
    pages = 0
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if int((process / "stat").read_text().rpartition(")")[2].split()[2]) == group:
                pages += int((process / "statm").read_text().split()[1])
        except OSError:
            continue  # It has ended.
    return pages * page
