"""
The application over real sockets: what it replies, and that a client that goes away takes its run
with it.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any, TypeVar

import aiohttp
import pytest

from stepspec.orchestrator.chain import THINK_END
from stepspec.servers.launcher.process import Child, child

from ..stand_in import Latency, Refuse
from .conftest import STEPS
from .running import EXAMPLES, PATIENCE, StandInPair

T = TypeVar("T")
PROBLEM = {"text": "What is 6 x 7?"}
WHERE = re.compile(r"Uvicorn running on (http://[\d.:]+)")
SETTLED_WITHIN = 20.0  # seconds; the run itself would take many minutes


@pytest.fixture
async def http(pair: StandInPair, tmp_path: Path) -> AsyncGenerator[aiohttp.ClientSession]:
    """A client of the application, which uvicorn serves."""
    command = (sys.executable, "-m", "uvicorn", "examples.fastapi_app:app", "--port", "0")
    folder = str(EXAMPLES.parent)
    log = tmp_path / "app.log"
    variables = {**os.environ, **pair.settings, "NO_COLOR": "1"}
    async with child((*command, "--app-dir", folder), env=variables, log=log, grace=5.0) as app:
        async with (
            asyncio.timeout(PATIENCE),
            aiohttp.ClientSession(await address(log, app)) as http,
        ):
            yield http
        assert "Traceback" not in log.read_text()


async def address(log: Path, app: Child) -> str:
    def found() -> re.Match[str] | None:
        assert not app.ended.done(), log.read_text()
        return WHERE.search(log.read_text())

    return (await until(found))[1]


async def until(true: Callable[[], T | None]) -> T:
    """Wait until the function returns something that is true, and return that."""
    for _ in range(int(PATIENCE / 0.02)):
        if value := true():
            return value
        await asyncio.sleep(0.02)
    raise AssertionError(f"it did not come true within {PATIENCE} s")


async def events(http: aiohttp.ClientSession) -> list[tuple[str, Any]]:
    async with http.post("/stream", json=PROBLEM) as reply:
        assert (reply.status, reply.content_type) == (200, "text/event-stream")
        return [parsed(part) for part in (await reply.text()).split("\n\n") if part.strip()]


def parsed(event: str) -> tuple[str, Any]:
    """Return the kind and the data of a server-sent event."""
    fields = dict(line.split(": ", 1) for line in event.splitlines())
    return fields["event"], json.loads(fields["data"])


async def test_it_replies_in_one_piece_and_in_a_stream_of_verified_steps(
    http: aiohttp.ClientSession,
) -> None:
    async with http.post("/solve", json=PROBLEM) as reply:
        assert reply.status == 200
        solved = await reply.json()
    assert solved["answer"] == "42"
    assert 0 < solved["accept_rate"] < 1
    assert solved["seconds"] > 0

    *steps, (kind, answer) = await events(http)
    assert (kind, answer["answer"], answer["accept_rate"]) == (
        "answer",
        "42",
        solved["accept_rate"],
    )
    assert {kind for kind, _ in steps} == {"step"}
    assert {(step["author"], step["grade"] is not None) for _, step in steps} == {
        ("small", True),
        ("large", False),
    }
    thinking, _, text = "".join(step["text"] for _, step in steps).partition(THINK_END)
    assert len(thinking.split("\n\n")) == STEPS
    assert text.strip() == "The answer is \\boxed{42}."


async def test_a_failed_server_is_named(http: aiohttp.ClientSession, pair: StandInPair) -> None:
    # also for bets, which may be lost without an error
    pair.large.faults.extend([Refuse(400, "out of order")] * 99)
    async with http.post("/solve", json=PROBLEM) as reply:
        assert reply.status == 502
        assert "out of order" in (await reply.json())["detail"]
    kind, error = (await events(http))[-1]
    assert kind == "error"
    assert "the large model at" in error
    assert "out of order" in error


@pytest.mark.parametrize("path", ["/solve", "/stream"])
async def test_a_client_that_disconnects_cancels_its_run(
    http: aiohttp.ClientSession, pair: StandInPair, path: str
) -> None:
    for server in (pair.small, pair.large):
        server.steps = 1000
        server.latency = Latency(token=0.02)
    request = asyncio.create_task(read_forever(http, path))
    # some steps are done, and more under way
    await until(lambda: pair.large.generated > 16 and pair.open_requests)
    assert not request.done()
    request.cancel()
    await asyncio.wait([request])
    async with asyncio.timeout(SETTLED_WITHIN):
        await until(lambda: not pair.open_requests)
        await asyncio.sleep(0.2)  # long enough for a run that goes on to send its next request
    assert pair.open_requests == 0
    for server in (pair.small, pair.large):
        server.steps = STEPS
        server.latency = Latency()
    # the solver that both share is still of use
    assert (await events(http))[-1][1]["answer"] == "42"


async def read_forever(http: aiohttp.ClientSession, path: str) -> None:
    async with http.post(path, json=PROBLEM) as reply:
        await reply.read()
