"""
Runs an example as its reader does, as a program of its own, over servers that stand in for vLLM.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from ..stand_in import StandIn

EXAMPLES = Path(__file__).parents[2] / "examples"
PATIENCE = 240.0  # seconds; nearly all of them are imports on a busy machine
OURS = (sys.executable, "-W", "error")


@dataclass(frozen=True, slots=True)
class StandInPair:
    """Two servers, and the settings that lead to them."""

    small: StandIn
    large: StandIn
    settings: Mapping[str, str]

    @property
    def open_requests(self) -> int:
        return self.small.running + self.large.running


@asynccontextmanager
async def listening(small: StandIn, large: StandIn) -> AsyncGenerator[StandInPair]:
    """Serve both models while the block lasts."""
    async with small.listening() as small_url, large.listening() as large_url:
        yield StandInPair(small, large, settings(f"{small_url}/v1", f"{large_url}/v1"))


def settings(small: str, large: str) -> Mapping[str, str]:
    """
    Return the variables with the URLs of both models; the models write greedily, whatever pays.
    """
    greedy = {"STEPSPEC_SAMPLING__TEMPERATURE": "0", "STEPSPEC_AUTO": "false"}
    return {"STEPSPEC_SMALL": small, "STEPSPEC_LARGE": large, **greedy}


async def run_example(
    name: str,
    *,
    variables: Mapping[str, str],
    folder: Path,
    python: tuple[str, ...] = OURS,
    stdin: str = "",
) -> str:
    """
    Run the example called *name* in *folder*, and return what it prints. Fail with its errors if it
    does.
    """
    return await run_program(
        *python, str(EXAMPLES / name), variables=variables, folder=folder, stdin=stdin
    )


async def run_program(
    *command: str, variables: Mapping[str, str], folder: Path, stdin: str = ""
) -> str:
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=folder,
        env={**os.environ, **variables},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(PATIENCE):
            printed, errors = await process.communicate(stdin.encode())
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, errors.decode()[-4000:]
    return printed.decode()
