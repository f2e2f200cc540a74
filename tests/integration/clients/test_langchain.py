"""LangChain's ChatOpenAI."""

from __future__ import annotations

import pytest

from stepspec.orchestrator.answer import extract

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
    return run_client(run, "langchain")


@pytest.mark.parametrize("way", ["invoke", "stream", "system", "second turn"])
def test_langchain_gets_answer_and_usage_and_drops_the_reasoning(report: Report, way: str) -> None:
    result = report[way]
    assert solved(result["content"], FOLLOWING if way == "second turn" else PROBLEM)
    assert result["finish_reason"] == "stop"
    assert counted(result["usage"], "input_tokens", "output_tokens")
    assert result["usage"]["output_token_details"]["reasoning"] > 0
    assert not {"reasoning", "reasoning_content"} & result["kwargs"].keys()


def test_langchain_streams_and_chains(report: Report) -> None:
    assert report["stream"]["chunks"] > len(PROBLEM.operations)
    assert solved(report["async stream"]["content"])
    assert list(map(extract, report["chained"]["contents"])) == [str(PROBLEM.answer), str(FOLLOWING.answer)]


def test_langchain_gets_the_reasoning_if_it_is_folded_into_the_answer(report: Report) -> None:
    content = report["folded"]["content"]
    thinking, _, answer = content.partition("</think>")
    assert thinking.startswith("<think>")
    assert f" = {PROBLEM.answer}" in thinking
    assert solved(answer)


def test_langchain_raises_typed_errors(report: Report) -> None:
    assert [report[way]["status"] for way in ("wrong key", "unknown model")] == [401, 404]
    assert [report[way]["error"] for way in ("wrong key", "unknown model")] == [
        "OpenAIAuthenticationError", "OpenAIModelNotFoundError",
    ]  # fmt: skip


def test_langchain_may_bind_tools_which_this_pair_does_not_call(report: Report) -> None:
    assert (report["tools"]["calls"], report["tools"]["finish_reason"]) == ([], "stop")
    assert solved(report["tools"]["content"])
