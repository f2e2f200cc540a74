"""Inspect's providers for OpenAI-compatible servers and for vLLM's."""

from __future__ import annotations

import pytest

from .conftest import FOLLOWING, MARKS, PROBLEM, Report, Run, run_client, solved

pytestmark = MARKS


@pytest.fixture(scope="module")
def report(run: Run) -> Report:
    return run_client(run, "inspect_ai", str(FOLLOWING.answer))


@pytest.mark.parametrize("way", ["whole", "stream", "limited", "vllm"])
def test_inspect_gets_both_answers_and_sends_the_reasoning_back(report: Report, way: str) -> None:
    result = report[way]
    assert (result["status"], result["accuracy"]) == ("success", 1)
    for turn, problem, usage in zip(result["turns"], (PROBLEM, FOLLOWING), result["usage"], strict=True):
        (reasoning,) = turn["reasoning"]
        assert solved(turn["content"], problem)
        assert f" = {problem.answer}" in reasoning
        prompt = usage["input_tokens"] + usage["input_tokens_cache_read"]
        assert usage["total_tokens"] == prompt + usage["output_tokens"] > prompt > 0
        assert usage["reasoning_tokens"] > 0
    (sent,) = result["sent back"]
    assert result["turns"][0]["internal"] == ["reasoning_content"]
    assert sent["reasoning_content"] == result["turns"][0]["reasoning"][0]


def test_inspect_ends_with_the_error_of_the_service(report: Report) -> None:
    result = report["unknown model"]
    assert result["status"] == "error"
    assert "there is no model 'nobody'" in result["error"]
