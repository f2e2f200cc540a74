"""
Before the first run, a server gets every kind of request that methods send, alone and several at a
time.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from stepspec import Solver
from stepspec.orchestrator.backends.vllm import endpoint as module
from stepspec.orchestrator.backends.vllm.endpoint import WARM_UP_BATCHES, VllmEndpoint, warm_up
from stepspec.orchestrator.endpoints import Endpoint

from ...stand_in import GENERATE, FakeVllm, Refuse

EACH = sum(WARM_UP_BATCHES)
KINDS = {"write", "write with likeliest tokens", "ask", "score", "JSON"}


def kind(path: str, body: dict[str, Any]) -> str:
    """Name the request by what makes a server do something of its own for it."""
    if "allowed_token_ids" in body:
        return "ask"
    if "prompt_logprobs" in body or path == GENERATE:
        return "score"
    if "response_format" in body or "structured_outputs" in body:
        return "JSON"
    return "write with likeliest tokens" if body["logprobs"] else "write"


def kinds(server: FakeVllm) -> Counter[str]:
    return Counter(kind(path, body) for path, body in server.requests if path != "/tokenize")


async def test_every_kind_of_request_is_sent_alone_and_several_at_a_time() -> None:
    server = FakeVllm(("So", " two", ".\n\n"))
    async with server.serve() as settings, VllmEndpoint(settings) as endpoint:
        await endpoint.warm_up()
    sent = kinds(server)
    assert set(sent) == KINDS
    assert all(count >= EACH for count in sent.values())
    assert {bool(body.get("seed")) for _, body in server.requests if body.get("stream")} == {
        True,
        False,
    }


async def test_a_kind_that_the_server_refuses_keeps_no_other_from_it() -> None:
    server = FakeVllm(("So", " two", ".\n\n"))
    server.faults.extend([Refuse(400, "no such thing")] * EACH)
    async with server.serve() as settings:
        await warm_up(settings)
    assert set(kinds(server)) == KINDS


async def test_a_server_that_never_answers_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WARM_UP_SECONDS", 0.01)
    server = FakeVllm(("So", " two", ".\n\n"), gate=asyncio.Semaphore(0))
    async with server.serve() as settings:
        await warm_up(settings)
    assert set(kinds(server)) <= {"write"}


async def test_a_server_that_cannot_be_reached_is_left_to_its_users() -> None:
    await warm_up(Endpoint(role="large", url="http://127.0.0.1:9", retries=0))


async def test_a_solver_warms_up_all_of_its_servers() -> None:
    servers = [FakeVllm(("So", " two", ".\n\n")) for _ in range(3)]
    async with (
        servers[0].serve("small") as small,
        servers[1].serve("large") as large,
        servers[2].serve("large") as other,
        Solver(small, large.model_copy(update={"url": f"{large.url},{other.url}"})) as solver,
    ):
        await solver.warm_up()
    assert [set(kinds(server)) for server in servers] == [KINDS] * 3
