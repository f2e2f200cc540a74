"""
Requests that the run waits for precede bets; every request of a run carries the run's headers and
its cache.
"""

from __future__ import annotations

import asyncio
from itertools import combinations, pairwise

import pytest

from stepspec.orchestrator.chain import Chain
from stepspec.orchestrator.endpoints.request_context import (
    CARRIED,
    PRIORITY_SECONDS,
    RUN,
    carrying,
    priority,
    run_place,
    separate_cache,
)
from stepspec.orchestrator.errors import EndpointRejected
from stepspec.orchestrator.interfaces import RequestContext, requesting

from ...stand_in import FakeVllm, Refuse
from ..conftest import Meet

PROBLEM = Chain.of("What is 1 + 1?")
ORDER = (
    RequestContext("verify", 3),
    RequestContext("repair", 3),
    RequestContext("answer", 3),
    RequestContext("draft", 3),
    RequestContext("verify", 4, bet=True),
    RequestContext("draft", 5, bet=True),
)


def sent(server: FakeVllm) -> list[object]:
    return [body.get("priority") for path, body in server.requests if path == "/v1/completions"]


def test_the_order_is_verdict_repair_answer_draft_bet() -> None:
    values = [priority(each) or 0 for each in ORDER]
    assert all(one < other for one, other in pairwise(values))


def test_a_hedge_and_an_early_answer_count_as_bets() -> None:
    bets = {
        priority(RequestContext(purpose, 3, bet=True))
        for purpose in ("hedge", "answer", "draft", "repair")
    }
    assert bets == {priority(ORDER[-1])}


async def test_a_run_with_a_lower_number_precedes_others_for_all_purposes() -> None:
    urgent = [priority(each, run_place(-1)) or 0 for each in ORDER]
    usual = [priority(each, run_place()) or 0 for each in ORDER]
    assert max(urgent) < 0 < min(usual)  # the requests of other clients have 0
    assert usual[-1] - usual[0] < PRIORITY_SECONDS


async def test_a_run_precedes_those_that_began_later_for_whatever_it_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = asyncio.get_running_loop()
    places = list[int]()
    for at in (1000.0, 1010.5, 1100.2):
        monkeypatch.setattr(loop, "time", lambda at=at: at)
        with carrying({}):
            places.append(RUN.get())
            assert RUN.get() == run_place() == run_place(0)
    awaited = ORDER[:4]
    bets = ORDER[4:]
    for older, younger in combinations(places, 2):
        assert max(priority(each, older) or 0 for each in awaited) < min(
            priority(each, younger) or 0 for each in awaited
        )
    first, soon, late = places
    assert min(priority(bet, first) or 0 for bet in bets) > max(
        priority(each, soon) or 0 for each in awaited
    )
    assert max(priority(bet, first) or 0 for bet in bets[:2]) < min(
        priority(each, late) or 0 for each in awaited
    )


async def test_requests_of_a_run_carry_their_priority_and_others_none(meet: Meet) -> None:
    server = FakeVllm(("So", "\n\n"))
    async with meet(server) as met:
        await met.model.write(PROBLEM)
        for context in ORDER[:4]:
            with requesting(context):
                await met.model.write(PROBLEM)
        with carrying({}, 2), requesting(ORDER[0]):
            place = RUN.get()
            await met.model.write(PROBLEM)
        assert not any("priority" in body for path, body in server.requests if path == "/tokenize")
    assert sent(server) == [None, 0, 1, 2, 3, place]


@pytest.mark.parametrize(
    ("refusal", "priorities", "expected"),
    [
        (Refuse(400, "priority scheduling is not enabled"), True, [3, None, None]),
        (None, False, [None, None]),
    ],
)
async def test_no_priority_is_sent_where_one_was_refused_or_the_settings_forbid_it(
    meet: Meet, refusal: Refuse | None, priorities: bool, expected: list[int | None]
) -> None:
    server = FakeVllm(("So", "\n\n"))
    async with meet(server, priorities=priorities) as met:
        server.faults.append(refusal)
        with requesting(ORDER[3]):
            assert await met.model.write(PROBLEM) == await met.model.write(PROBLEM)
    assert sent(server) == expected


async def test_another_refusal_is_no_reason_to_send_none(meet: Meet) -> None:
    server = FakeVllm(("So", "\n\n"))
    async with meet(server) as met:
        server.faults.append(Refuse(400, "no such thing"))
        with requesting(ORDER[3]), pytest.raises(EndpointRejected, match="no such thing"):
            await met.model.write(PROBLEM)
        with requesting(ORDER[3]):
            await met.model.write(PROBLEM)
    assert sent(server) == [3, 3]


async def test_a_refusal_that_only_mentions_priorities_leaves_them_on(meet: Meet) -> None:
    server = FakeVllm(("So", "\n\n"))
    async with meet(server) as met:
        server.faults.extend([Refuse(400, "no such priority of operations")] * 2)
        with requesting(ORDER[3]), pytest.raises(EndpointRejected, match="no such priority"):
            await met.model.write(PROBLEM)
        with requesting(ORDER[3]):
            await met.model.write(PROBLEM)
    assert sent(server) == [3, None, 3]


async def test_requests_with_a_separate_cache_carry_its_name_as_salt_and_others_none(
    meet: Meet,
) -> None:
    server = FakeVllm(("So", "\n\n"))
    async with meet(server) as met:
        await met.model.write(PROBLEM)
        with separate_cache("BiLD"), requesting(ORDER[3]):
            await met.model.write(PROBLEM)
        await met.model.write(PROBLEM)
    salts = [body.get("cache_salt") for path, body in server.requests if path == "/v1/completions"]
    assert salts == [None, "BiLD", None]
    assert {path for path, body in server.requests if "cache_salt" in body} == {"/v1/completions"}


async def test_a_header_that_is_carried_already_keeps_its_value() -> None:
    with carrying({"x-session-id": "theirs", "traceparent": "00"}):
        with carrying({"X-Session-ID": "ours", "X-More": "1"}):
            assert CARRIED.get() == {"x-session-id": "theirs", "traceparent": "00", "X-More": "1"}
        assert CARRIED.get() == {"x-session-id": "theirs", "traceparent": "00"}
    assert CARRIED.get() == {}
