"""
Calls of tools whose arguments are no object: emitted so that they can be read, and accepted when
they come back.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import orjson
import pytest

from stepspec.orchestrator.backends.vllm.tool_protocol import parsed_tokens
from stepspec.orchestrator.chain import ToolCall
from stepspec.orchestrator.events import Calling
from stepspec.orchestrator.http.http_errors import Call
from stepspec.service.formats.chat import ChatRequest
from stepspec.service.formats.deltas import Delta, DeltaBuilder, written_arguments
from stepspec.service.formats.messages import ContentBlocks, MessagesRequest
from stepspec.service.formats.responses import ResponseEvents, ResponsesRequest
from stepspec.service.formats.schemas import MAX_VALUES, Request, arguments_object
from stepspec.service.formats.validation import parse_request

from ...evals.scripted import solution
from ..served import TURN, serving

MADE_UP = "find/für mich"
DEEP = "[" * 300 + "]" * 300
HISTORY: list[tuple[Any, dict[str, Any]]] = [
    ("", {}),
    ("  \n", {}),
    ("null", {}),
    (" null ", {}),
    (None, {}),
    ("{}", {}),
    ('{"a": 1}', {"a": 1}),
    ('{"a": ', {"arguments": '{"a": '}),
    ("what?", {"arguments": "what?"}),
    ("[1]", {"arguments": [1]}),
    ("5", {"arguments": 5}),
    ('"x"', {"arguments": "x"}),
    ("nul", {"arguments": "nul"}),
    ('{"a": NaN}', {"arguments": '{"a": NaN}'}),
    (DEEP, {"arguments": DEEP}),
    ({"a": 1}, {"a": 1}),
    (5, {"arguments": 5}),
    (1.5, {"arguments": 1.5}),
    (False, {"arguments": False}),
    ([1], {"arguments": [1]}),
]


@pytest.mark.parametrize(("arguments", "read"), HISTORY)
def test_the_arguments_of_a_history_are_an_object(arguments: Any, read: dict[str, Any]) -> None:
    assert orjson.loads(arguments_object(arguments)) == read
    function = {"name": MADE_UP, "arguments": arguments}
    turn = {
        "role": "assistant",
        "tool_calls": [{"id": "c", "type": "function", "function": function}],
    }
    result = {"role": "tool", "tool_call_id": "c", "content": "r"}
    item = {"type": "function_call", "call_id": "c", "name": MADE_UP, "arguments": arguments}
    output = {"type": "function_call_output", "call_id": "c", "output": "r"}
    block = {"type": "tool_use", "id": "c", "name": MADE_UP, "input": arguments}
    answered = {
        "role": "user",
        "content": [{"type": "tool_result", "tool_use_id": "c", "content": "r"}],
    }
    histories: list[Request] = [
        parse_request(ChatRequest, {"model": "auto", "messages": [TURN, turn, result]}),
        parse_request(ResponsesRequest, {"model": "auto", "input": [TURN, item, output]}),
        parse_request(
            MessagesRequest,
            {
                "model": "auto",
                "max_tokens": 9,
                "messages": [TURN, {"role": "assistant", "content": [block]}, answered],
            },
        ),
    ]
    for request in histories:
        (call,) = request.wanted.conversation[1].calls
        assert (call.name, orjson.loads(call.arguments)) == (MADE_UP, read)


@pytest.mark.parametrize("form", ["[%s1]", '{"a": [%s1]}'])
def test_arguments_of_too_many_lists_are_kept_as_a_text(form: str) -> None:
    many = form % ("[]," * MAX_VALUES)
    few = form % ("[]," * (MAX_VALUES - 2) + '"[[[",')
    assert orjson.loads(arguments_object(many)) == {"arguments": many}
    assert orjson.loads(arguments_object(few)) in (
        orjson.loads(few),
        {"arguments": orjson.loads(few)},
    )


async def test_a_call_may_have_no_arguments_field_at_all() -> None:
    turns = [TURN, {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f"}}]}]
    async with serving() as served:
        reply = await served.chat(
            messages=[*turns, {"role": "tool", "tool_call_id": "c", "content": "r"}]
        )
    assert reply.status == 200


WRITTEN = [
    (["", ""], "{}"),
    (["nu", "ll"], "{}"),
    ([" ", "null", "\n"], "{}"),
    (["n", "o"], "no"),
    (["null", "able"], "nullable"),
    (['{"a"', ": 1}"], '{"a": 1}'),
    (["[1", "]"], "[1]"),
    (['{"a": '], '{"a": '),
]


@pytest.mark.parametrize(("pieces", "sent"), WRITTEN)
def test_a_call_without_arguments_is_written_with_an_empty_object(
    pieces: list[str], sent: str
) -> None:
    builder = DeltaBuilder("reasoning")
    begun = [*builder.add_event(Calling(0, "same", "f"))]
    for piece in pieces:
        begun += builder.add_event(Calling(0, arguments=piece))
    begun += builder.add_event(Calling(1, "same", "g", '{"b": 2}'))
    begun += builder.finish(solution(""))
    made = [delta.call for delta in begun if delta.call]
    assert "".join(each.arguments for each in made if each.index == 0) == sent
    assert "".join(each.arguments for each in made if each.index == 1) == '{"b": 2}'
    assert [each.index for each in made] == sorted(each.index for each in made)
    assert written_arguments(ToolCall("same", "f", "".join(pieces))) == (
        "{}" if sent == "{}" else "".join(pieces)
    )
    assert [*builder.finish(solution(""))] == []
    blocks = ContentBlocks()
    items = ResponseEvents("r")
    for delta in begun:
        blocks.add(delta)
    blocks.finish()
    for delta in (Delta({"content": "x"}), *begun, Delta({"content": "y"})):
        items.add(delta)
    items.close()
    content = blocks.content(cut=False)
    assert [(block["id"], block["name"], block["input"]) for block in content] == [
        ("same", "f", orjson.loads(arguments_object(sent))),
        ("same", "g", {"b": 2}),
    ]
    assert [item["arguments"] for item in items.output()[1:-1]] == [sent, '{"b": 2}']
    assert len({item["id"] for item in items.output()}) == 4


def test_a_call_that_was_cut_off_before_its_arguments_is_not_completed() -> None:
    builder = DeltaBuilder("reasoning")
    deltas = [*builder.add_event(Calling(0, "c", "f"))]
    assert deltas == [Delta(call=Calling(0, "c", "f"))]
    assert [*builder.finish(replace(solution(""), finish_reason="length"))] == []
    blocks = ContentBlocks()
    blocks.add(deltas[0])
    blocks.finish()
    assert [block["type"] for block in blocks.content(cut=True)] == ["text"]


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"a": 1}, '{"a":1}'),
        ([1], "[1]"),
        (0, "0"),
        (False, "false"),
        (None, ""),
        ("", ""),
        ("x", "x"),
    ],
)
def test_a_parser_may_give_the_arguments_as_a_value(given: Any, text: str) -> None:
    delta = {"tool_calls": [{"index": 0, "id": "c", "function": {"name": "f", "arguments": given}}]}
    reply = {"stream_state": {}, "chunk": {"choices": [{"delta": delta}]}}
    parsed = parsed_tokens(Call("large", "http://host", "write"), reply)
    assert parsed.pieces == (Calling(0, "c", "f", text),)


CACHED: Any = {"cache_control": {"type": "ephemeral", "ttl": "1h", "scope": "global", "any": [1]}}


async def test_cache_control_is_accepted_anywhere_without_effect() -> None:
    text = {"type": "text", "text": "What?", **CACHED}
    call = {
        "id": "c",
        "type": "function",
        "function": {"name": "f", "arguments": "", **CACHED},
        **CACHED,
    }
    tool = {"type": "function", "function": {"name": "f", **CACHED}, **CACHED}
    turns = [
        {"role": "user", "content": [text], **CACHED},
        {"role": "assistant", "tool_calls": [call], **CACHED},
        {"role": "tool", "tool_call_id": "c", "content": [text], **CACHED},
    ]
    item = {
        "role": "user",
        "content": [{"type": "input_text", "text": "What?", **CACHED}],
        **CACHED,
    }
    used: Any = {"type": "tool_use", "id": "c", "name": "f", "input": {}, **CACHED}
    result = {"type": "tool_result", "tool_use_id": "c", "content": [text], **CACHED}
    messages = [
        {"role": "user", "content": [text], **CACHED},
        {"role": "assistant", "content": [used]},
        {"role": "user", "content": [result]},
    ]
    body = {"model": "auto", "max_tokens": 99, "messages": messages, "system": [text], **CACHED}
    body |= {"thinking": {"type": "adaptive", **CACHED}, "metadata": {"user_id": "u", **CACHED}}
    body |= {
        "tools": [{"name": "f", "input_schema": {}, **CACHED}],
        "tool_choice": {"type": "none", **CACHED},
    }
    chat: dict[str, Any] = {"tools": [tool], "tool_choice": "none", "stream": True}
    chat |= {"response_format": {"type": "text", **CACHED}}
    chat |= {"stream_options": {"include_usage": True, **CACHED}, **CACHED}
    response = {
        "model": "auto",
        "input": [item],
        "reasoning": {"effort": "low", **CACHED},
        **CACHED,
    }
    response["text"] = {"format": {"type": "text", **CACHED}, **CACHED}
    async with serving() as served:
        echo = await served.post("/v1/responses", response)
        statuses = [
            (await served.chat(messages=turns, **chat)).status,
            echo.status,
            (await served.post("/v1/messages", body)).status,
        ]
        refused = await served.chat(stepspec=CACHED)
    assert statuses == [200] * 3
    assert echo.json["text"] == {"format": {"type": "text"}, "verbosity": None}
    assert refused.error["param"] == "stepspec.cache_control"


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
async def test_a_top_k_of_minus_one_samples_among_all_tokens(path: str) -> None:
    async with serving() as served:
        body = {"model": "auto", "messages": [TURN], "max_tokens": 99, "temperature": 0.5}
        replies = [await served.post(path, body | {"top_k": value}) for value in (-1, 0, 7, -2)]
        sent = [
            request.get("top_k") for at, request in served.small.requests if at == "/v1/completions"
        ]
    assert [reply.status for reply in replies] == [200, 200, 200, 400]
    assert set(sent) <= {None, 0, -1, 1, 7}
    assert 7 in sent


@pytest.mark.parametrize(
    "turn",
    [
        {"role": "assistant"},
        {"role": "assistant", "content": None},
        {"role": "assistant", "tool_calls": [], "annotations": [{"type": "url_citation"}]},
        {"role": "assistant", "content": None, "tool_calls": None, "function_call": None},
    ],
)
def test_an_earlier_answer_may_have_no_content(turn: dict[str, Any]) -> None:
    _, answer, _ = parse_request(
        ChatRequest, {"model": "auto", "messages": [TURN, turn, TURN]}
    ).wanted.conversation
    assert answer.content == ""


def test_the_result_of_a_call_may_name_its_tool_and_have_no_content() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    turns = [TURN, {"role": "assistant", "content": None, "tool_calls": [call]}]
    used: Any = {
        "type": "tool_use",
        "id": "c",
        "name": "f",
        "input": {},
        "caller": {"type": "direct"},
    }
    result = {"type": "tool_result", "tool_use_id": "c", "content": "r"}
    history = [
        TURN,
        {"role": "assistant", "content": [used]},
        {"role": "user", "content": [result]},
    ]
    for content in ("r", None):
        named = {"role": "tool", "tool_call_id": "c", "name": "f", "content": content}
        chat = parse_request(ChatRequest, {"model": "auto", "messages": [*turns, named]})
        assert chat.wanted.conversation[-1].content == (content or "")
    messages = parse_request(
        MessagesRequest, {"model": "auto", "max_tokens": 99, "messages": history}
    )
    assert messages.wanted.conversation[-1].content == "r"
