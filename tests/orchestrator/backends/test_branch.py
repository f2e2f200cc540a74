"""Several beginnings of a step, each of which is completed by a request of its own."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest

from stepspec.orchestrator.chain import THINK_END, Chain, Step, Token
from stepspec.orchestrator.errors import ContextTooLong, EndpointUnavailable

from ...stand_in import ROOM, Break, FakeVllm, Stall
from ..conftest import Meet

PROBLEM = Chain.of("What is 1 + 1?")
SCRIPT = ("So", " one", " and", " two", ".\n\n", "Then", THINK_END)


def sent(server: FakeVllm) -> list[dict[str, Any]]:
    return [body for path, body in server.requests if path == "/v1/completions"]


def begun(step: Step, place: int, other: str) -> Step:
    """Part from *step* at token *place*."""
    tokens = (*step.tokens[:place], Token(other, -1.0))
    return Step("".join(token.text for token in tokens), "small", "until", tokens, step.vocabulary)


@pytest.mark.parametrize("piece", [1, 3])
async def test_each_beginning_goes_in_its_own_request_with_the_ids_that_were_written(
    meet: Meet, piece: int
) -> None:
    server = FakeVllm(SCRIPT, chunk=piece)
    async with meet(server) as met:
        full = await met.model.write(PROBLEM)
        steps = await met.model.branch(
            PROBLEM, [begun(full, 1, " two"), begun(full, 3, " 10"), begun(full, 0, "No")]
        )
    first, *bodies = sent(server)
    ids = [token.id for token in full.tokens]
    ahead = [
        [ids[0], *server.encode(" two")],
        [*ids[:3], *server.encode(" 10")],
        server.encode("No"),
    ]
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
    assert [token.id for token in steps[0].tokens] == [ids[0], *server.encode(" two"), *ids[2:]]
    calls = {call.prompt - len(first["prompt"]): call for call in met.calls[1:]}
    assert {(call.verb, call.fate) for call in calls.values()} == {("write", "done")}
    # the numbers of tokens that are sent and written; of the second, "o" is what the script has
    # after "10"
    assert {count: call.written for count, call in calls.items()} == {5: 3, 6: 2, 2: 4}


async def test_known_tokens_of_a_beginning_keep_their_ids_and_scores(meet: Meet) -> None:
    server = FakeVllm(SCRIPT)
    async with meet(server) as met:
        full = await met.model.write(PROBLEM)
        (step,) = await met.model.branch(PROBLEM, [begun(full, 1, "!")])
    assert step.tokens[:2] == (full.tokens[0], Token("!", -1.0, id=server.id(b"!")))


async def test_the_text_of_another_vocabulary_is_encoded_anew(meet: Meet) -> None:
    server = FakeVllm(SCRIPT)
    async with meet(server) as met:
        await met.model.branch(
            PROBLEM, [Step("So two", "large", "until", (Token("So two", id=7),), "another")]
        )
    (body,) = sent(server)
    assert body["prompt"][-6:] == server.encode("So two")


async def test_steps_of_different_lengths_end_where_each_ends(meet: Meet) -> None:
    server = FakeVllm(("a", "b", "\n\n", "c", "d", THINK_END))
    async with meet(server) as met:
        texts = [Step(text, "small") for text in ("a", "ab\n\nc", "ab\n\ncd")]
        steps = await met.model.branch(PROBLEM, texts, stop=("\n\n", "d"))
    assert [(step.text, step.stop) for step in steps] == [
        ("ab\n\n", "delimiter"),
        ("ab\n\ncd", "delimiter"),
        (f"ab\n\ncd{THINK_END}", "end"),
    ]


async def test_no_request_is_made_for_no_beginnings(meet: Meet) -> None:
    server = FakeVllm(SCRIPT)
    async with meet(server) as met:
        assert await met.model.branch(PROBLEM, []) == ()
    assert not sent(server)


async def test_a_beginning_that_fills_the_context_is_too_long(meet: Meet) -> None:
    async with meet(FakeVllm(SCRIPT)) as met:
        with pytest.raises(ContextTooLong):
            await met.model.branch(
                PROBLEM, [Step("a", "small"), Step("a" * ROOM, "small")], limit=2 * ROOM
            )


async def test_a_stream_that_breaks_or_stalls_is_a_failure(meet: Meet) -> None:
    server = FakeVllm(SCRIPT, faults=deque([Break(2), None, Stall(2), None]))
    async with meet(server, deadlines={"between": 0.05}) as met:
        for words in ("broke off", "no token for"):
            with pytest.raises(EndpointUnavailable, match=words):
                await met.model.branch(PROBLEM, [Step("So", "small"), Step("No", "small")])
    assert [call.fate for call in met.calls].count("failed") == 2
