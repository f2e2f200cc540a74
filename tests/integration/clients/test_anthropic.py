"""Anthropic's SDK."""

from __future__ import annotations

import pytest

from ..conftest import split_thinking
from .conftest import FOLLOWING, MARKS, MODEL, PROBLEM, Report, Run, run_client, solved

pytestmark = MARKS


@pytest.fixture(scope="module")
def report(run: Run) -> Report:
    return run_client(run, "anthropic")


WAYS = [
    "whole", "stream", "helped", "raw", "second turn", "thinking", "options", "beta", "async", "async stream",
    "aiohttp stream",
]  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
def test_the_sdk_gets_answer_thinking_and_usage(report: Report, way: str) -> None:
    result = report[way]
    problem = FOLLOWING if way == "second turn" else PROBLEM
    assert solved(result["content"], problem)
    assert f" = {problem.answer}" in result["reasoning"]
    assert "</think>" not in result["reasoning"]
    assert result["stop_reason"] == "end_turn"
    usage = result["usage"]
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] > 0
    assert 0 < usage["output_tokens_details"]["thinking_tokens"] < usage["output_tokens"]


def test_the_sdk_sees_every_step_on_its_own(report: Report) -> None:
    for way in ("stream", "async stream"):
        result = report[way]
        thoughts, answered = split_thinking(result["steps"])
        assert result["pieces"] == thoughts
        assert result["verified"] == len(result["pieces"]) >= len(PROBLEM.operations)
        assert result["content"].strip() == answered
        assert result["reasoning"] == report["whole"]["reasoning"]
    assert report["whole"]["kinds"] == report["helped"]["kinds"] == ["thinking", "text"]
    assert report["whole"]["signed"]
    assert report["helped"]["signed"]
    assert {"thinking", "signature", "text", "message_stop"} <= set(report["helped"]["events"])


def test_the_sdk_finds_the_request_again(report: Report) -> None:
    raw = report["raw"]
    assert (raw["request_id"], raw["id"]) == ("mine-1", "msg_mine-1")


def test_the_sdk_lists_methods_and_counts_tokens(report: Report) -> None:
    assert {MODEL, "specreason", "testbed-small", "testbed-large"} <= set(report["models"])
    assert report["passed through"]["model"] == "testbed-large"
    assert solved(report["passed through"]["content"])
    usage, counted = report["whole"]["usage"], report["counted"]
    assert counted[MODEL] == usage["input_tokens"] + usage["cache_read_input_tokens"] > 0
    assert counted["testbed-large"] > 0


def test_the_sdk_hides_the_thinking_and_stops_where_it_is_told_to(report: Report) -> None:
    assert report["hidden"]["kinds"] == ["text"]
    assert solved(report["hidden"]["content"])
    assert (report["stopped"]["stop_reason"], report["stopped"]["stop_sequence"]) == ("stop_sequence", "boxed")
    assert "boxed" not in report["stopped"]["content"]


def test_the_sdk_parses_an_answer_with_a_schema(report: Report) -> None:
    """No miniature model has learnt JSON, so the number is not the answer: only that it ends is the server's doing."""
    assert isinstance(report["typed"]["count"], int)


@pytest.mark.parametrize(
    ("way", "error", "words"),
    [
        ("wrong key", ("AuthenticationError", 401, "authentication_error", "invalid_api_key"), "x-api-key"),
        ("unknown model", ("NotFoundError", 404, "not_found_error", "model_not_found"), "nobody"),
        ("unknown parameter", ("BadRequestError", 400, "invalid_request_error", "unknown_parameter"), "warmth"),
        ("failing stream", ("BadRequestError", 400, "invalid_request_error", "invalid_value"), "messages"),
    ],
)
def test_the_sdk_raises_its_typed_errors(
    report: Report, way: str, error: tuple[str, int, str, str], words: str
) -> None:
    refusal = dict(report[way])
    assert words in refusal.pop("message")
    assert tuple(refusal.values()) == error
