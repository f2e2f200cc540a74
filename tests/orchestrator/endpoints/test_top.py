"""The likeliest tokens of a place, from writing and from scoring."""

from __future__ import annotations

import pytest

from stepspec.orchestrator.chain import Chain, Token
from stepspec.orchestrator.endpoints import Sampling
from stepspec.orchestrator.errors import ConfigurationError

from .conftest import Meet
from .server import FakeVllm

PROBLEM = Chain.of("What is 1 + 1?")
SCRIPT = ("a", "b", "\n\n")
RIVALS = ("x", "y", "z")


def top_texts(tokens: tuple[Token, ...]) -> list[list[str]]:
    return [[rival.text for rival in token.top] for token in tokens]


@pytest.mark.parametrize(
    ("sampled", "top", "sent"), [(None, 0, None), (None, 1, 1), (0, 0, 0), (0, 2, 2), (5, 2, 5), (2, 3, 3)]
)
async def test_the_number_of_alternatives_follows_the_sampling_and_the_policy(
    meet: Meet, sampled: int | None, top: int, sent: int | None
) -> None:
    server = FakeVllm(SCRIPT, rivals=RIVALS)
    async with meet(server, Sampling(temperature=0, logprobs=sampled)) as met:
        step = await met.model.write(PROBLEM, top=top)
    assert server.requests[-1][1].get("logprobs") == sent
    assert top_texts(step.tokens) == [[piece, *RIVALS][:top] for piece in SCRIPT]
    assert {bool(token.logprob) for token in step.tokens[1:]} == {sent is not None}


async def test_scored_tokens_have_alternatives_with_ids(meet: Meet) -> None:
    server = FakeVllm(SCRIPT, rivals=RIVALS, unlikely=frozenset("b"))
    async with meet(server) as met:
        (tokens,) = await met.model.score(PROBLEM, "ab", top=2)
        (plain,) = await met.model.score(PROBLEM, "ab")
    assert top_texts(tokens) == [["a", "x"], ["x", "y"]]
    assert [token.rank for token in tokens] == [1, 4]
    assert [[rival.id for rival in token.top] for token in tokens] == [
        [server.id(b"a"), server.id(b"x")],
        [server.id(b"x"), server.id(b"y")],
    ]
    assert all(token.top[0].logprob >= token.logprob for token in tokens)
    assert top_texts(plain) == [[], []]
    assert [body["prompt_logprobs"] for path, body in server.requests if path == "/v1/completions"] == [2, 0]


@pytest.mark.parametrize("top", [-1, 21])
async def test_more_alternatives_than_a_server_returns_are_refused(meet: Meet, top: int) -> None:
    server = FakeVllm(SCRIPT)
    async with meet(server) as met:
        before = len(server.requests)
        with pytest.raises(ConfigurationError, match=f"top={top}: .* 20 tokens .*--max-logprobs"):
            await met.model.write(PROBLEM, top=top)
        with pytest.raises(ConfigurationError, match="--max-logprobs"):
            await met.model.score(PROBLEM, "ab", top=top)
    assert len(server.requests) == before
