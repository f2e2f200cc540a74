"""The LiteLLM SDK: the thinking is read, and sent back with the next turn."""

from __future__ import annotations

from pathlib import Path

from ...worked import sentences
from .conftest import FOLLOWING, MARKS, MODEL, PROBLEM, Service, solved

pytestmark = MARKS


def test_litellm_gets_answer_reasoning_and_usage_and_raises_typed_errors(
    service: Service, tmp_path: Path
) -> None:
    report = service.report("litellm", MODEL, PROBLEM.text, FOLLOWING.text, folder=tmp_path)
    for way in (
        f"{provider} {way}"
        for provider in ("openai", "hosted_vllm")
        for way in ("stream", "second turn")
    ):
        result = report[way]
        problem = FOLLOWING if way.endswith("turn") else PROBLEM
        assert solved(result["content"], problem), way
        assert f" = {problem.answer}" in result["reasoning_content"]
        assert result["finish_reason"] == "stop"
        usage = result["usage"]
        assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
        assert min(usage["prompt_tokens"], usage["completion_tokens"]) > 0
        if way.endswith("stream"):
            assert result["pieces"] >= len(sentences(PROBLEM.text))
    assert solved(report["async"]["content"])
    assert report["wrong key"] == {"error": "AuthenticationError", "status": 401}
    assert report["unknown model"] == {"error": "NotFoundError", "status": 404}
    assert report["unknown parameter"] == {"error": "BadRequestError", "status": 400}
