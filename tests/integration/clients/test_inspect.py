"""Inspect's providers for OpenAI-compatible servers and for vLLM's."""

from __future__ import annotations

import pytest

from .conftest import FOLLOWING, MARKS, PROBLEM, Run, Seen, asked, solved

pytestmark = MARKS


@pytest.fixture(scope="module")
def seen(run: Run) -> Seen:
    return asked(run, "inspect_ai", str(FOLLOWING.answer))


@pytest.mark.parametrize("way", ["whole", "stream", "limited", "vllm"])
def test_inspect_gets_both_answers_and_sends_the_reasoning_back(seen: Seen, way: str) -> None:
    told = seen[way]
    assert (told["status"], told["accuracy"]) == ("success", 1)
    for turn, problem, usage in zip(told["turns"], (PROBLEM, FOLLOWING), told["usage"], strict=True):
        (reasoning,) = turn["reasoning"]
        assert solved(turn["content"], problem)
        assert f" = {problem.answer}" in reasoning
        prompt = usage["input_tokens"] + usage["input_tokens_cache_read"]
        assert usage["total_tokens"] == prompt + usage["output_tokens"] > prompt > 0
        assert usage["reasoning_tokens"] > 0
    (sent,) = told["sent back"]
    assert told["turns"][0]["internal"] == ["reasoning_content"]
    assert sent["reasoning_content"] == told["turns"][0]["reasoning"][0]


def test_inspect_ends_with_the_error_of_the_service(seen: Seen) -> None:
    told = seen["unknown model"]
    assert told["status"] == "error"
    assert "there is no model 'nobody'" in told["error"]
