"""The OpenAI SDK."""

from __future__ import annotations

import pytest

from stepspec.evals.testbed.problems import worked_steps

from ..conftest import told_apart
from .conftest import FOLLOWING, MARKS, MODEL, PROBLEM, Run, Seen, asked, counted, solved

pytestmark = MARKS


@pytest.fixture(scope="module")
def seen(run: Run) -> Seen:
    return asked(run, "openai")


OPENAI = [
    "whole", "stream", "accumulated", "raw", "second turn", "options", "async", "async stream", "aiohttp stream",
]  # fmt: skip


@pytest.mark.parametrize("way", OPENAI)
def test_the_openai_sdk_gets_answer_reasoning_and_usage(seen: Seen, way: str) -> None:
    told = seen[way]
    problem = FOLLOWING if way == "second turn" else PROBLEM
    assert solved(told["content"], problem)
    assert f" = {problem.answer}" in told["reasoning"]
    assert "</think>" not in told["reasoning"]
    assert told["finish_reason"] == "stop"
    assert counted(told["usage"])
    assert 0 < told["usage"]["completion_tokens_details"]["reasoning_tokens"] < told["usage"]["completion_tokens"]


def test_the_openai_sdk_sees_every_step_on_its_own(seen: Seen) -> None:
    steps = worked_steps(PROBLEM)
    for way in ("stream", "async stream", "aiohttp stream"):
        told = seen[way]
        thoughts, answered = told_apart(told["steps"])
        assert told["verified"] == len(told["steps"])  # those of the answer as well, whose text comes as content
        assert told["pieces"] == [thought for thought in thoughts if thought]
        assert told["content"].strip() == answered
        assert len(told["pieces"]) >= len(PROBLEM.operations)
        assert told["reasoning"] == seen["whole"]["reasoning"]
    thoughts, answered = told_apart(seen["whole"]["steps"])
    assert (seen["whole"]["reasoning"], seen["whole"]["content"]) == ("".join(thoughts), answered)
    assert seen["whole"]["reasoning"].startswith(steps[0])
    assert seen["whole"]["reasoning_content"] == seen["accumulated"]["reasoning"] == seen["whole"]["reasoning"]
    assert seen["accumulated"]["kinds"] == ["chunk", "content.delta", "content.done"]


def test_the_openai_sdk_finds_the_request_again(seen: Seen) -> None:
    raw = seen["raw"]
    assert raw["request_id"] == "mine-1"
    assert raw["id"] == "chatcmpl-mine-1"
    assert float(raw["headers"]["x-stepspec-overhead-ms"]) > 0


def test_the_openai_sdk_lists_methods_and_models(seen: Seen) -> None:
    assert {MODEL, "specreason", "testbed-small", "testbed-large"} <= set(seen["models"])
    assert seen["passed through"]["model"] == "testbed-large"
    assert solved(seen["passed through"]["content"])


def test_the_openai_sdk_parses_what_was_asked_for_in_a_format(seen: Seen) -> None:
    """No miniature model has learnt JSON, so the number is not the answer: only that it ends is the server's doing."""
    assert seen["typed"]["error"] is None
    assert isinstance(seen["typed"]["count"], int)


@pytest.mark.parametrize(
    ("way", "error"),
    [
        ("wrong key", ("AuthenticationError", 401, "invalid_api_key", None)),
        ("unknown model", ("NotFoundError", 404, "model_not_found", "model")),
        ("unknown parameter", ("BadRequestError", 400, "unknown_parameter", "warmth")),
        ("failing stream", ("BadRequestError", 400, "invalid_value", "messages")),
    ],
)
def test_the_openai_sdk_raises_its_typed_errors(seen: Seen, way: str, error: tuple[str, int, str, str | None]) -> None:
    assert tuple(seen[way].values()) == error
