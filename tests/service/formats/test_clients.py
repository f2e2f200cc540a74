"""What Claude Code, Codex, gateways and SDKs send."""

from __future__ import annotations

import json
from typing import Any

import pytest

from stepspec.orchestrator.chain import Message
from stepspec.orchestrator.events import Calling
from stepspec.service.errors import ApiError
from stepspec.service.formats.chat import ChatRequest
from stepspec.service.formats.defaults import DEFAULTS
from stepspec.service.formats.deltas import Delta
from stepspec.service.formats.messages import CountTokensRequest, MessagesRequest
from stepspec.service.formats.responses import ResponseEvents, ResponsesRequest, custom_input
from stepspec.service.formats.validation import parse_request

from ...stand_in import Refuse
from ..served import SCRIPT, TURN, Behind, passing, serving

LARGE = 1500000000000000000000
HEADER = "x-anthropic-billing-header: cc_version=2.1; cch=abc;"
CHAT: dict[str, Any] = {"model": "auto", "messages": [TURN]}
ANSWERED: dict[str, Any] = {"model": "auto", "input": "x"}
MESSAGE: dict[str, Any] = {"model": "auto", "max_tokens": 100, "messages": [TURN]}


def chat(**fields: Any) -> ChatRequest:
    return parse_request(ChatRequest, CHAT | fields)


def response(**fields: Any) -> ResponsesRequest:
    return parse_request(ResponsesRequest, ANSWERED | fields)


def message(**fields: Any) -> MessagesRequest:
    return parse_request(MessagesRequest, MESSAGE | fields)


def system(*texts: str) -> dict[str, Any]:
    return {"role": "system", "content": [{"type": "text", "text": text} for text in texts]}


# One token


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/chat/completions", {"max_tokens": 1}),
        ("/v1/chat/completions", {"max_completion_tokens": 1, "reasoning_effort": "low"}),
        ("/v1/chat/completions", {"max_tokens": 1, "stepspec": {"answer": "method"}}),
        ("/v1/chat/completions", {"max_tokens": 1, "response_format": {"type": "json_object"}}),
        ("/v1/responses", {"max_output_tokens": 1}),
        ("/v1/responses", {"max_output_tokens": 1, "reasoning": {"effort": "high"}}),
        ("/v1/messages", {"max_tokens": 1}),
        ("/v1/messages", {"max_tokens": 1, "thinking": {"type": "disabled"}}),
        ("/v1/messages", {"max_tokens": 1, "output_config": {"effort": "low"}}),
    ],
)
async def test_one_token_is_an_answer_that_was_cut(path: str, fields: dict[str, Any]) -> None:
    bodies = {"/v1/chat/completions": CHAT, "/v1/responses": ANSWERED, "/v1/messages": MESSAGE}
    async with serving() as served:
        whole = await served.post(path, bodies[path] | fields)
        stream = await served.post(path, bodies[path] | fields | {"stream": True})
    assert (whole.status, stream.status) == (200, 200)
    assert whole.json["stepspec"]["finish_reason"] == "length"
    usage = whole.json["usage"]
    assert usage.get("completion_tokens", usage.get("output_tokens")) == 1
    assert b'"finish_reason":"length"' in stream.body


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("method", ["specreason", "large", "auto"])
async def test_a_problem_for_which_nothing_was_written_is_too_long(
    method: str, stream: bool
) -> None:
    """The server says that there is room, and refuses the problem all the same."""
    refused = "This model's maximum context length is 10 tokens, however you requested 50."
    async with serving() as served:
        for server in (served.small, served.large):
            server.faults.extend([Refuse(400, refused)] * 99)
        chatted = await served.chat(method=method, stream=stream)
        answered = await served.post("/v1/responses", ANSWERED | {"stream": stream})
        said = await served.post("/v1/messages", MESSAGE | {"stream": stream})
    assert [each.status for each in (chatted, answered, said)] == [400] * 3
    assert chatted.error["code"] == answered.error["code"] == "context_length_exceeded"
    assert said.error["details"] == {"error_code": "context_length_exceeded"}


# White space and JSON of answers


@pytest.mark.parametrize(
    ("written", "content"),
    [
        (("\n\n", "    return", " x", "\n"), "    return x\n"),
        (("\n\n", "\tx", "\t\n", "\n"), "\tx\t\n\n"),
        (("  ", "x", "  "), "  x  "),
        (("\n", "x", "\n\n"), "x\n\n"),
    ],
)
async def test_an_answer_keeps_its_white_space(written: tuple[str, ...], content: str) -> None:
    async with serving(script=(*SCRIPT[:8], *written)) as served:
        whole = await served.chat()
        stream = await served.chat(stream=True)
        answered = await served.post("/v1/responses", ANSWERED)
        said = await served.post("/v1/messages", MESSAGE)
    assert whole.message["content"] == stream.joined("content") == content
    assert answered.json["output"][-1]["content"][0]["text"] == content
    assert said.json["content"][-1]["text"] == content


@pytest.mark.parametrize("value", ['"\\ud83d"', "1e999", str(LARGE), "[-1e-999]"])
async def test_any_json_is_an_answer_in_a_format(value: str) -> None:
    text = f'{{"x": {value}}}'
    async with serving(script=(*SCRIPT[:8], "\n\n", text)) as served:
        whole = await served.chat(response_format={"type": "json_object"})
    assert (whole.status, whole.message["content"]) == (200, text)


@pytest.mark.parametrize("value", ['"\\ud83d"', "1e999", str(LARGE), "0.12345678901234567890"])
async def test_json_of_a_request_comes_out_as_it_went_in(value: str) -> None:
    """In a schema, and in the answer that repeats the request's tools."""
    schema = f'{{"type":"object","properties":{{"x":{{"const":{value}}}}}}}'
    tools = f'[{{"type":"function","name":"f","parameters":{schema}}}]'
    body = f'{{"model":"auto","input":"x","tool_choice":"none","tools":{tools}}}'
    async with serving() as served:
        reply = await served.post("/v1/responses", body.encode())
    assert reply.status == 200
    assert schema.encode() in reply.body


async def test_a_forwarded_body_that_is_rewritten_keeps_its_json() -> None:
    values = '[1500000000000000000000,1e999,"\\ud83d",0.12345678901234567890]'
    body = f'{{"model":"large:huge","messages":[],"x":{values}}}'
    behind = Behind()
    async with passing(behind) as served:
        reply = await served.post("/v1/chat/completions", body.encode())
    assert reply.status == 200
    assert behind.got[0][2].decode() == body.replace("large:huge", "huge")


def test_arguments_of_a_history_come_out_as_they_went_in() -> None:
    block = {"type": "tool_use", "id": "c", "name": "f", "input": {"n": LARGE, "s": "\ud83d"}}
    result = {"type": "tool_result", "tool_use_id": "c", "content": "r"}
    turns = [
        TURN,
        {"role": "assistant", "content": [block]},
        {"role": "user", "content": [result]},
    ]
    (call,) = message(messages=turns).wanted.conversation[1].calls
    assert call.arguments == f'{{"n":{LARGE},"s":"\\ud83d"}}'


# Parts of a text


PARTS: list[tuple[list[Any], str]] = [
    (["a", "b"], "a\nb"),
    ([{"type": "input_text", "text": "a"}, "b"], "a\nb"),
    ([{"type": "output_text", "text": "a", "annotations": [], "logprobs": []}], "a"),
    ([{"type": "refusal", "refusal": "no"}], "no"),
    ([{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "a"}], "hm\na"),
    ([{"type": "text", "text": None}, "a"], "a"),
    ([], ""),
]


@pytest.mark.parametrize(("content", "text"), PARTS)
def test_parts_of_a_text_are_joined(content: list[Any], text: str) -> None:
    turns = [TURN, {"role": "assistant", "content": content}, TURN]
    assert chat(messages=turns).wanted.conversation[1].content == text
    assert [each.content for each in response(input=turns).wanted.conversation][1:-1] == (
        [text] if text else []
    )


def test_a_refusal_is_what_the_assistant_said() -> None:
    turn = {"role": "assistant", "content": None, "refusal": "I cannot."}
    assert chat(messages=[TURN, turn, TURN]).wanted.conversation[1].content == "I cannot."


def test_null_counts_as_left_out_everywhere() -> None:
    turn = {**TURN, "weight": None, "content": [{"type": "text", "text": "a", "extra": None}]}
    assert chat(messages=[turn]).wanted.conversation == (Message("user", "a"),)


# Values without effect


@pytest.mark.parametrize("name", DEFAULTS)
def test_the_default_of_a_parameter_that_no_method_has_is_accepted(name: str) -> None:
    plain = chat()
    values: list[Any] = [DEFAULTS[name], [], {}, ""]
    for value in values:
        if name not in ChatRequest.model_fields:
            assert chat(**{name: value}) == plain
    other = {"number": 7, "text": "other"}
    if name not in ChatRequest.model_fields:
        with pytest.raises(ApiError):
            chat(**{name: other})


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (ChatRequest, "openai.chat_completion.protocol.ChatCompletionRequest"),
        (ResponsesRequest, "openai.responses.protocol.ResponsesRequest"),
        (MessagesRequest, "anthropic.protocol.AnthropicMessagesRequest"),
        (CountTokensRequest, "anthropic.protocol.AnthropicCountTokensRequest"),
    ],
)
def test_every_default_of_vllm_is_accepted(ours: Any, theirs: str) -> None:
    pytest.importorskip("vllm")
    module, _, name = f"vllm.entrypoints.{theirs}".rpartition(".")
    fields = getattr(pytest.importorskip(module), name).model_fields
    body = {ChatRequest: CHAT, ResponsesRequest: ANSWERED}.get(ours, MESSAGE)
    body = {key: body[key] for key in body if key in ours.model_fields}
    for key, field in fields.items():
        if field.is_required() or key == "request_id":  # drawn at random
            continue
        default = field.get_default(call_default_factory=True)
        parse_request(ours, {**body, key: default} if key not in body else body)


@pytest.mark.parametrize("tier", ["auto", "default", "flex", "priority"])
def test_a_service_tier_has_no_effect(tier: str) -> None:
    assert chat(service_tier=tier).wanted == chat().wanted
    assert response(service_tier=tier).wanted == response().wanted


# Codex

READ = {"type": "function", "name": "read", "parameters": {"type": "object"}}
PATCH = {
    "type": "custom",
    "name": "apply_patch",
    "description": "Change files.",
    "format": {"type": "grammar", "syntax": "lark", "definition": "start: /.+/"},
}
FILES = {"type": "namespace", "name": "files", "description": "Files.", "tools": [READ, PATCH]}


def test_tools_of_a_namespace_are_flat_and_a_custom_tool_has_one_text() -> None:
    wanted = response(tools=[FILES, PATCH], client_metadata={"a": "b"}).wanted
    assert [tool.name for tool in wanted.tools.tools] == [
        "files__read",
        "files__apply_patch",
        "apply_patch",
    ]
    schema = json.loads(wanted.tools.tools[2].parameters or "")
    assert (schema["required"], schema["properties"]["input"]["type"]) == (["input"], "string")


@pytest.mark.parametrize(
    ("choice", "name"),
    [
        ({"type": "function", "name": "read"}, "files__read"),
        ({"type": "function", "name": "files__read"}, "files__read"),
        ({"type": "custom", "name": "apply_patch"}, "apply_patch"),
    ],
)
def test_a_tool_is_chosen_with_or_without_its_namespace(choice: Any, name: str) -> None:
    assert response(tools=[FILES, PATCH], tool_choice=choice).wanted.tools.choice == name


def test_calls_of_a_history_have_their_namespace_and_their_text() -> None:
    call = {"type": "function_call", "call_id": "c", "namespace": "files", "name": "read"}
    custom = {"type": "custom_tool_call", "call_id": "d", "name": "apply_patch", "input": 'a"\n'}
    results = [
        {"type": "function_call_output", "call_id": "c", "output": "1"},
        {"type": "custom_tool_call_output", "call_id": "d", "output": ["2"]},
    ]
    turns = response(input=[TURN, {**call, "arguments": "{}"}, custom, *results])
    _, answer, *tools = turns.wanted.conversation
    assert [(each.name, each.arguments) for each in answer.calls] == [
        ("files__read", "{}"),
        ("apply_patch", '{"input":"a\\"\\n"}'),
    ]
    assert [(each.call_id, each.content) for each in tools] == [("c", "1"), ("d", "2")]


def test_calls_of_an_answer_have_the_names_that_the_client_knows() -> None:
    events = ResponseEvents("r", response(tools=[FILES, PATCH]).flat_tools)
    pieces = [
        Calling(0, "c", "files__read"),
        Calling(0, arguments="{}"),
        Calling(1, "d", "apply_patch", '{"input": "a'),
        Calling(1, arguments='\\n"}'),
        Calling(2, "e", "made_up", "{}"),
    ]
    stream = b"".join([events.add(Delta(call=piece)) for piece in pieces]) + events.close()
    read, patch, other = events.output()
    assert (read["type"], read["namespace"], read["name"]) == ("function_call", "files", "read")
    assert (patch["type"], patch["input"]) == ("custom_tool_call", "a\n")
    assert "arguments" not in patch
    assert (other["type"], other["name"]) == ("function_call", "made_up")
    assert b"event: response.custom_tool_call_input.done" in stream
    assert stream.count(b"response.function_call_arguments.delta\n") == 2


def test_a_custom_call_that_was_cut_off_is_lost() -> None:
    events = ResponseEvents("r", response(tools=[PATCH]).flat_tools)
    events.add(Delta(call=Calling(0, "d", "apply_patch", '{"input": "a')))
    events.close("incomplete")
    assert events.output(cut=True) == []


@pytest.mark.parametrize(
    ("arguments", "text"),
    [('{"input": "a\\nb"}', "a\nb"), ("bare", "bare"), ('{"other": 1}', '{"other": 1}')],
)
def test_the_text_of_a_custom_call(arguments: str, text: str) -> None:
    assert custom_input(arguments) == text


def test_a_function_may_describe_its_result() -> None:
    function = {"name": "f", "parameters": {"type": "object"}, "return": {"type": "string"}}
    (tool,) = chat(tools=[{"type": "function", "function": function}]).wanted.tools.tools
    assert tool.name == "f"


# Claude Code


@pytest.mark.parametrize(
    ("fields", "conversation"),
    [
        ({"system": "A", "messages": [system("B"), TURN]}, [("system", "A\nB"), "user"]),
        ({"system": [{"type": "text", "text": HEADER}]}, ["user"]),
        ({"system": f"{HEADER}\nA"}, [("system", "A"), "user"]),
        ({"messages": [TURN, system(HEADER, "B")]}, ["user", ("system", "B")]),
        ({"messages": [TURN, system(HEADER), TURN]}, ["user"]),
        ({"messages": [TURN, {"role": "system", "content": HEADER}]}, ["user"]),
    ],
)
def test_system_messages_are_joined_without_billing_headers(
    fields: dict[str, Any], conversation: list[Any]
) -> None:
    turns = message(**fields).wanted.conversation
    shown = [(turn.role, turn.content) if turn.role == "system" else turn.role for turn in turns]
    assert shown == conversation


def test_a_billing_header_is_no_part_of_a_chat() -> None:
    turns = [{"role": "system", "content": f"{HEADER}\nA"}, TURN]
    assert chat(messages=turns).wanted.conversation[0] == Message("system", "A")


def test_a_reference_to_a_tool_is_its_name_in_a_result() -> None:
    reference = {"type": "tool_reference", "tool_name": "look"}
    block: dict[str, Any] = {"type": "tool_use", "id": "c", "name": "search", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "c", "content": [reference]}
    turns: list[Any] = [
        TURN,
        {"role": "assistant", "content": [block]},
        {"role": "user", "content": [result]},
    ]
    assert message(messages=turns).wanted.conversation[-1].content == "look"


@pytest.mark.parametrize("display", ["summarized", "omitted", "updates"])
def test_the_display_of_thinking_is_accepted(display: str) -> None:
    assert message(thinking={"type": "adaptive", "display": display}).wanted == message().wanted
