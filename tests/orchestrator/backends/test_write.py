"""
Writing over HTTP: where a step ends, that its tokens are the server's, and that the next prompt
repeats them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from stepspec.orchestrator.chain import THINK_END, Chain, Step, Token
from stepspec.orchestrator.endpoints import Sampling
from stepspec.orchestrator.errors import ContextTooLong

from ...stand_in import ROOM, THINK, FakeVllm
from ..conftest import Meet

PROBLEM = Chain.of("What is 1 + 1?")
SCRIPT = (
    "So",
    " one",
    ".\n\n",
    "Then",
    " two",
    ".\n\nSo",
    " on",
    ".",
    "\n",
    "\n",
    "Done",
    THINK_END,
    "2",
)


def texts(step: Step) -> list[str]:
    return [token.text for token in step.tokens]


def prompts(server: FakeVllm) -> list[str]:
    return [
        server.decode(body["prompt"]) for path, body in server.requests if path == "/v1/completions"
    ]


@pytest.mark.parametrize("chunk", [1, 2, 3, 100])
async def test_a_step_ends_after_its_delimiter(meet: Meet, chunk: int) -> None:
    server = FakeVllm(SCRIPT, chunk=chunk)
    async with meet(server) as met:
        step = await met.model.write(PROBLEM)
        assert (step.text, step.stop, step.author) == ("So one.\n\n", "delimiter", "small")
        assert "".join(texts(step)) == step.text
        following = await met.model.write(PROBLEM.extend(step))
        assert following.text == "Then two.\n\n"
    assert prompts(server)[1].endswith(f"assistant\n{THINK}\nSo one.\n\n")


@pytest.mark.parametrize("chunk", [1, 3])
async def test_tokens_arrive_one_by_one_with_ids_and_log_probabilities(
    meet: Meet, chunk: int
) -> None:
    server = FakeVllm(SCRIPT, chunk=chunk)
    async with meet(server) as met:
        step = await met.model.write(PROBLEM)
    assert texts(step) == ["So", " one", ".\n\n"]
    assert [token.id for token in step.tokens] == [
        server.id(piece.encode()) for piece in texts(step)
    ]
    assert [token.logprob for token in step.tokens] == [
        -(token.id % 7) / 8 for token in step.tokens
    ]


@pytest.mark.parametrize("chunk", [1, 2, 3])
async def test_a_token_that_reaches_beyond_the_delimiter_is_cut_and_loses_its_id(
    meet: Meet, chunk: int
) -> None:
    server = FakeVllm(SCRIPT, chunk=chunk)
    chain = PROBLEM.extend(Step("So one.\n\n", "large"))
    async with meet(server) as met:
        step = await met.model.write(chain)
        assert texts(step) == ["Then", " two", ".\n\n"]
        assert step.tokens[-1].id == -1
        assert step.tokens[0].id == server.id(b"Then")
        following = await met.model.write(chain.extend(step))
    assert prompts(server)[1].endswith("So one.\n\nThen two.\n\n")
    assert following.text == "So on.\n\n"


async def test_the_end_of_thinking_ends_the_chain(meet: Meet) -> None:
    chain = PROBLEM.extend(Step("So one.\n\nThen two.\n\nSo on.\n\n", "large"))
    async with meet(FakeVllm(SCRIPT)) as met:
        step = await met.model.write(chain)
        answer = await met.model.write(chain.extend(step), stop=())
    assert (step.text, step.stop) == (f"Done{THINK_END}", "end")
    assert (answer.text, answer.stop) == ("2", "end")
    assert texts(answer) == ["2"]
    assert met.calls[-1].written == 2  # the token that ended the turn was written too


async def test_until_ends_the_request(meet: Meet) -> None:
    server = FakeVllm(SCRIPT, gate=asyncio.Semaphore(2))
    async with meet(server) as met:
        step = await met.model.write(PROBLEM, until=lambda step: len(step.tokens) == 2)
        await server.left.wait()
    assert (step.text, step.stop) == ("So one", "until")
    assert (met.calls[0].fate, met.calls[0].written) == ("done", 2)


async def test_the_end_of_thinking_precedes_until(meet: Meet) -> None:
    async with meet(FakeVllm((THINK_END,))) as met:
        step = await met.model.write(PROBLEM, until=lambda step: True)
    assert step.stop == "end"


async def test_an_opening_is_part_of_the_prompt_of_the_step_and_of_the_limit(meet: Meet) -> None:
    server = FakeVllm(SCRIPT)
    async with meet(server) as met:
        step = await met.model.write(PROBLEM, opening="So", limit=3)
        full = await met.model.write(PROBLEM, opening="So", limit=2)
        less = await met.model.write(PROBLEM, opening="So", limit=1)
    assert (less.text, len(less.tokens), less.stop) == ("S", 1, "length")
    assert texts(step) == ["S", "o", " one"]
    assert [token.id for token in step.tokens[:2]] == server.encode("So")
    assert step.stop == "length"
    assert (full.text, full.stop) == ("So", "length")
    assert [prompt.endswith(f"{THINK}\nSo") for prompt in prompts(server)] == [True]


async def test_a_delimiter_does_not_begin_in_the_opening(meet: Meet) -> None:
    async with meet(FakeVllm(("a", "\n", "\n", "b", "\n\n"))) as met:
        step = await met.model.write(PROBLEM, opening="a\n")
    assert step.text == "a\n\nb\n\n"


@pytest.mark.parametrize("chunk", [1, 2, 5])
async def test_a_character_may_span_several_tokens(meet: Meet, chunk: int) -> None:
    smile = "🙂".encode()
    async with meet(
        FakeVllm(("Oh", smile[:1], smile[1:3], smile[3:], " é", "\n\n"), chunk=chunk)
    ) as met:
        step = await met.model.write(PROBLEM)
    assert step.text == "Oh🙂 é\n\n"
    assert texts(step) == ["Oh", "", "", "🙂", " é", "\n\n"]
    assert all(token.id >= 0 for token in step.tokens)


async def test_a_step_does_not_end_in_half_a_character(meet: Meet) -> None:
    smile = "🙂".encode()
    server = FakeVllm(("Oh", smile[:2], smile[2:], "\n\n"))
    async with meet(server) as met:
        step = await met.model.write(PROBLEM, limit=2)
        following = await met.model.write(PROBLEM.extend(step))
    assert texts(step) == ["Oh"]
    assert following.text == "🙂\n\n"


async def test_more_stop_strings_than_the_server_takes_are_matched_here(meet: Meet) -> None:
    server = FakeVllm(SCRIPT)
    async with meet(server) as met:
        step = await met.model.write(PROBLEM, stop=("x", "y", "z", "w", "one"))
    assert step.text == "So one"
    assert len(server.requests[-1][1]["stop"]) == 4


@pytest.mark.parametrize(
    "before", ["```\nx", f"So.{THINK_END}"], ids=["a block", "an answer that begins"]
)
async def test_the_server_does_not_stop_at_delimiters_that_end_no_step(
    meet: Meet, before: str
) -> None:
    server = FakeVllm(("a", "\n\n", "b", "\n\n"))
    async with meet(server) as met:
        await met.model.write(
            PROBLEM.extend(Step(before, "large", "end" if before.endswith(">") else "length"))
        )
    assert server.requests[-1][1]["stop"] == []


async def test_all_sampling_fields_are_sent_and_seeds_depend_on_the_place(meet: Meet) -> None:
    server = FakeVllm(SCRIPT)
    async with meet(server, Sampling(temperature=0.6, top_p=0.95, top_k=20, seed=7)) as met:
        step = await met.model.write(PROBLEM)
        for chain in (PROBLEM, PROBLEM.extend(step)):
            await met.model.write(chain)
    first, again, later = [body for path, body in server.requests if path == "/v1/completions"]
    assert (first["temperature"], first["top_p"], first["top_k"], first["min_p"]) == (
        0.6,
        0.95,
        20,
        0.0,
    )
    assert first["seed"] == again["seed"] != later["seed"]


async def test_foreign_steps_are_encoded_as_text_and_own_ones_are_not(meet: Meet) -> None:
    small = FakeVllm(SCRIPT)
    large = FakeVllm(SCRIPT, spelling=1000)
    async with meet(small) as ours, meet(large, role="large") as theirs:
        assert ours.endpoint.vocabulary != theirs.endpoint.vocabulary
        step = await theirs.model.write(PROBLEM)
        following = await ours.model.write(PROBLEM.extend(step))
        await ours.model.write(PROBLEM.extend(step).extend(following))
    tokenised = [
        body["prompt"] for path, body in small.requests if path == "/tokenize" and "prompt" in body
    ]
    assert (following.text, tokenised.count("So one.\n\n")) == ("Then two.\n\n", 1)


async def test_a_token_that_is_cut_takes_its_first_bytes_along(meet: Meet) -> None:
    server = FakeVllm()
    async with meet(server) as met:
        tokens = (
            Token("So", id=server.id(b"So")),
            Token("", id=server.id(b"\xf0")),
            Token("ab", id=server.id(b"?")),
        )
        step = Step("Soab", "small", tokens=tokens, vocabulary=met.endpoint.vocabulary).cut(3)
        ids = await met.endpoint.tokenizer.encode_chain(PROBLEM.extend(step))
    assert server.decode(ids).endswith(f"{THINK}\nSoa")
    assert server.id(b"\xf0") not in ids


async def test_models_of_one_vocabulary_share_their_ids(meet: Meet) -> None:
    server = FakeVllm(SCRIPT)
    async with meet(server) as ours, meet(server, role="large") as theirs:
        step = await theirs.model.write(PROBLEM)
        server.requests.clear()
        await ours.model.write(PROBLEM.extend(step))
    assert [
        body["prompt"]
        for path, body in server.requests
        if "messages" not in body and path == "/tokenize"
    ] == []


async def test_a_chain_without_room_is_not_even_sent(meet: Meet) -> None:
    server = FakeVllm(SCRIPT)
    async with meet(server) as met:
        with pytest.raises(ContextTooLong, match=f"the small model at .* takes {ROOM} in all"):
            await met.model.write(PROBLEM.extend(Step("x" * ROOM, "small")))
    assert prompts(server) == []


async def test_many_writes_share_one_endpoint(meet: Meet) -> None:
    server = FakeVllm(SCRIPT)
    async with meet(server, max_concurrency=3) as met:
        steps = await asyncio.gather(*[met.model.write(PROBLEM) for _ in range(20)])
    assert {step.text for step in steps} == {"So one.\n\n"}
    assert len(met.calls) == 20


async def test_requests_begun_per_second_are_limited_without_waiting_for_ever(meet: Meet) -> None:
    async with meet(FakeVllm(SCRIPT), requests_per_second=1000.5) as met:
        assert (await met.model.write(PROBLEM)).text == "So one.\n\n"


LETTERS = ("a", "b", "\n\n")
RIVALS = ("x", "y", "z")


def top_texts(tokens: Sequence[Token]) -> list[list[str]]:
    return [[rival.text for rival in token.top] for token in tokens]


@pytest.mark.parametrize(("sampled", "top", "sent"), [(0, 0, 0), (0, 2, 2), (5, 2, 5), (2, 3, 3)])
async def test_the_number_of_alternatives_follows_the_sampling_and_the_policy(
    meet: Meet, sampled: int, top: int, sent: int
) -> None:
    server = FakeVllm(LETTERS, rivals=RIVALS)
    async with meet(server, Sampling(temperature=0, logprobs=sampled)) as met:
        step = await met.model.write(PROBLEM, top=top)
    assert server.requests[-1][1].get("logprobs") == sent
    assert top_texts(step.tokens) == [[piece, *RIVALS][:top] for piece in LETTERS]
    assert all(token.logprob for token in step.tokens[1:])


async def test_scored_tokens_have_alternatives_with_ids(meet: Meet) -> None:
    server = FakeVllm(LETTERS, rivals=RIVALS, unlikely=frozenset("b"))
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
    assert [
        body["prompt_logprobs"] for path, body in server.requests if path == "/v1/completions"
    ] == [2, 0]
