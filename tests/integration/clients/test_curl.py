"""curl, which is whoever writes a client by hand."""

from __future__ import annotations

import json
from typing import Any

import pytest

from .conftest import MARKS, MODEL, PROBLEM, Run, counted, solved

pytestmark = MARKS
CHAT = "/chat/completions"
REQUEST = {"model": MODEL, "messages": [{"role": "user", "content": PROBLEM.text}]}


def ask(run: Run, path: str, body: object, **choices: Any) -> tuple[str, str]:
    """Return the body of the answer, and its status with its content type."""
    printed = run("curl", path, body if isinstance(body, str) else json.dumps(body), **choices)
    answer, _, status = printed.rstrip().rpartition("\n")
    return answer, status


def test_an_answer_in_one_piece(run: Run) -> None:
    answer, status = ask(run, CHAT, REQUEST)
    completion = json.loads(answer)
    (choice,) = completion["choices"]
    assert status == "200 application/json"
    assert completion["object"] == "chat.completion"
    assert completion["model"] == MODEL
    assert choice["message"]["reasoning"] == choice["message"]["reasoning_content"] != ""
    assert choice["finish_reason"] == "stop"
    assert solved(choice["message"]["content"])
    assert counted(completion["usage"])


@pytest.mark.parametrize("include_usage", [True, False])
def test_a_stream_to_its_last_line(run: Run, include_usage: bool) -> None:
    answer, status = ask(run, CHAT, {**REQUEST, "stream": True, "stream_options": {"include_usage": include_usage}})
    lines = [line for line in answer.splitlines() if line and not line.startswith(":")]
    assert status.startswith("200 text/event-stream")
    assert all(line.startswith("data: ") for line in lines)
    assert lines.pop() == "data: [DONE]"
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines]
    if include_usage:
        last = chunks.pop()
        assert last["choices"] == []
        assert counted(last["usage"])
    assert not any(chunk.get("usage") for chunk in chunks)
    choices = [chunk["choices"][0] for chunk in chunks]
    deltas = [choice["delta"] for choice in choices]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert [choice["finish_reason"] for choice in choices] == [None] * (len(choices) - 1) + ["stop"]
    assert solved("".join(delta.get("content", "") for delta in deltas))
    steps = [delta["reasoning"] for delta in deltas if "reasoning" in delta]
    assert len(steps) >= len(PROBLEM.operations)
    assert "".join(step["text"] for step in chunks[-1]["steps"] if step["fate"] == "kept").startswith("".join(steps))


@pytest.mark.parametrize(
    ("path", "body", "status", "code", "param"),
    [
        (CHAT, '{"model"', 400, "invalid_json", None),
        (CHAT, {"model": MODEL}, 400, "missing", "messages"),
        (CHAT, {**REQUEST, "n": 0}, 400, "invalid_value", "n"),
        (CHAT, {**REQUEST, "stream": True, "logprobs": True}, 400, "unsupported_parameter", "logprobs"),
        (CHAT, {**REQUEST, "model": "nobody"}, 404, "model_not_found", "model"),
        ("/completions", {"model": MODEL, "prompt": "6 x 7 ="}, 400, "unsupported_model", "model"),
        ("/nothing", {}, 404, "not_found", None),
    ],
)
def test_a_refusal_is_json_and_names_its_cause(
    run: Run, path: str, body: object, status: int, code: str, param: str | None
) -> None:
    answer, head = ask(run, path, body)
    error = json.loads(answer)["error"]
    assert head == f"{status} application/json"
    assert (error["code"], error["param"]) == (code, param)
    assert error["message"]


def test_a_wrong_key_is_refused(run: Run) -> None:
    answer, head = ask(run, CHAT, REQUEST, key="wrong")
    assert head == "401 application/json"
    assert json.loads(answer)["error"]["code"] == "invalid_api_key"
