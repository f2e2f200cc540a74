"""``stepspec serve`` as its users run it: a program of its own, which is gone at the end, whatever happens."""

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

from stepspec.orchestrator.errors import ServerDied
from stepspec.orchestrator.launcher.process import Child, child

PATIENCE = 120.0  # seconds to start, which is mostly importing
GRACE = 5.0  # seconds to end


@dataclass(frozen=True, slots=True)
class Program:
    """A service that runs: where it is reached, and what it writes."""

    base: str
    log: Path
    child: Child

    def terminate(self) -> None:
        """Tell it to end, as whoever runs services does."""
        os.kill(self.child.pid, signal.SIGTERM)


@asynccontextmanager
async def serve(
    small: str, large: str, log: Path, *flags: str, settings: Mapping[str, str] | None = None
) -> AsyncGenerator[Program]:
    """Run a service over the servers at these URLs, its *settings* in the environment; end it when the block does."""
    servers = ("--small", small, "--large", large, "--port", "0", "--log-format", "json")
    command = (sys.executable, "-m", "stepspec", "serve", *servers, *flags)
    async with child(command, env={**os.environ, **(settings or {})}, log=log, grace=GRACE) as running:
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
