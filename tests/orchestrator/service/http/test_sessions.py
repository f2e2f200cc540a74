"""The turns of a session go to one replica of the large model, runs and forwarded requests alike."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence

import pytest

from stepspec.orchestrator.endpoints import ReplicatedEndpoint
from stepspec.orchestrator.endpoints.replicas import in_order

from ...endpoints.server import Refuse
from ..served import SCRIPT, Behind, Noting, Served, put_behind, serving, until

SESSIONS = [f"session {number}" for number in range(12)]


def another() -> Noting:
    return Noting(SCRIPT, digits={"9": -0.1}, names=("huge",))


async def turn(served: Served, session: str, *, method: str = "specreason") -> None:
    headers = {"x_session_id": session}
    if method == "huge":
        fields = {"model": "huge", "prompt": "So", "max_tokens": 2, "logprobs": 0}
        reply = await served.post("/v1/completions", fields, **headers)
    else:
        reply = await served.chat(method=method, headers=headers)
    assert reply.status == 200, reply.body


def counts(servers: Sequence[Noting]) -> list[int]:
    """How many requests of runs and clients each server had; those of probes have no session."""
    return [sum("X-Session-ID" in head for head in server.heads) for server in servers]


def used(before: Sequence[int], after: Sequence[int]) -> list[int]:
    """The servers, by their index, that were asked in between."""
    return [index for index, (was, now) in enumerate(zip(before, after, strict=True)) if now > was]


@pytest.mark.parametrize("method", ["specreason", "large", "huge"])
async def test_every_turn_of_a_session_goes_to_the_same_replica(method: str) -> None:
    others = [another(), another()]
    async with serving(replicas=others) as served:
        larges = [served.large, *others]
        places: dict[str, list[int]] = {}
        for session in SESSIONS * 3:
            before = counts(larges)
            await turn(served, session, method=method)
            places.setdefault(session, []).extend(used(before, counts(larges)))
        heads = [head["X-Session-ID"] for server in larges for head in server.heads]
        if method == "specreason":
            heads += [head["X-Session-ID"] for head in served.small.heads]
    assert all(len(set(each)) == 1 and len(each) == 3 for each in places.values()), places
    assert len({each[0] for each in places.values()}) > 1
    assert set(heads) == set(SESSIONS)


async def test_runs_and_forwarded_requests_of_a_session_share_a_replica() -> None:
    others = [another(), another()]
    async with serving(replicas=others) as served:
        larges = [served.large, *others]
        for session in SESSIONS:
            before = counts(larges)
            for method in ("specreason", "huge"):
                await turn(served, session, method=method)
            assert len(used(before, counts(larges))) == 1


async def test_a_session_moves_to_its_next_replica_while_the_first_is_down() -> None:
    others = [another(), another()]
    async with serving(replicas=others) as served:
        endpoint = served.service.context.offer.engine.large
        assert isinstance(endpoint, ReplicatedEndpoint)
        larges = dict(zip(endpoint.settings.urls, (served.large, *others), strict=True))
        first, second, third = (larges[url] for url in in_order(larges, "mine"))
        await turn(served, "mine")
        assert counts([second, third]) == [0, 0]
        assert first.heads
        first.faults = deque([Refuse(503)] * 99)
        before = counts([first, second, third])
        await turn(served, "mine")
        assert used(before, counts([first, second, third])) == [0, 1]
        before = counts([first, second, third])
        await turn(served, "mine")  # Probes of the first one fail.
        await turn(served, "mine", method="huge")
        assert used(before, counts([first, second, third])) == [1]


async def test_without_a_session_requests_at_once_are_shared_by_the_replicas() -> None:
    async with serving(replicas=[another(), another()]) as served:
        endpoint = served.service.context.offer.engine.large
        assert isinstance(endpoint, ReplicatedEndpoint)
        behind = [Behind() for _ in range(3)]
        runners = [await put_behind(served, each, replica=number) for number, each in enumerate(behind)]
        for each in behind:
            each.gate = asyncio.Event()
        asking = [
            asyncio.create_task(served.post("/v1/completions", {"model": "huge", "prompt": "x"})) for _ in range(6)
        ]
        await until(lambda: sum(len(each.got) for each in behind) == 6)
        assert [*endpoint.runs.values()] == [2, 2, 2]
        for each in behind:
            assert each.gate is not None
            each.gate.set()
        assert [reply.status for reply in await asyncio.gather(*asking)] == [200] * 6
        assert [*endpoint.runs.values()] == [0, 0, 0]
        for runner in runners:
            await runner.cleanup()
