"""
Paced servers: how long a pass takes, and that a verdict comes before a repair, a draft and a bet.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from itertools import groupby
from typing import Any

import aiohttp
import pytest

from stepspec.evals.testbed.servers import endpoint
from stepspec.orchestrator.backends.vllm import VllmEndpoint
from stepspec.orchestrator.chain import Role
from stepspec.orchestrator.interfaces import RequestContext, requesting

from .conftest import Pair, running_requests

pytestmark = pytest.mark.servers

SLOTS = 16  # --max-num-seqs of the miniature pair
EACH = 12  # requests of each kind; all of them together are more than there are slots
ORDER = (
    RequestContext("verify", 3),
    RequestContext("repair", 3),
    RequestContext("answer", 9),
    RequestContext("draft", 3),
    RequestContext("draft", 5, bet=True),
)


@asynccontextmanager
async def met(pair: Pair) -> AsyncGenerator[VllmEndpoint]:
    settings = endpoint(pair.large, "large").model_copy(update={"max_concurrency": 256})
    async with VllmEndpoint(settings) as large:
        yield large


async def complete(large: VllmEndpoint, tokens: int) -> None:
    """Write exactly so many *tokens*."""
    body: dict[str, Any] = {
        "model": large.name,
        "prompt": "1 + 1",
        "max_tokens": tokens,
        "ignore_eos": True,
    }
    await large.connection.post(large.connection.call("probe"), "/v1/completions", body)


@pytest.mark.parametrize(("role", "seconds"), [("large", 0.030), ("small", 0.006)])
async def test_a_paced_pass_takes_its_time(paced_pair: Pair, role: Role, seconds: float) -> None:
    async with VllmEndpoint(endpoint(getattr(paced_pair, role), role)) as served:
        start = time.perf_counter()
        await complete(served, 24)
        assert time.perf_counter() - start >= 24 * seconds


async def test_waiting_requests_are_served_in_the_order_of_their_purpose(paced_pair: Pair) -> None:
    """The paced model holds its slots for a minute, if nobody frees them."""
    done: list[str] = []

    async def wait_for(large: VllmEndpoint, context: RequestContext) -> None:
        with requesting(context):
            await complete(large, 4)
        done.append("bet" if context.bet else context.purpose)

    async def until(requests: int) -> None:
        # The server tells nobody.
        while await running_requests(paced_pair.large) < requests:  # noqa: ASYNC110
            await asyncio.sleep(0.05)

    async with met(paced_pair) as large, asyncio.timeout(60):
        holding = [asyncio.create_task(complete(large, 1900)) for _ in range(SLOTS)]
        await until(SLOTS)
        # What should come last is there first.
        kinds = [context for context in reversed(ORDER) for _ in range(EACH)]
        waiting = [asyncio.create_task(wait_for(large, context)) for context in kinds]
        await until(SLOTS + len(waiting))
        assert not done
        for task in holding:
            task.cancel()
        await asyncio.gather(*waiting)
    assert [name for name, _ in groupby(done)] == ["verify", "repair", "answer", "draft", "bet"]


async def test_a_server_accepts_the_session_header(paced_pair: Pair) -> None:
    body = {"model": paced_pair.small.served_name, "prompt": "1 + 1", "max_tokens": 1}
    session = {"X-Session-ID": "a-chain"}
    async with (
        aiohttp.ClientSession(headers=session) as http,
        http.post(f"{paced_pair.small.base_url}/completions", json=body) as reply,
    ):
        assert reply.status == 200
