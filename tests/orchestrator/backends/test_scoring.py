"""Scoring a suffix at the cost of the suffix, and without this feature."""

from __future__ import annotations

from dataclasses import replace

import orjson
import pytest

from stepspec.orchestrator.backends.vllm import replies
from stepspec.orchestrator.chain import THINK_END, Chain, Step, Token
from stepspec.orchestrator.errors import (
    ConfigurationError,
    ContextTooLong,
    EndpointUnavailable,
    MalformedReply,
)

from ...stand_in import GENERATE, FakeVllm, Refuse
from ..conftest import Meet
from .test_vllm_protocol import CALL

PROBLEM = Chain.of("What is 1 + 1?")
STEP = Step("So one plus.\n\n", "small")
SPANS = ("Then two é", "", THINK_END)
BLOCK = 4


def caching(**settings: object) -> FakeVllm:
    server = FakeVllm(block=BLOCK, scale_out=True, rivals=("x", "y"), unlikely=frozenset("w"))
    return replace(server, **settings)  # type: ignore[arg-type]


def plain(token: Token) -> Token:
    """
    The same without the texts of what else was likely, which a suffix's reply does not bring along.
    """
    return replace(token, top=tuple([replace(other, text="") for other in token.top]))


def paths(server: FakeVllm) -> list[str]:
    return [path for path, _ in server.requests if path in (GENERATE, "/v1/completions")]


@pytest.mark.parametrize("garbage", [True, False])
@pytest.mark.parametrize("top", [0, 2])
async def test_suffix_scores_equal_the_scores_within_the_full_text(
    meet: Meet, garbage: bool, top: int
) -> None:
    server = caching(garbage=garbage)
    async with meet(server, suffix_scoring=True) as met:
        await met.model.score(PROBLEM, STEP.text)
        suffix = await met.model.score(PROBLEM.extend(STEP), *SPANS, top=top)
        first, second = met.calls
    async with meet(server) as met:
        full = await met.model.score(PROBLEM.extend(STEP), *SPANS, top=top)
    assert [[plain(token) for token in span] for span in full] == [
        [plain(token) for token in span] for span in suffix
    ]
    assert paths(server) == [GENERATE, GENERATE, "/v1/completions"]
    assert (first.verb, second.verb) == ("score", "score")
    assert first.cached < first.prompt - len(STEP.text) - 1
    assert second.cached > first.prompt - BLOCK


async def test_suffix_scoring_is_off_by_default(meet: Meet) -> None:
    server = caching()
    async with meet(server) as met:
        for _ in range(2):
            await met.model.score(PROBLEM, "So")
    assert paths(server) == ["/v1/completions"] * 2


@pytest.mark.parametrize("garbage", [True, False])
async def test_an_earlier_prefix_is_read_again_in_full(meet: Meet, garbage: bool) -> None:
    server = caching(garbage=garbage)
    async with meet(server, suffix_scoring=True) as met:
        first = await met.model.score(PROBLEM, "So one plus one")
        assert await met.model.score(PROBLEM, "So one plus one") == first
    assert paths(server) == [GENERATE, GENERATE, "/v1/completions"]
    assert [(call.fate, call.cached > 0) for call in met.calls] == [
        ("done", False),
        ("done", True),
        ("done", False),
    ]


async def test_a_server_without_cached_token_counts_is_not_trusted(meet: Meet) -> None:
    server = caching(block=0)
    async with meet(server, suffix_scoring=True) as met:
        (tokens,) = await met.model.score(PROBLEM, "So")
    assert [token.text for token in tokens] == ["S", "o"]
    assert paths(server) == [GENERATE, "/v1/completions"]


@pytest.mark.parametrize("status", [400, 500])
async def test_memory_that_has_no_words_in_json_fails_once_and_is_scored_in_full(
    meet: Meet, status: int
) -> None:
    server = caching()
    async with meet(server, suffix_scoring=True) as met:
        server.faults.append(Refuse(status, "Out of range float values are not JSON compliant"))
        (tokens,) = await met.model.score(PROBLEM, "So")
        assert len(tokens) == 2
        server.faults.extend([Refuse(500), Refuse(500)])
        met.endpoint.connection.endpoint = met.endpoint.settings.model_copy(update={"retries": 0})
        with pytest.raises(EndpointUnavailable):
            await met.model.score(PROBLEM, "So")
    assert [call.fate for call in met.calls] == ["failed", "done", "failed", "failed"]


async def test_a_chain_without_room_is_no_wrong_setting(meet: Meet) -> None:
    server = caching()
    async with meet(server, suffix_scoring=True) as met:
        server.faults.append(Refuse(400, "This model's maximum context length is 4096 tokens."))
        with pytest.raises(ContextTooLong):
            await met.model.score(PROBLEM, "So")


async def test_a_server_without_the_route_is_a_wrong_setting(meet: Meet) -> None:
    async with meet(caching(scale_out=False), suffix_scoring=True) as met:
        with pytest.raises(
            ConfigurationError, match=r"suffix_scoring is set, but .*--enable-scale-out"
        ):
            await met.model.score(PROBLEM, "So")


TEXTS = ["plain", '}},{"8":{', '"prompt_logprobs":[', "}},{", '\\"}},{"8":{\\', "\u00e9\n", "]}"]


@pytest.mark.parametrize("count", range(len(TEXTS) + 1))
@pytest.mark.parametrize("top", [0, 1])
def test_the_last_rows_of_a_reply_are_found_in_its_bytes(count: int, top: int) -> None:
    rows = [
        {
            str(place + other): {"logprob": -0.5, "rank": 1 + other, "decoded_token": text}
            for other in range(top + 1)
        }
        for place, text in enumerate(TEXTS)
    ]
    choice = {"text": TEXTS[1], "prompt_logprobs": [None, *rows], "finish_reason": "length"}
    reply = {"choices": [choice], "usage": {"prompt_tokens": 8}}
    read = orjson.loads(replies.with_last_rows(orjson.dumps(reply), count))
    kept = read["choices"][0]["prompt_logprobs"]
    assert kept[len(kept) - count :] == rows[len(rows) - count :]
    assert len(kept) == (count if 0 < count < len(rows) else 1 + len(rows))
    assert read == {**reply, "choices": [{**choice, "prompt_logprobs": kept}]}


@pytest.mark.parametrize("body", [b"", b"[]", b'{"prompt_logprobs":[null]}', b'"}},{"8":{'])
def test_a_reply_without_that_many_rows_stays_as_it_is(body: bytes) -> None:
    assert replies.with_last_rows(body, 2) == body


def reply(cached: int | None, rows: int, *, garbage: int = 0) -> dict[str, object]:
    """Score a prompt of the tokens 0, 1, 2, ...; the first *garbage* rows are wrong."""
    details = None if cached is None else {"cached_tokens": cached}
    made = [{"77" if at < garbage else str(at): {"rank": 1}} for at in range(10 - rows, 10)]
    return {"usage": {"prompt_tokens_details": details}, "prompt_logprobs": [None, *made]}


@pytest.mark.parametrize(
    ("cached", "rows", "start", "found"),
    [
        (0, 9, 6, 4),
        (5, 9, 6, 4),
        (6, 9, 6, None),  # the row of token 6 is made by token 5, which was cached
        (None, 9, 6, None),
        (5, 4, 6, 4),  # the V2 runner leaves the others out
        (5, 3, 6, None),
        (0, 9, 10, 0),
    ],
)
def test_rows_of_a_cached_prefix_are_not_believed(
    cached: int | None, rows: int, start: int, found: int | None
) -> None:
    taken = replies.computed_rows(reply(cached, rows), range(start, 10), start)
    assert (None if taken is None else len(taken)) == found
    if taken:
        assert list(taken[0]) == [str(start)]


def test_rows_that_are_not_about_the_prompt_are_not_believed() -> None:
    assert replies.computed_rows(reply(0, 9, garbage=7), range(6, 10), 6) is None
    assert replies.computed_rows({}, range(6, 10), 6) is None


@pytest.mark.parametrize("broken", [{}, {"choices": []}, {"choices": [{"prompt_logprobs": None}]}])
def test_a_reply_without_rows_is_malformed(broken: dict[str, object]) -> None:
    with pytest.raises(MalformedReply):
        replies.prompt_rows(CALL, broken, 0)


@pytest.mark.parametrize("rows", [[], [{}], [{"5": {"logprob": -1.0}}]])
def test_rows_without_the_tokens_are_malformed(rows: list[dict[str, dict[str, float]]]) -> None:
    with pytest.raises(MalformedReply):
        replies.scored_spans(CALL, rows, [("a", [5])], 0)
