"""The LiteLLM SDK."""

from __future__ import annotations

import pytest

from .conftest import (
    FOLLOWING,
    MARKS,
    PROBLEM,
    Run,
    Seen,
    asked,
    counted,
    solved,
)

pytestmark = MARKS


@pytest.fixture(scope="module")
def seen(run: Run) -> Seen:
    return asked(run, "litellm")


@pytest.mark.parametrize("provider", ["openai", "hosted_vllm"])
@pytest.mark.parametrize("way", ["whole", "stream", "second turn"])
def test_litellm_gets_answer_reasoning_and_usage(seen: Seen, provider: str, way: str) -> None:
    told = seen[f"{provider} {way}"]
    problem = FOLLOWING if way == "second turn" else PROBLEM
    assert solved(told["content"], problem)
    assert f" = {problem.answer}" in told["reasoning_content"]
    assert told["finish_reason"] == "stop"
    assert counted(told["usage"])
    if way == "stream":
        assert told["pieces"] >= len(PROBLEM.operations)


def test_litellm_asks_asynchronously_and_raises_typed_errors(seen: Seen) -> None:
    assert solved(seen["async"]["content"])
    assert seen["wrong key"] == {"error": "AuthenticationError", "status": 401}
    assert seen["unknown model"] == {"error": "NotFoundError", "status": 404}
    assert seen["unknown parameter"] == {"error": "BadRequestError", "status": 400}
