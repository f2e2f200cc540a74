"""The OpenAI SDK."""

from __future__ import annotations

import pytest

from stepspec.evals.testbed.problems import worked_steps

from ..conftest import split_thinking
from .conftest import FOLLOWING, MARKS, MODEL, PROBLEM, Report, Run, counted, run_client, solved

pytestmark = MARKS


@pytest.fixture(scope="module")
def report(run: Run) -> Report:
    return run_client(run, "openai")


OPENAI = [
    "whole", "stream", "accumulated", "raw", "second turn", "options", "async", "async stream", "aiohttp stream",
]  # fmt: skip


@pytest.mark.parametrize("way", OPENAI)
def test_the_openai_sdk_gets_answer_reasoning_and_usage(report: Report, way: str) -> None:
    result = report[way]
    problem = FOLLOWING if way == "second turn" else PROBLEM
    assert solved(result["content"], problem)
    assert f" = {problem.answer}" in result["reasoning"]
    assert "</think>" not in result["reasoning"]
    assert result["finish_reason"] == "stop"
    assert counted(result["usage"])
    assert 0 < result["usage"]["completion_tokens_details"]["reasoning_tokens"] < result["usage"]["completion_tokens"]


def test_the_openai_sdk_sees_every_step_on_its_own(report: Report) -> None:
    steps = worked_steps(PROBLEM)
    for way in ("stream", "async stream", "aiohttp stream"):
        result = report[way]
        thoughts, answered = split_thinking(result["steps"])
        assert result["verified"] == len(result["steps"])  # those of the answer as well, whose text comes as content
        assert result["pieces"] == [thought for thought in thoughts if thought]
        assert result["content"].strip() == answered
        assert len(result["pieces"]) >= len(PROBLEM.operations)
        assert result["reasoning"] == report["whole"]["reasoning"]
    thoughts, answered = split_thinking(report["whole"]["steps"])
    assert (report["whole"]["reasoning"], report["whole"]["content"]) == ("".join(thoughts), answered)
    assert report["whole"]["reasoning"].startswith(steps[0])
    assert report["whole"]["reasoning_content"] == report["accumulated"]["reasoning"] == report["whole"]["reasoning"]
    assert report["accumulated"]["kinds"] == ["chunk", "content.delta", "content.done"]


def test_the_openai_sdk_finds_the_request_again(report: Report) -> None:
    raw = report["raw"]
    assert raw["request_id"] == "mine-1"
    assert raw["id"] == "chatcmpl-mine-1"
    assert float(raw["headers"]["x-stepspec-overhead-ms"]) > 0


def test_the_openai_sdk_lists_methods_and_models(report: Report) -> None:
    assert {MODEL, "specreason", "testbed-small", "testbed-large"} <= set(report["models"])
    assert report["passed through"]["model"] == "testbed-large"
    assert solved(report["passed through"]["content"])


def test_the_openai_sdk_parses_an_answer_with_a_response_format(report: Report) -> None:
    """No miniature model has learnt JSON, so the number is not the answer: only that it ends is the server's doing."""
    assert report["typed"]["error"] is None
    assert isinstance(report["typed"]["count"], int)


@pytest.mark.parametrize(
    ("way", "error"),
    [
        ("wrong key", ("AuthenticationError", 401, "invalid_api_key", None)),
        ("unknown model", ("NotFoundError", 404, "model_not_found", "model")),
        ("unknown parameter", ("BadRequestError", 400, "unknown_parameter", "warmth")),
        ("failing stream", ("BadRequestError", 400, "invalid_value", "messages")),
    ],
)
def test_the_openai_sdk_raises_its_typed_errors(
    report: Report, way: str, error: tuple[str, int, str, str | None]
) -> None:
    assert tuple(report[way].values()) == error
