"""LangChain's ChatOpenAI."""

from __future__ import annotations

import pytest

from stepspec.orchestrator.answer import extract

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
    return asked(run, "langchain")


@pytest.mark.parametrize("way", ["invoke", "stream", "system", "second turn"])
def test_langchain_gets_answer_and_usage_and_drops_the_reasoning(seen: Seen, way: str) -> None:
    told = seen[way]
    assert solved(told["content"], FOLLOWING if way == "second turn" else PROBLEM)
    assert told["finish_reason"] == "stop"
    assert counted(told["usage"], "input_tokens", "output_tokens")
    assert told["usage"]["output_token_details"]["reasoning"] > 0
    assert not {"reasoning", "reasoning_content"} & told["kwargs"].keys()


def test_langchain_streams_and_chains(seen: Seen) -> None:
    assert seen["stream"]["chunks"] > len(PROBLEM.operations)
    assert solved(seen["async stream"]["content"])
    assert list(map(extract, seen["chained"]["contents"])) == [str(PROBLEM.answer), str(FOLLOWING.answer)]


def test_langchain_gets_the_reasoning_if_it_is_folded_into_the_answer(seen: Seen) -> None:
    content = seen["folded"]["content"]
    thinking, _, answer = content.partition("</think>")
    assert thinking.startswith("<think>")
    assert f" = {PROBLEM.answer}" in thinking
    assert solved(answer)


def test_langchain_raises_typed_errors(seen: Seen) -> None:
    assert [seen[way]["status"] for way in ("wrong key", "unknown model", "tools")] == [401, 404, 400]
    assert [seen[way]["error"] for way in ("wrong key", "unknown model", "tools")] == [
        "OpenAIAuthenticationError", "OpenAIModelNotFoundError", "OpenAIInvalidRequestError",
    ]  # fmt: skip
    assert "ask one of the served models by its own name" in seen["tools"]["message"]
