"""Openings of a step that are completed at once, each by a request of its own."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest

from stepspec.orchestrator.chain import THINK_END, Chain, Step
from stepspec.orchestrator.concurrency import at_once
from stepspec.orchestrator.errors import ContextTooLong, EndpointUnavailable

from ...stand_in import ROOM, Break, FakeVllm, Stall
from ..conftest import Meet, Met

PROBLEM = Chain.of("What is 1 + 1?")
SCRIPT = ("So", " one", " and", " two", ".\n\n", "Then", THINK_END)


def sent(server: FakeVllm) -> list[dict[str, Any]]:
    return [body for path, body in server.requests if path == "/v1/completions"]


async def written(met: Met, *openings: str, **options: Any) -> list[Step]:
    return await at_once(
        met.model.write(PROBLEM, opening=opening, **options) for opening in openings
    )


@pytest.mark.parametrize("piece", [1, 3])
async def test_each_opening_goes_in_its_own_request(meet: Meet, piece: int) -> None:
    server = FakeVllm(SCRIPT, chunk=piece)
    async with meet(server) as met:
        full = await met.model.write(PROBLEM)
        openings = ("So two", "So one and 10", "No")
        steps = await written(met, *openings)
    first, *bodies = sent(server)
    ids = [token.id for token in full.tokens]
    ahead = [server.encode(opening) for opening in openings]
    for body, tokens in zip(bodies, ahead, strict=True):
        assert body == {
            **first,
            "prompt": [*first["prompt"], *tokens],
            "max_tokens": 512 - len(tokens),
        }
    assert [step.text for step in steps] == [
        "So two and two.\n\n",
        "So one and 10o.\n\n",
        "No one and two.\n\n",
    ]
    assert [step.stop for step in steps] == ["delimiter"] * 3
    assert [token.id for token in steps[0].tokens] == [*ahead[0], *ids[2:]]
    calls = {call.prompt - len(first["prompt"]): call for call in met.calls[1:]}
    assert {(call.verb, call.fate) for call in calls.values()} == {("write", "done")}
    # the numbers of tokens that are sent and written; of the second, "o" is what the script has
    # after "10"
    assert {count: call.written for count, call in calls.items()} == {6: 3, 13: 2, 2: 4}


async def test_steps_of_different_lengths_end_where_each_ends(meet: Meet) -> None:
    server = FakeVllm(("a", "b", "\n\n", "c", "d", THINK_END))
    async with meet(server) as met:
        steps = await written(met, "a", "ab\n\nc", "ab\n\ncd", stop=("\n\n", "d"))
    assert [(step.text, step.stop) for step in steps] == [
        ("ab\n\n", "delimiter"),
        ("ab\n\ncd", "delimiter"),
        (f"ab\n\ncd{THINK_END}", "end"),
    ]


async def test_an_opening_that_fills_the_context_is_too_long(meet: Meet) -> None:
    async with meet(FakeVllm(SCRIPT)) as met:
        with pytest.raises(ContextTooLong):
            await written(met, "a", "a" * ROOM, limit=2 * ROOM)


async def test_a_stream_that_breaks_or_stalls_is_a_failure(meet: Meet) -> None:
    server = FakeVllm(SCRIPT, faults=deque([Break(2), None, Stall(2), None]))
    async with meet(server, deadlines={"between": 0.05}) as met:
        for words in ("broke off", "no token for"):
            with pytest.raises(EndpointUnavailable, match=words):
                await written(met, "So", "No")
    assert [call.fate for call in met.calls].count("failed") == 2
