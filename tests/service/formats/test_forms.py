"""The forms in which clients send the same thing, in all three APIs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from stepspec.orchestrator.chain import Message
from stepspec.orchestrator.events import Calling
from stepspec.orchestrator.json_values import write_json
from stepspec.service.errors import ApiError
from stepspec.service.formats.chat import ChatRequest
from stepspec.service.formats.deltas import Delta
from stepspec.service.formats.messages import ContentBlocks, CountTokensRequest, MessagesRequest
from stepspec.service.formats.responses import ResponsesRequest
from stepspec.service.formats.schemas import Wanted, parse_json
from stepspec.service.formats.validation import parse_request

from ..served import SCRIPT, TURN, Behind, Reply, Served, passing, serving

CHAT = "/v1/chat/completions"
RESPONSES = "/v1/responses"
MESSAGES = "/v1/messages"
COUNT = "/v1/messages/count_tokens"
SCHEMAS: Mapping[str, Any] = {
    CHAT: ChatRequest,
    RESPONSES: ResponsesRequest,
    MESSAGES: MessagesRequest,
    COUNT: CountTokensRequest,
}
BODIES: Mapping[str, dict[str, Any]] = {
    CHAT: {"model": "auto", "messages": [TURN]},
    RESPONSES: {"model": "auto", "input": "x"},
    MESSAGES: {"model": "auto", "max_tokens": 100, "messages": [TURN]},
    COUNT: {"model": "auto", "messages": [TURN]},
}
ANTHROPIC = (MESSAGES, COUNT)
HEADER = "x-anthropic-billing-header: cc_version=2.1; cch=abc;"
NAME = {"name": "f"}
FUNCTION: dict[str, Any] = {"type": "function", "function": NAME}
FLAT: dict[str, Any] = {"type": "function", "name": "f", "parameters": {"type": "object"}}
CUSTOM: dict[str, Any] = {"type": "custom", "name": "p"}
TOOL: dict[str, Any] = {"name": "f", "input_schema": {"type": "object"}}
USE: dict[str, Any] = {"type": "tool_use", "id": "c", "name": "f", "input": {}}
RESULT: dict[str, Any] = {"type": "tool_result", "tool_use_id": "c", "content": "r"}
CALLED: dict[str, Any] = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
OUTPUT: dict[str, Any] = {"type": "function_call_output", "call_id": "c", "output": "r"}


def wanted(path: str, **fields: Any) -> Wanted:
    """Return what a body with these *fields* wants."""
    found: Wanted = parse_request(SCHEMAS[path], BODIES[path] | fields).wanted
    return found


def text(content: str, **fields: Any) -> dict[str, Any]:
    return {"type": "text", "text": content, **fields}


def after(*blocks: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a conversation with an earlier answer of *blocks*."""
    return [TURN, {"role": "assistant", "content": [*blocks]}, TURN]


# Fields without effect

ANTHROPIC_WITHOUT_EFFECT: list[dict[str, Any]] = [
    {"betas": ["context-1m-2025-08-07"]},
    {"anthropic_beta": [], "anthropic_version": "bedrock-2023-05-31"},
    {"mcp_servers": []},
    {"speed": "standard"},
    {"user_profile_id": "p", "workspace_id": "w"},
    {"context_management": {"edits": [{"type": "clear_thinking_20251015"}]}},
    {"thinking": {"type": "adaptive", "display": None, "block_binding": None}},
    {"output_config": {"task_budget": {"type": "tokens", "total": 20_000}}},
    {"output_config": {"effort": None, "format": None}},
    {"tool_choice": {"type": "auto", "name": None, "disable_parallel_tool_use": None}},
    {"cache_control": {"type": "ephemeral"}},
    {"system": [text("", citations=[], cache_control=None)]},
]
WITHOUT_EFFECT: list[tuple[str, dict[str, Any]]] = [
    (CHAT, {"stream_options": {}}),
    (CHAT, {"stream_options": {"include_usage": False}}),
    (CHAT, {"stream_options": {"include_usage": None}}),
    (CHAT, {"stream": True, "stream_options": {"include_usage": None}}),
    (CHAT, {"logits_processors": []}),
    (CHAT, {"moderation": {}}),
    (CHAT, {"audio": {}}),
    (CHAT, {"modalities": []}),
    (CHAT, {"verbosity": "low"}),
    (CHAT, {"verbosity": "high"}),
    (CHAT, {"structured_outputs": {}}),
    (CHAT, {"presence_penalty": -0.0}),
    (CHAT, {"length_penalty": 1.0}),
    (CHAT, {"top_k": 0.0}),
    (CHAT, {"top_logprobs": 0.0}),
    (CHAT, {"user": "x" * 500}),
    (CHAT, {"response_format": {"type": "text", "json_schema": None}}),
    (RESPONSES, {"stop": ""}),
    (RESPONSES, {"prompt": {}}),
    (RESPONSES, {"store": True}),
    (RESPONSES, {"max_tool_calls": 5}),
    (RESPONSES, {"context_management": []}),
    (RESPONSES, {"previous_response_id": ""}),
    (RESPONSES, {"previous_input_messages": []}),
    (RESPONSES, {"text": {"format": None, "verbosity": None}}),
    (RESPONSES, {"text": {"verbosity": "low"}}),
    (RESPONSES, {"text": {"format": {"type": "text"}, "verbosity": "high"}}),
    (RESPONSES, {"reasoning": {"effort": None, "summary": "auto"}}),
    (RESPONSES, {"reasoning": {"generate_summary": "concise"}}),
    (RESPONSES, {"reasoning": {"mode": "standard", "context": "auto"}}),
    (RESPONSES, {"include": ["web_search_call.action.sources"]}),
    (RESPONSES, {"include": ["code_interpreter_call.outputs", "file_search_call.results"]}),
    (RESPONSES, {"client_metadata": {"a": "b"}, "prompt_cache_key": "k"}),
    (MESSAGES, {"metadata": {"user_id": None}}),
    (MESSAGES, {"container": None}),
    (MESSAGES, {"inference_geo": "us"}),
    (MESSAGES, {"diagnostics": {"previous_message_id": None}}),
    (MESSAGES, {"fallbacks": "default"}),
    (MESSAGES, {"service_tier": "standard_only"}),
    *[(path, fields) for path in ANTHROPIC for fields in ANTHROPIC_WITHOUT_EFFECT],
]


@pytest.mark.parametrize(("path", "fields"), WITHOUT_EFFECT)
def test_what_has_no_effect_is_accepted(path: str, fields: dict[str, Any]) -> None:
    assert wanted(path, **fields) == wanted(path)


TOOLS: list[tuple[str, dict[str, Any]]] = [
    (CHAT, {"function": NAME}),
    (CHAT, {"type": None, "function": NAME}),
    (CHAT, {**FUNCTION, "cache_control": {"type": "ephemeral"}}),
    (CHAT, {"type": "function", "function": {**NAME, "defer_loading": True, "strict": None}}),
    (CHAT, {"type": "function", "function": {**NAME, "description": None, "parameters": None}}),
    (RESPONSES, {"type": "function", "name": "f", "parameters": None, "strict": None}),
    (RESPONSES, {"type": "function", "name": "f", "output_schema": {"type": "string"}}),
    (RESPONSES, {"type": "function", "name": "f", "allowed_callers": ["direct"], "async": False}),
    (RESPONSES, {"type": "function", "name": "f", "return": None, "defer_loading": None}),
]


@pytest.mark.parametrize(("path", "tool"), TOOLS)
def test_the_forms_of_a_tool(path: str, tool: dict[str, Any]) -> None:
    (found,) = wanted(path, tools=[tool]).tools.tools
    assert (found.name, found.description, found.parameters, found.strict) == ("f", *[None] * 3)


@pytest.mark.parametrize("fields", [{"allowed_callers": None}, {"async": False}, {"format": None}])
def test_the_forms_of_a_custom_tool(fields: dict[str, Any]) -> None:
    assert wanted(RESPONSES, tools=[{**CUSTOM, **fields}]) == wanted(RESPONSES, tools=[CUSTOM])


@pytest.mark.parametrize("path", ANTHROPIC)
@pytest.mark.parametrize(
    "fields",
    [
        {"type": None, "description": None, "strict": None, "defer_loading": None},
        {"type": "custom", "allowed_callers": ["direct"], "input_examples": [{"a": 1}]},
        {"eager_input_streaming": True, "cache_control": None},
    ],
)
def test_the_forms_of_a_tool_of_anthropics(path: str, fields: dict[str, Any]) -> None:
    assert wanted(path, tools=[{**TOOL, **fields}]) == wanted(path, tools=[TOOL])


def test_a_choice_may_leave_its_type_out() -> None:
    tools = wanted(CHAT, tools=[FUNCTION], tool_choice={"function": NAME}).tools
    assert (tools.choice, tools.forced) == ("f", "f")


@pytest.mark.parametrize(
    ("call", "output"),
    [
        ({}, {"namespace": None, "name": "f"}),
        ({"async": False}, {"caller": {"type": "direct"}}),
        ({"status": None, "id": None, "arguments": ""}, {"status": None}),
        ({"arguments": {}}, {"output": ["r"]}),
        ({"arguments": None}, {"output": [{"type": "input_text", "text": "r"}]}),
    ],
)
def test_the_forms_of_a_call_of_codex(call: dict[str, Any], output: dict[str, Any]) -> None:
    forms = wanted(RESPONSES, input=[TURN, CALLED | call, OUTPUT | output])
    assert forms == wanted(RESPONSES, input=[TURN, CALLED, OUTPUT])


def test_a_result_may_repeat_the_namespace_of_its_call() -> None:
    items = [TURN, {**CALLED, "namespace": "n"}, {**OUTPUT, "namespace": "n"}]
    _, answer, result = wanted(RESPONSES, input=items).conversation
    assert (answer.calls[0].name, result.content) == ("n__f", "r")


@pytest.mark.parametrize(
    ("call", "result"),
    [
        ({"input": None}, {"is_error": None, "cache_control": None}),
        ({"caller": {"type": "direct"}, "toolset_name": None}, {"toolset_name": None}),
        ({"toolset_name": "t"}, {"content": [text("r", citations=None)]}),
    ],
)
def test_the_forms_of_a_call_of_anthropics(call: dict[str, Any], result: dict[str, Any]) -> None:
    for path in ANTHROPIC:
        forms, plain = [
            wanted(
                path,
                messages=[
                    TURN,
                    {"role": "assistant", "content": [used]},
                    {"role": "user", "content": [got]},
                ],
            )
            for used, got in ((USE | call, RESULT | result), (USE, RESULT))
        ]
        assert forms == plain


@pytest.mark.parametrize(
    "call",
    [
        {"id": "c", "function": {"name": "f"}},
        {"id": "c", "type": None, "function": {"name": "f", "arguments": None}},
        {"id": "c", "index": 0, "type": "function", "function": {"name": "f", "arguments": ""}},
        {"id": "c", "function": {"name": "f", "arguments": {}}},
    ],
)
def test_the_forms_of_a_call_of_a_chat(call: dict[str, Any]) -> None:
    turns = [TURN, {"role": "assistant", "tool_calls": [call]}]
    result = {"role": "tool", "tool_call_id": "c", "content": None}
    _, answer, _ = wanted(CHAT, messages=[*turns, result]).conversation
    assert [(each.name, each.arguments) for each in answer.calls] == [("f", "{}")]


SERVER = "the service runs no tools"
ADDITION: dict[str, Any] = {"role": "system", "content": [{"type": "tool_addition", "tool": {}}]}
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    (CHAT, {"messages": [{"role": "user", "content": [{"text": "a"}]}]}, "type is missing"),
    (CHAT, {"tools": [{"type": "custom", "custom": NAME}]}, "tools of the type function"),
    (CHAT, {"max_tokens": 1.5}, "valid integer"),
    (CHAT, {"max_tokens": "100"}, "valid integer"),
    (CHAT, {"max_tokens": True}, "valid integer"),
    (CHAT, {"tool_choice": {"type": "allowed_tools"}}, "tools of the type function"),
    (RESPONSES, {"tool_choice": {"type": "allowed_tools"}}, "tools of the type function"),
    (RESPONSES, {"tools": [{"type": "local_shell"}]}, SERVER),
    (RESPONSES, {"tools": [{"type": "web_search"}]}, SERVER),
    (RESPONSES, {"tools": [{"type": "tool_search"}]}, SERVER),
    (RESPONSES, {"tools": [{"type": "image_generation"}]}, SERVER),
    (RESPONSES, {"include": ["message.output_text.logprobs"]}, "reasoning.encrypted_content"),
    (RESPONSES, {"input": [TURN, {"type": "local_shell_call", "id": "l"}]}, "runs no tools"),
    (RESPONSES, {"input": [TURN, {"type": "web_search_call", "id": "w"}]}, "runs no tools"),
    *[
        (path, fields, words)
        for path in ANTHROPIC
        for fields, words in (
            ({"mcp_servers": [{"type": "url", "url": "u", "name": "n"}]}, "mcp_servers"),
            ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, SERVER),
            ({"tools": [{"type": "mcp_toolset", "mcp_server_name": "x"}]}, SERVER),
            ({"messages": after({"type": "server_tool_use", "id": "s"})}, SERVER),
            ({"messages": after({"type": "web_search_tool_result"})}, SERVER),
            ({"messages": after({"type": "document", "source": {}})}, "text only"),
            ({"messages": after({"type": "search_result", "source": "s"})}, "text only"),
            ({"messages": [TURN, ADDITION]}, "text only"),
        )
    ],
]


@pytest.mark.parametrize(("path", "fields", "words"), REFUSED)
def test_what_no_method_has_is_refused_clearly(
    path: str, fields: dict[str, Any], words: str
) -> None:
    with pytest.raises(ApiError) as caught:
        wanted(path, **fields)
    assert caught.value.status == 400
    assert words in caught.value.message


# Texts

SYSTEM: list[tuple[Any, str]] = [
    ([HEADER, "A"], "A"),
    ([f"{HEADER}\nA", "B"], "A\nB"),
    (["A", f"{HEADER}\nB"], "A\nB"),
    (["A", HEADER, "B"], "A\nB"),
    ([text(HEADER), text("A", cache_control={"type": "ephemeral"})], "A"),
    ([text("A"), {"type": "input_text", "text": "B"}], "A\nB"),
    (f"{HEADER}\nA\nB", "A\nB"),
    (HEADER, ""),
    ([], ""),
]


@pytest.mark.parametrize("role", ["system", "developer"])
@pytest.mark.parametrize(("content", "shown"), SYSTEM)
def test_no_part_of_a_system_message_keeps_a_billing_header(
    role: str, content: Any, shown: str
) -> None:
    turns = [{"role": role, "content": content}, TURN]
    for path, name in ((CHAT, "messages"), (RESPONSES, "input")):
        assert wanted(path, **{name: turns}).conversation[0] == Message("system", shown)


def test_instructions_keep_no_billing_header() -> None:
    first = wanted(RESPONSES, instructions=f"{HEADER}\nA").conversation[0]
    assert first == Message("system", "A")


def test_a_user_may_quote_a_billing_header() -> None:
    turns = [{"role": "user", "content": HEADER}]
    assert wanted(CHAT, messages=turns).conversation == (Message("user", HEADER),)


@pytest.mark.parametrize("path", ANTHROPIC)
@pytest.mark.parametrize(
    ("blocks", "shown"),
    [
        ([text(""), text("a")], "a"),
        ([text("a"), text(""), text("b")], "a\nb"),
        ([{"type": "redacted_thinking", "data": "x"}, text("a")], "a"),
        ([{"type": "redacted_thinking", "data": "x"}], ""),
        ([], ""),
    ],
)
def test_empty_blocks_of_an_answer_add_no_line(path: str, blocks: list[Any], shown: str) -> None:
    assert wanted(path, messages=after(*blocks)).conversation[1].content == shown


@pytest.mark.parametrize("path", ANTHROPIC)
@pytest.mark.parametrize(
    "fields", [{"clear_at": "never"}, {"clear_at": None}, {"output_config": {"effort": "low"}}]
)
def test_a_system_message_may_have_hints(path: str, fields: dict[str, Any]) -> None:
    plain = {"role": "system", "content": [text("A")]}
    assert wanted(path, messages=[TURN, plain | fields]) == wanted(path, messages=[TURN, plain])


def test_a_reference_to_a_tool_is_its_name_in_a_chat() -> None:
    parts: list[Any] = ["see", {"type": "tool_reference", "name": "look"}]
    turns = [{"role": "user", "content": parts}]
    assert wanted(CHAT, messages=turns).conversation[0].content == "see\nlook"


HALF = "a\ud83d"
WHOLE = "a\ufffd"


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (CHAT, {"messages": [{"role": "user", "content": HALF}]}),
        (CHAT, {"messages": [{"role": "user", "content": [HALF]}]}),
        (CHAT, {"messages": [{"role": "user", "content": [text(HALF)]}]}),
        (RESPONSES, {"input": HALF}),
        (RESPONSES, {"input": [{"role": "user", "content": HALF}]}),
        (MESSAGES, {"messages": [{"role": "user", "content": HALF}]}),
        (COUNT, {"messages": [{"role": "user", "content": [text(HALF)]}]}),
    ],
)
def test_the_models_read_half_of_a_pair_as_a_replacement(path: str, fields: Any) -> None:
    assert wanted(path, **fields).conversation == (Message("user", WHOLE),)


def test_no_text_that_the_models_read_has_half_of_a_pair() -> None:
    call = {"id": "c", "function": {"name": HALF, "arguments": f'{{"x": "{HALF}"}}'}}
    answer = {"role": "assistant", "content": HALF, "reasoning": HALF, "tool_calls": [call]}
    result = {"role": "tool", "tool_call_id": "c", "content": HALF, "name": HALF}
    tool = {"function": {"name": "f", "description": HALF}}
    found = wanted(CHAT, messages=[TURN, answer, result], tools=[tool])
    _, said, got = found.conversation
    assert (said.content, said.reasoning, got.content, got.name) == (WHOLE,) * 4
    assert (said.calls[0].name, said.calls[0].arguments) == (WHOLE, f'{{"x": "{WHOLE}"}}')
    assert found.tools.tools[0].description == WHOLE


# JSON values

VALUES = [
    "1.0",
    "1e2",
    "-0.0",
    "1e22",
    "0.10000000000000000555",
    "9007199254740993",
    "9007199254740993.0",
    "-9223372036854775809",
    "18446744073709551616",
    "1e999",
    "-1e999",
    "1e-999",
    "7" * 5000,
    "0." + "3" * 400,
    '"\\ud83d"',
    '"\\udc00x"',
    '"\\u0000"',
    '"\\u2028"',
    '{"":[null,true,{}]}',
    "[" * 100 + "]" * 100,
]


def spelt(text: str) -> Any:
    """Read JSON with its numbers as they are spelt, but for the spelling of the same float."""

    def number(spelling: str) -> Any:
        plain = repr(float(spelling))
        return float(spelling) if len(spelling) <= len(plain) and "inf" not in plain else spelling

    return json.loads(text, parse_float=number, parse_int=str)


@pytest.mark.parametrize("value", VALUES)
def test_values_of_a_history_and_of_schemas_come_out_as_they_went_in(value: str) -> None:
    use = f'{{"type":"tool_use","id":"c","name":"f","input":{{"v":{value}}}}}'
    turns = f'{{"role":"user","content":"x"}},{{"role":"assistant","content":[{use}]}}'
    body = (
        f'{{"model":"auto","max_tokens":9,"messages":[{turns},{json.dumps(TURN)}],'
        f'"tools":[{{"name":"f","input_schema":{{"const":{value}}}}}]}}'
    )
    found = parse_request(MessagesRequest, parse_json(body.encode())).wanted
    (call,) = found.conversation[1].calls
    assert spelt(call.arguments) == spelt(f'{{"v":{value}}}')
    assert spelt(found.tools.tools[0].parameters or "") == spelt(f'{{"const":{value}}}')


@pytest.mark.parametrize("value", VALUES)
def test_values_of_a_call_come_out_as_the_model_wrote_them(value: str) -> None:
    arguments = f'{{"v": {value}}}'
    blocks = ContentBlocks()
    blocks.add(Delta(call=Calling(0, "c", "f", arguments)))
    blocks.finish()
    written = write_json(blocks.content(cut=False)[0]["input"]).decode()
    assert spelt(written) == spelt(arguments)


async def test_values_of_a_forwarded_body_come_out_as_they_went_in() -> None:
    behind = Behind()
    async with passing(behind) as served:
        for path in BODIES:
            for value in VALUES:
                body = f'{{"model":"large:huge","messages":[],"x":[{value}]}}'
                reply = await served.post(path, body.encode())
                assert reply.status == 200
                sent = behind.got[-1][2].decode()
                assert spelt(sent) == spelt(body.replace("large:huge", "huge"))


@pytest.mark.parametrize(
    ("path", "name", "limit"),
    [
        (CHAT, "max_tokens", "100.0"),
        (CHAT, "max_completion_tokens", "1e2"),
        (RESPONSES, "max_output_tokens", "1E2"),
        (MESSAGES, "max_tokens", "100.0"),
    ],
)
def test_a_whole_number_may_be_spelt_as_a_float(path: str, name: str, limit: str) -> None:
    """JSON knows one kind of number, and some languages write it so."""
    fields = parse_json(f'{{"{name}": {limit}}}'.encode())
    assert wanted(path, **fields).tokens == 100


@pytest.mark.parametrize("sign", ["", "-"])
def test_a_number_beyond_all_floats_is_no_whole_number(sign: str) -> None:
    for name in ("max_tokens", "seed", "top_k"):
        with pytest.raises(ApiError, match="valid integer"):
            wanted(CHAT, **parse_json(f'{{"{name}": {sign}1e999}}'.encode()))


def test_a_body_may_begin_with_a_byte_order_mark() -> None:
    assert parse_json(b'\xef\xbb\xbf{"a": 1}') == {"a": 1}


# Answers


def content_of(path: str, reply: Reply, *, stream: bool) -> str:
    """Join the text of the answer in *reply*, without its thinking."""
    if path == CHAT:
        whole = "" if stream else reply.message["content"]
        return reply.joined("content") if stream else whole
    if not stream:
        parts = reply.json["content" if path == MESSAGES else "output"]
        texts = [part for part in parts if part["type"] in ("text", "message")]
        return "".join(part.get("text") or part["content"][0]["text"] for part in texts)
    lines = [line for line in reply.body.decode().split("\n") if line.startswith("data: {")]
    events = [json.loads(line.removeprefix("data: ")) for line in lines]
    if path == RESPONSES:
        kind = "response.output_text.delta"
        return "".join(event["delta"] for event in events if event["type"] == kind)
    deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
    return "".join(delta.get("text", "") for delta in deltas)


async def answers(served: Served, **fields: Any) -> set[str]:
    """Return all different texts of the answer in three APIs, streamed and not."""
    found: set[str] = set()
    for path in (CHAT, RESPONSES, MESSAGES):
        for stream in (False, True):
            reply = await served.post(path, BODIES[path] | fields | {"stream": stream})
            assert reply.status == 200
            found.add(content_of(path, reply, stream=stream))
    return found


@pytest.mark.parametrize(
    ("written", "content"),
    [
        (("\n\n", "    return", " x", "\n"), "    return x\n"),
        (("\n\n", "\n", "x"), "x"),
        (("\n\n\n\n", "\tx", "\t\n"), "\tx\t\n"),
        ((" x", " "), " x "),
        (("\n\n", "x\r\n"), "x\r\n"),
        (("\n\n", "\u3000x\u00a0"), "\u3000x\u00a0"),
        (("\n\n", "```\n  a\n```\n"), "```\n  a\n```\n"),
        (("\n\n", "x", "\n", " ", "\n\n"), "x\n \n\n"),
        ((" ", "\n"), " \n"),
        (("\n\n",), ""),
    ],
)
async def test_white_space_is_the_same_in_all_apis(written: tuple[str, ...], content: str) -> None:
    async with serving(script=(*SCRIPT[:8], *written)) as served:
        assert await answers(served) == {content}
        assert await answers(served, model="large") == {content}


@pytest.mark.parametrize("value", ["1e999", '"\\ud83d"', "7" * 5000, "1.0", "[" * 100 + "]" * 100])
async def test_any_json_is_an_answer_in_all_apis(value: str) -> None:
    content = f'{{"x": {value}}}'
    schema = {"type": "object"}
    formats: dict[str, dict[str, Any]] = {
        CHAT: {
            "response_format": {"type": "json_schema", "json_schema": NAME | {"schema": schema}}
        },
        RESPONSES: {"text": {"format": {"type": "json_schema", "name": "n", "schema": schema}}},
        MESSAGES: {
            "max_tokens": 20_000,
            "output_config": {"format": {"type": "json_schema", "schema": schema}},
        },
    }
    async with serving(script=(*SCRIPT[:8], "\n\n", content)) as served:
        for path, fields in formats.items():
            for stream in (False, True):
                reply = await served.post(path, BODIES[path] | fields | {"stream": stream})
                assert content_of(path, reply, stream=stream) == content


@pytest.mark.parametrize("limit", [1, 2, 3, 8])
async def test_tiny_limits_cut_the_answer_in_all_apis(limit: int) -> None:
    cut = {"chat.completion": "length", "response": "incomplete", "message": "max_tokens"}
    names = ((CHAT, "max_completion_tokens"), (RESPONSES, "max_output_tokens"))
    async with serving() as served:
        for method in ("specreason", "large", "small"):
            for path, name in (*names, (MESSAGES, "max_tokens")):
                fields = BODIES[path] | {"model": method, name: limit}
                reply = (await served.post(path, fields)).json
                kind = reply.get("object") or reply["type"]
                reason = reply.get("stop_reason") or reply.get("status")
                reason = reason or reply["choices"][0]["finish_reason"]
                usage = reply["usage"]
                written = usage.get("completion_tokens") or usage["output_tokens"]
                assert (reason, written) == (cut[kind], limit)


@pytest.mark.parametrize("size", [4076, 4090, 4096, 5000])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_problem_without_room_is_too_long_in_all_apis(size: int, stream: bool) -> None:
    """The server's room is 4096 tokens, one for each character."""
    turns = {"messages": [{"role": "user", "content": "x" * size}]}
    async with serving() as served:
        for path in (CHAT, RESPONSES, MESSAGES):
            asked = {"input": "x" * size} if path == RESPONSES else turns
            for method in ("auto", "large", "small"):
                fields = asked | {"model": method, "stream": stream}
                reply = await served.post(path, BODIES[path] | fields)
                assert reply.status == 400
                details = reply.error.get("details", {})
                code = reply.error.get("code") or details["error_code"]
                assert code == "context_length_exceeded"
