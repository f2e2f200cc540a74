"""``stepspec serve`` as a program of its own, in front of a pair."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anyio.from_thread import start_blocking_portal

from stepspec.orchestrator.serving.child import Child, child

from ..conftest import Pair

KEY = "sesame"
PATIENCE = 60.0  # seconds to start
GRACE = 5.0  # seconds to end
SETTINGS = {"STEPSPEC_SERVICE__KEYS": KEY, "STEPSPEC_SAMPLING__TEMPERATURE": "0"}
LOGGING = ("--log-format", "json", "--log-level", "debug", "--log-prompts")


@dataclass(frozen=True, slots=True)
class Service:
    """Where it is reached, and what it writes."""

    base_url: str
    log: Path


@contextmanager
def serving_pair(pair: Pair, log: Path) -> Generator[Service]:
    """Start a service with a key over *pair*, greedy unless a request says otherwise, and stop it."""
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(_running(pair, log)) as service:
        yield service


@asynccontextmanager
async def _running(pair: Pair, log: Path) -> AsyncGenerator[Service]:
    servers = ("--small", pair.small.base_url, "--large", pair.large.base_url)
    command = (sys.executable, "-m", "stepspec", "serve", *servers, "--port", "0", *LOGGING)
    async with child(command, env=os.environ | SETTINGS, log=log, grace=GRACE) as program:
        async with asyncio.timeout(PATIENCE):
            base_url = await _base_url(log, program)
        yield Service(base_url, log)


async def _base_url(log: Path, program: Child) -> str:
    """Wait until the service says where it is."""
    while not program.ended.done():
        for line in logged(log):
            if line["event"] == "serving":
                return str(line["url"])
        await asyncio.sleep(0.1)
    raise _ended(log)


def _ended(log: Path) -> AssertionError:
    return AssertionError(f"the service ended by itself:\n{log.read_text()}")


def logged(log: Path) -> list[dict[str, Any]]:
    """Return what the service has logged so far, a mapping for each whole line."""
    lines = log.read_text().splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("\n")]
