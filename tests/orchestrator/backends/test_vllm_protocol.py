from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

import orjson
import pytest

from stepspec.orchestrator.backends.vllm import replies
from stepspec.orchestrator.chain import Token
from stepspec.orchestrator.errors import (
    ContextTooLong,
    EndpointError,
    EndpointRejected,
    EndpointUnavailable,
    MalformedReply,
)
from stepspec.orchestrator.http.http_errors import Call, http_error, no_stream, retry_after
from stepspec.orchestrator.http.prompts import EncodedPrompt

CALL = Call("large", "http://host", "write")


@pytest.mark.parametrize(
    ("text", "pieces", "parts"),
    [
        ("a b", ["a", " b"], [("a", 0), (" b", 1)]),
        ("é", ["", "é"], [("", 0), ("é", 1)]),
        ("a�b", ["a", "�", "?"], [("a", 0), ("�", 1), ("b", 2)]),
        ("é�x", ["", "�", "x"], [("", 0), ("é�", 1), ("x", 2)]),
        ("� so", ["", " so", ""], [("", 0), ("� so", 1), ("", 2)]),  # half a character comes last
        (
            " a� so<end>",
            [" a", "", " so", "<end>"],
            [(" a", 0), ("", 1), ("� so", 2), ("<end>", 3)],
        ),
        ("��}", ["", "", "}"], [("", 0), ("", 1), ("��}", 2)]),
        ("ab!", ["a", "b"], [("a", 0), ("b!", 1)]),
        ("ab", [], [("", 0), ("ab", 1)]),
        ("", [], []),
    ],
)
def test_text_is_divided_among_its_tokens(
    text: str, pieces: list[str], parts: list[tuple[str, int]]
) -> None:
    assert replies.divide_text(text, range(len(parts)), pieces) == parts


@pytest.mark.parametrize(
    ("text", "pieces", "parts"),
    [
        ("a\n\n", ["a", "\n\n"], [("a", 0), ("\n\n", 1)]),
        (".\n\n", [".\n\nSo"], [(".\n\n", -1)]),
        ("a.\n\n", ["a", ".\n\nSo"], [("a", 0), (".\n\n", -1)]),
        # older versions go on after the stop
        ("a\n\n", ["a", "\n\n", "b"], [("a", 0), ("\n\n", 1), ("", -1)]),
        ("a\n\n", [], [("", 0), ("a\n\n", -1)]),
    ],
)
def test_text_that_was_cut_costs_its_token_the_id(
    text: str, pieces: list[str], parts: list[tuple[str, int]]
) -> None:
    assert replies.divide_text(text, range(len(parts)), pieces, cut=True) == parts


@pytest.mark.parametrize(
    "tokens", [[1, 2, True], [1, -1], [1, 2.0], ["1"], [None], [[1]], {"1": 1}, "12", 12, None]
)
def test_what_is_no_list_of_token_ids_is_malformed(tokens: object) -> None:
    with pytest.raises(MalformedReply, match="no token ids in the answer"):
        replies.tokenized(CALL, tokenized(tokens))


def tokenized(tokens: object) -> bytes:
    return orjson.dumps({"tokens": tokens, "max_model_len": 100})


@pytest.mark.parametrize("ids", [[0, 7], [], [2**31 - 1]])
def test_token_ids_come_with_the_length_of_the_context(ids: list[int]) -> None:
    assert replies.tokenized(CALL, tokenized(ids)) == (EncodedPrompt.of(ids), 100)


@pytest.mark.parametrize("number", [2**31, 2**63])
def test_ids_beyond_every_vocabulary_are_malformed(number: int) -> None:
    with pytest.raises(MalformedReply):
        replies.tokenized(CALL, tokenized([1, number]))


def line(**choice: object) -> bytes:
    return orjson.dumps(
        {"choices": [{"text": "a", "token_ids": [5], "finish_reason": None, **choice}]}
    )


@pytest.mark.parametrize(
    ("choice", "ended", "tokens"),
    [
        ({}, None, 1),
        ({"finish_reason": "length"}, "length", 1),
        ({"finish_reason": "stop", "stop_reason": "a"}, "delimiter", 1),
        ({"finish_reason": "stop", "stop_reason": 7}, "end", 1),
        ({"finish_reason": "repetition"}, "repetition", 1),
        ({"finish_reason": "stop", "stop_reason": None}, "end", 0),
        ({"finish_reason": "stop", "stop_reason": 5}, "end", 0),
        ({"text": "", "token_ids": []}, None, 0),
    ],
)
def test_a_chunk_has_the_finish_reason(
    choice: dict[str, object], ended: str | None, tokens: int
) -> None:
    """The token 7 closes the thinking: it belongs to the text, as 5 does not."""
    chunk = replies.parse_chunk(CALL, line(**choice), None, [7])
    assert (chunk.ended, len(chunk.tokens)) == (ended, tokens)


def test_the_token_that_ends_the_turn_takes_its_spelling_along_and_no_other_text() -> None:
    """With its stop strings included, vLLM also spells the token that ended the turn."""
    known = {
        "tokens": ["So", " it", "<end>"],
        "token_logprobs": [-0.1, -0.2, -0.3],
        "top_logprobs": [{"So": -0.1}, {" it": -0.2}, {"<end>": -0.3}],
    }
    event = line(
        text="So it<end>",
        token_ids=[3, 4, 9],
        finish_reason="stop",
        stop_reason=None,
        logprobs=known,
    )
    chunk = replies.parse_chunk(CALL, event, 0)
    assert [(token.text, token.id) for token in chunk.tokens] == [("So", 3), (" it", 4)]
    assert chunk.received == 3


def test_without_spellings_the_token_that_ends_the_turn_takes_no_text_along() -> None:
    event = line(text="So it", token_ids=[3, 4, 9], finish_reason="stop", stop_reason=None)
    chunk = replies.parse_chunk(CALL, event, None)
    assert [(token.text, token.id) for token in chunk.tokens] == [("", 3), ("So it", 4)]
    assert chunk.received == 3


@pytest.mark.parametrize(
    "event",
    [
        b"",
        b"nonsense",
        b"[]",
        b"{}",
        line(token_ids=None),
        line(finish_reason="other"),
        line(text="a", token_ids=[]),
    ],
)
def test_a_chunk_that_is_not_vllms_is_refused(event: bytes) -> None:
    with pytest.raises(MalformedReply, match="the large model at http://host"):
        replies.parse_chunk(CALL, event, 0)


@pytest.mark.parametrize("finish", ["abort", "error"])
def test_a_request_that_the_server_gave_up_may_be_tried_elsewhere(finish: str) -> None:
    choice = {"finish_reason": finish, "text": "a", "token_ids": [5]}
    reads: list[Callable[[], object]] = [
        lambda: replies.parse_chunk(CALL, line(**choice), None),
        lambda: replies.choice_probabilities(CALL, {"choices": [choice]}, {"1": 1}),
        lambda: replies.prompt_rows(CALL, {"choices": [choice]}, 0),
    ]
    for read in reads:
        with pytest.raises(
            EndpointUnavailable, match=f"gave the request up .finish_reason '{finish}'"
        ):
            read()


@pytest.mark.parametrize(("known", "rank"), [(0, 0), (1, 0), (2, 2), (5, 2)])
def test_a_rank_is_known_within_the_list_of_alternatives(known: int, rank: int) -> None:
    logprobs = {"tokens": ["a"], "token_logprobs": [-1.0], "top_logprobs": [{"b": -0.5, "a": -1.0}]}
    (token,) = replies.parse_chunk(CALL, line(logprobs=logprobs), known).tokens
    assert (token.text, token.logprob, token.rank, token.id) == ("a", -1.0, rank, 5)


@pytest.mark.parametrize(
    ("top", "known", "rivals"),
    [
        ({"a": -1.0}, 0, ()),
        ({"a": -1.0, "b": -0.5}, 1, (Token("b", -0.5, 1),)),
        ({"a": -1.0, "b": -0.5, "c": -9999.0}, 2, (Token("b", -0.5, 1), Token("a", -1.0, 2))),
        ({"a": -1.0, "b": -0.5, "c": -0.25}, 2, (Token("c", -0.25, 1), Token("b", -0.5, 2))),
    ],
)
def test_alternatives_are_sorted_by_likelihood(
    top: dict[str, float], known: int, rivals: tuple[Token, ...]
) -> None:
    logprobs = {"tokens": ["a"], "token_logprobs": [-1.0], "top_logprobs": [top]}
    (token,) = replies.parse_chunk(CALL, line(logprobs=logprobs), known).tokens
    assert token.top == rivals
    assert token.rank == next((rival.rank for rival in rivals if rival.text == "a"), 0)


def test_a_log_probability_that_was_lost_is_the_least() -> None:
    logprobs = {"tokens": ["a"], "token_logprobs": [None], "top_logprobs": [None]}
    (token,) = replies.parse_chunk(CALL, line(logprobs=logprobs), 2).tokens
    assert token == Token("a", replies.MIN_LOGPROB, 0, 5)


def test_the_usage_is_in_the_last_chunk() -> None:
    usage = {
        "prompt_tokens": 9,
        "completion_tokens": 3,
        "prompt_tokens_details": {"cached_tokens": 8},
    }
    chunk = replies.parse_chunk(CALL, orjson.dumps({"choices": [], "usage": usage}), 0)
    assert (chunk.cached, chunk.received) == (8, 0)
    assert replies.usage({"usage": usage}) == (9, 8, 3)
    assert replies.usage({"usage": {**usage, "prompt_tokens_details": None}}) == (9, 0, 3)


@pytest.mark.parametrize(
    ("status", "body", "kind", "words"),
    [
        (401, b'{"error": "Unauthorized"}', EndpointRejected, "Unauthorized"),
        (404, b'{"detail": "Not Found"}', EndpointRejected, "Not Found; is a vLLM server"),
        (400, b'{"error": {"message": "top_p"}}', EndpointRejected, "HTTP 400: top_p"),
        (400, b'{"error": {"message": "maximum context length is 2048"}}', ContextTooLong, "2048"),
        (
            400,
            b'{"message": "9 is greater than max allowed: 5"}',
            EndpointRejected,
            "--max-logprobs",
        ),
        (429, b'{"message": "slow down"}', EndpointUnavailable, "slow down"),
        (
            502,
            b"<html>bad gateway</html>",
            EndpointUnavailable,
            "bad gateway; wait until the server is ready",
        ),
        (
            503,
            b"<html><title>503 Busy</title></html>",
            EndpointUnavailable,
            "HTTP 503: 503 Busy; wait",
        ),
        (500, b'{"message": "EngineCore\n  is dead"}', EndpointUnavailable, "EngineCore is dead"),
        (500, b"", EndpointUnavailable, "no reason given"),
        (400, b"[1]", EndpointRejected, r"\[1\]"),
    ],
)
def test_a_status_becomes_an_error_with_its_cure(
    status: int, body: bytes, kind: type[EndpointError], words: str
) -> None:
    error = http_error(CALL, status, body)
    assert type(error) is kind
    with pytest.raises(kind, match=words):
        raise error
    assert (error.role, error.url, error.verb) == ("large", "http://host", "write")


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        *[(None, 0), ("", 0), ("2.5", 2.5), ("-1", 0), ("inf", 0), ("nan", 0), ("soon", 0)],
        ("Wed, 21 Oct 2026 07:28:30 GMT", 30),
        ("Wed, 21 Oct 2026 07:28:30 -0000", 30),
        ("Wednesday, 21-Oct-26 07:28:30 GMT", 30),
        ("Wed, 21 Oct 2026 09:28:30 +0200", 30),
        ("Wed, 21 Oct 2026 07:27:00 GMT", 0),
        ("Wed, 32 Oct 2026 07:27:00 GMT", 0),
    ],
)
def test_a_pause_is_read_in_seconds_or_up_to_a_date(header: str | None, seconds: float) -> None:
    assert retry_after(header, now=datetime(2026, 10, 21, 7, 28, tzinfo=UTC).timestamp()) == seconds


@pytest.mark.parametrize(
    ("usage", "counts"),
    [
        (
            {
                "prompt_tokens": 9,
                "prompt_tokens_details": {"cached_tokens": 12},
                "completion_tokens": 3,
            },
            (9, 9, 3),
        ),
        (
            {
                "prompt_tokens": 9,
                "prompt_tokens_details": {"cached_tokens": -2},
                "completion_tokens": -3,
            },
            (9, 0, 0),
        ),
        ({"prompt_tokens": -9, "prompt_tokens_details": {"cached_tokens": 2}}, (0, 0, 0)),
        ({"prompt_tokens": "9", "prompt_tokens_details": [1], "completion_tokens": 3.5}, (0, 0, 0)),
        ({"prompt_tokens": None, "prompt_tokens_details": {"cached_tokens": None}}, (0, 0, 0)),
        ({"prompt_tokens": True, "completion_tokens": 1e400}, (0, 0, 0)),
        ({"prompt_tokens": 2**64 - 1, "completion_tokens": 2**63}, (2**40, 0, 2**40)),
        *[(None, (0, 0, 0)), ([], (0, 0, 0)), ("none", (0, 0, 0)), (7, (0, 0, 0))],
    ],
)
def test_a_usage_that_cannot_be_is_clamped(usage: object, counts: tuple[int, int, int]) -> None:
    assert replies.usage({"usage": usage}) == counts
    assert replies.usage({}) == (0, 0, 0)


NO_STREAMS: list[tuple[bytes, type[EndpointError], str]] = [
    (
        b'{"error": {"message": "the prompt is empty", "code": 400}}',
        EndpointRejected,
        "HTTP 400: the prompt is empty",
    ),
    (b'{"error": {"message": "busy", "code": "503"}}', EndpointUnavailable, "HTTP 503: busy"),
    (b'{"error": {"message": "maximum context length is 9", "code": 400}}', ContextTooLong, "is 9"),
    (
        b'{"error": {"message": "bad", "type": "invalid_request_error"}}',
        EndpointRejected,
        "HTTP 400: bad",
    ),
    (
        b'{"error": {"message": "bad", "type": "BadRequestError", "code": null}}',
        EndpointRejected,
        "HTTP 400: bad",
    ),
    (b'{"error": "overloaded"}', EndpointUnavailable, "HTTP 200: overloaded"),
    (
        b'{"error": {"message": "out of memory", "code": 99999}}',
        EndpointUnavailable,
        "out of memory",
    ),
    (b'{"detail": "the quota is spent"}', MalformedReply, "the quota is spent"),
    (b'{"message": "the quota is spent"}', MalformedReply, "the quota is spent"),
    (b'{"choices": [{"text": "4"}]}', MalformedReply, "in one piece"),
    (b'\xef\xbb\xbf{"error": "overloaded"}', EndpointUnavailable, "HTTP 200: overloaded"),
    (
        b"<!DOCTYPE html><html>\n\n<title>Sign\nin</title></html>",
        MalformedReply,
        r"a web page \('Sign in'\)",
    ),
    (b"upstream timed out\n\n", MalformedReply, "upstream timed out"),
    (b"", EndpointUnavailable, "an empty answer: did"),
    (b"\r\n\r\n", EndpointUnavailable, "an empty answer: did"),
]


@pytest.mark.parametrize(("body", "kind", "words"), NO_STREAMS)
def test_an_answer_that_is_no_stream_becomes_an_error_in_the_servers_words(
    body: bytes, kind: type[EndpointError], words: str
) -> None:
    error = no_stream(CALL, body)
    assert type(error) is kind
    with pytest.raises(kind, match=words):
        raise error


@pytest.mark.parametrize(
    ("body", "kind", "words"),
    [each for each in NO_STREAMS if each[0].startswith((b'{"err', b'{"object": "err'))],
)
def test_an_error_inside_a_stream_has_the_servers_words_too(
    body: bytes, kind: type[EndpointError], words: str
) -> None:
    with pytest.raises(kind, match=words):
        replies.parse_chunk(CALL, body, 0)
