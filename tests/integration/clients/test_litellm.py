"""The LiteLLM SDK."""

from __future__ import annotations

import pytest

from .conftest import (
    FOLLOWING,
    MARKS,
    PROBLEM,
    Report,
    Run,
    counted,
    run_client,
    solved,
)

pytestmark = MARKS


@pytest.fixture(scope="module")
def report(run: Run) -> Report:
    return run_client(run, "litellm")


@pytest.mark.parametrize("provider", ["openai", "hosted_vllm"])
@pytest.mark.parametrize("way", ["whole", "stream", "second turn"])
def test_litellm_gets_answer_reasoning_and_usage(report: Report, provider: str, way: str) -> None:
    result = report[f"{provider} {way}"]
    problem = FOLLOWING if way == "second turn" else PROBLEM
    assert solved(result["content"], problem)
    assert f" = {problem.answer}" in result["reasoning_content"]
    assert result["finish_reason"] == "stop"
    assert counted(result["usage"])
    if way == "stream":
        assert result["pieces"] >= len(PROBLEM.operations)


def test_litellm_works_asynchronously_and_raises_typed_errors(report: Report) -> None:
    assert solved(report["async"]["content"])
    assert report["wrong key"] == {"error": "AuthenticationError", "status": 401}
    assert report["unknown model"] == {"error": "NotFoundError", "status": 404}
    assert report["unknown parameter"] == {"error": "BadRequestError", "status": 400}
