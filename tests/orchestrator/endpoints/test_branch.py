"""Several steps in one request: its body, the interleaved pieces of its stream, and its early end."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

import pytest

from stepspec.orchestrator.chain import THINK_END, Chain, Step, Token
from stepspec.orchestrator.errors import ContextTooLong, EndpointUnavailable, MalformedReply

from ...stand_in import ROOM, Break, FakeVllm, Stall
from .conftest import Meet

PROBLEM = Chain.of("What is 1 + 1?")
SCRIPT = ("So", " one", " and", " two", ".\n\n", "Then", THINK_END)


def sent(server: FakeVllm) -> list[dict[str, Any]]:
    return [body for path, body in server.requests if path == "/v1/completions"]


def begun(step: Step, place: int, other: str) -> Step:
    """Part from *step* at token *place*."""
    tokens = (*step.tokens[:place], Token(other, -1.0))
    return Step("".join(token.text for token in tokens), "small", "until", tokens, step.vocabulary)


@pytest.mark.parametrize("piece", [1, 3])
async def test_all_beginnings_go_in_one_request_with_the_ids_that_were_written(meet: Meet, piece: int) -> None:
    server = FakeVllm(SCRIPT, chunk=piece)
    async with meet(server) as met:
        full = await met.model.write(PROBLEM)
        steps = await met.model.branch(PROBLEM, [begun(full, 1, " two"), begun(full, 3, " 10"), begun(full, 0, "No")])
    first, body = sent(server)
    ids = [token.id for token in full.tokens]
    assert body["prompt"] == [
        [*first["prompt"], ids[0], *server.encode(" two")],
        [*first["prompt"], *ids[:3], *server.encode(" 10")],
        [*first["prompt"], *server.encode("No")],
    ]
    assert {key: body[key] for key in body if key not in ("prompt", "max_tokens")} == {
        key: first[key] for key in first if key not in ("prompt", "max_tokens")
    }
    assert body["max_tokens"] == 512 - 2  # the shortest beginning, in tokens of this server, which are letters
    assert [step.text for step in steps] == ["So two and two.\n\n", "So one and 10o.\n\n", "No one and two.\n\n"]
    assert [step.stop for step in steps] == ["delimiter"] * 3
    assert [token.id for token in steps[0].tokens] == [ids[0], *server.encode(" two"), *ids[2:]]
    write, branch = met.calls
    assert (branch.verb, branch.fate, branch.prompt) == ("write", "done", sum(map(len, body["prompt"])))
    assert branch.written == 3 + 2 + 4  # of the second, "o" is what the script has after "10"
    assert write.first is not None


async def test_known_tokens_of_a_beginning_keep_their_ids_and_scores(meet: Meet) -> None:
    server = FakeVllm(SCRIPT)
    async with meet(server) as met:
        full = await met.model.write(PROBLEM)
        (step,) = await met.model.branch(PROBLEM, [begun(full, 1, "!")])
    assert step.tokens[:2] == (full.tokens[0], Token("!", -1.0, id=server.id(b"!")))


async def test_the_text_of_another_vocabulary_is_encoded_anew(meet: Meet) -> None:
    server = FakeVllm(SCRIPT)
    async with meet(server) as met:
        await met.model.branch(PROBLEM, [Step("So two", "large", "until", (Token("So two", id=7),), "another")])
    (body,) = sent(server)
    assert body["prompt"][0][-6:] == server.encode("So two")


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
            await met.model.branch(PROBLEM, [Step("a", "small"), Step("a" * ROOM, "small")], limit=2 * ROOM)


async def test_a_stream_that_breaks_or_stalls_is_a_failure(meet: Meet) -> None:
    server = FakeVllm(SCRIPT, faults=deque([Break(2), Stall(2)]))
    async with meet(server, deadlines={"between": 0.05}) as met:
        for words in ("broke off", "no token for"):
            with pytest.raises(EndpointUnavailable, match=words):
                await met.model.branch(PROBLEM, [Step("So", "small"), Step("No", "small")])
    assert [call.fate for call in met.calls] == ["failed", "failed"]


class Forgetful(FakeVllm):
    """Forgets the last prompt, or numbers it beyond the end."""

    beyond = False

    def turns(self, body: dict[str, Any]) -> Iterator[list[dict[str, Any]]]:
        last = len(body["prompt"]) - 1
        for turn in super().turns(body):
            if self.beyond:
                yield [piece | {"index": piece["index"] + (piece["index"] == last)} for piece in turn]
            else:
                yield [piece for piece in turn if piece["index"] != last]


@pytest.mark.parametrize(
    ("beyond", "words"), [(False, "without a finish_reason for every prompt"), (True, "an answer to prompt 2 of 2")]
)
async def test_answers_that_do_not_match_the_prompts_are_malformed(meet: Meet, beyond: bool, words: str) -> None:
    server = Forgetful(SCRIPT)
    server.beyond = beyond
    async with meet(server) as met:
        with pytest.raises(MalformedReply, match=words):
            await met.model.branch(PROBLEM, [Step("So", "small"), Step("No", "small")])
    assert [call.fate for call in met.calls] == ["failed"]
