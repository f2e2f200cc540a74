"""The server's own gauges of its load, where ``/metrics`` can be reached."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Protocol

EVERY = 1.0  # seconds
RUNNING, WAITING = "vllm:num_requests_running", "vllm:num_requests_waiting"


@dataclass(frozen=True, slots=True)
class Queue:
    """How many requests a server works on, and how many wait until it can."""

    running: int
    waiting: int


class Gauged(Protocol):
    """Whatever can be asked for its queue; None where that cannot be known."""

    async def queue(self) -> Queue | None: ...


def read(metrics: bytes) -> Queue | None:
    """Add up the gauges of every engine behind a server; None if they are not there, as on any server but vLLM."""
    counted: dict[str, float] = {}
    for line in metrics.decode(errors="replace").splitlines():
        name = line.partition("{")[0].partition(" ")[0]
        if name in (RUNNING, WAITING):
            with suppress(ValueError):
                counted[name] = counted.get(name, 0.0) + float(line.rpartition(" ")[2])
    return Queue(int(counted[RUNNING]), int(counted[WAITING])) if len(counted) == 2 else None


@asynccontextmanager
async def polled(
    server: Gauged, tell: Callable[[int, int], None], every: float = EVERY, within: float = 5 * EVERY
) -> AsyncGenerator[None]:
    """Tell *running* and *waiting* *every* so many seconds while the block lasts; a look that fails tells nothing."""

    async def poll() -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(within):
                    found = await server.queue()
                if found is not None:
                    tell(found.running, found.waiting)
            await asyncio.sleep(every)

    polling = asyncio.create_task(poll())
    try:
        yield
    finally:
        polling.cancel()
        await asyncio.wait([polling])
