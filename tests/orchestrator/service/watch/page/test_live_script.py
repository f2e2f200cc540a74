"""How the page reads the service's stream and its refusals."""

from __future__ import annotations

import json
from typing import Any

import pytest

from .script import script

STREAM = ': keep-alive\n\ndata: {"at":0}\n\ndata: a\r\ndata:b\r\n\r\nevent: solution\nid: 7\ndata: {"ü": "🦊"}\n\n'
MESSAGES = [
    {"event": "message", "data": '{"at":0}'},
    {"event": "message", "data": "a\nb"},
    {"event": "solution", "data": '{"ü": "🦊"}'},
]


def test_a_stream_means_the_same_wherever_the_network_cut_it() -> None:
    body = """
    const read = (pieces) => { const split = live.splitter(); return pieces.flatMap(split); };
    return [...given].map((_, at) => read([given.slice(0, at), given.slice(at)])).concat([read([...given])]);
    """
    assert all(messages == MESSAGES for messages in script(body, STREAM))


def test_a_message_that_was_cut_off_is_none() -> None:
    assert script("return live.splitter()(given)", STREAM.rstrip()) == MESSAGES[:-1]


@pytest.mark.parametrize(
    ("status", "error", "wait", "expected"),
    [
        (400, {"message": "too high", "type": "invalid_request_error", "param": "n"}, None, ["too high", "“n”"]),
        (401, {"message": "no key", "type": "authentication_error"}, None, ["no key", "key"]),
        (429, {"message": "full", "type": "rate_limit_error"}, "2", ["full", "in 2 s"]),
        (503, {"message": "draining", "type": "service_unavailable_error"}, None, ["draining", "in a moment"]),
        (200, {"message": "the large model died", "type": "server_error"}, None, ["the large model died", "doctor"]),
        (502, None, None, ["The service answered 502.", "doctor"]),
    ],
)
def test_a_refusal_is_shown_with_its_cure(status: int, error: Any, wait: str | None, expected: list[str]) -> None:
    body = "return live.advice(new live.Refused(given.status, given.error, given.wait))"
    printed = script(body, {"status": status, "error": error, "wait": wait})
    assert expected[0] in printed[0]
    assert expected[1] in printed[1]


def test_a_service_that_is_gone_is_told_as_such() -> None:
    assert json.dumps(script("return live.advice(new TypeError('Failed to fetch'))")).count("stepspec serve") == 1
