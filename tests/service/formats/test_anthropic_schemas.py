"""
Requests of Anthropic's API: what they mean for a run, and the errors that name a field and its
cure.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from stepspec.orchestrator.budget import Budget
from stepspec.orchestrator.chain import Message, Tool, ToolCall, Toolset
from stepspec.service.errors import ApiError
from stepspec.service.formats.messages import CountTokensRequest, MessagesRequest
from stepspec.service.formats.requests import RunRequest
from stepspec.service.formats.validation import parse_request
from stepspec.service.settings import ServiceSettings

from ..http.test_api_errors import OFFER, RESOLVER
from ..served import TURN

ASKED = {"model": "auto", "max_tokens": 400, "messages": [TURN]}
TEXT = {"type": "text", "text": "x"}
CALL = {"type": "tool_use", "id": "c1", "name": "look_up", "input": {"word": "é"}}
RESULT = {"type": "tool_result", "tool_use_id": "c1", "content": "two"}
TOOL = {"name": "look_up", "description": "Look a word up.", "input_schema": {"type": "object"}}
SCHEMA = {"format": {"type": "json_schema", "schema": {"type": "object"}}}


def ordered(**fields: Any) -> RunRequest:
    return RESOLVER.runs(parse_request(MessagesRequest, {**ASKED, **fields}))[0]


def blocks(*content: Any, role: str = "user") -> dict[str, Any]:
    return {"messages": [{"role": role, "content": [*content]}]}


WRONG: list[tuple[dict[str, Any], str, str]] = [
    ({"max_tokens": None}, "max_tokens", "missing"),
    ({"messages": [TURN, {"role": "tool", "content": "2"}]}, "messages[1]", "'assistant'"),
    ({"messages": [{"role": "user"}]}, "messages[0].content", "missing"),
    ({"messages": [{**TURN, "contents": 5}]}, "messages[0].contents", "/openapi.json lists all"),
    (blocks(), "messages[0].content", "at least 1"),
    (blocks(TEXT, {"type": "image", "source": {}}), "messages[0].content[1]", "read text only"),
    (
        blocks({"type": "thinking", "thinking": ""}),
        "messages[0].content[0]",
        "a message of the assistant",
    ),
    (blocks(RESULT, role="assistant"), "messages[0].content[0]", "a message of the user"),
    (blocks(CALL), "messages[0].content[0]", "a message of the assistant"),
    (
        blocks({**RESULT, "content": [{"type": "image"}]}),
        "messages[0].content[0].content[0].type",
        "read text only",
    ),
    (blocks(RESULT), "messages", "which no message before it makes"),
    (
        {"tools": [{"type": "web_search_20250305", "name": "web_search"}]},
        "tools[0].type",
        "tools with an input_schema",
    ),
    ({"tools": [{**TOOL, "parameters": {}}]}, "tools[0].parameters", "unknown parameter"),
    ({"tools": [TOOL], "tool_choice": "auto"}, "tool_choice", "an object"),
    ({"tools": [TOOL], "tool_choice": {"type": "tool"}}, "tool_choice.name", "missing"),
    (
        {"tools": [TOOL], "tool_choice": {"type": "tool", "name": "look_op"}},
        "tool_choice",
        "did you mean 'look_up'",
    ),
    (blocks({"text": "x"}), "messages[0].content[0]", "'type'"),
    (blocks({**TEXT, "texts": "x"}), "messages[0].content[0].texts", "/openapi.json lists all"),
    (blocks({**TEXT, "citations": [{}]}), "messages[0].content[0].citations", "leave it out"),
    (
        blocks({"type": "server_tool_use"}, role="assistant"),
        "messages[0].content[0]",
        "runs no tools",
    ),
    ({"system": [{"type": "image"}]}, "system[0].type", "read text only"),
    ({"thinking": {"type": "between_tools"}}, "thinking.type", "'adaptive'"),
    (
        {"thinking": {"type": "enabled", "budget_tokens": 400}},
        "thinking.budget_tokens",
        "less than max_tokens",
    ),
    ({"output_config": {"effort": "none"}}, "output_config.effort", "always thinks"),
    ({"output_config": {"format": {"type": "xml"}}}, "output_config.format.type", "json_schema"),
    ({"stop_sequences": ["a", "b", "c", "d", "e"]}, "stop_sequences", "at most 4"),
    ({"container": "c"}, "container", "by its own name"),
    ({"speed": "fast"}, "speed", "'standard'"),
    ({"stop": ["x"]}, "stop", "called stop_sequences"),
    ({"reasoning_effort": "low"}, "reasoning_effort", "called output_config"),
    ({"user": "x"}, "user", "called metadata"),
    ({"instructions": "x"}, "instructions", "called system"),
    ({"seed": 5}, "seed", "unknown parameter"),
]


@pytest.mark.parametrize(("fields", "param", "words"), WRONG)
def test_an_error_names_the_field_and_the_cure(
    fields: dict[str, Any], param: str, words: str
) -> None:
    with pytest.raises(ApiError) as caught:
        ordered(**fields)
    assert (caught.value.status, caught.value.param) == (400, param)
    assert words in caught.value.message
    assert param.encode() in caught.value.anthropic_body("r")


NEUTRAL: list[dict[str, Any]] = [
    {
        "system": None,
        "stop_sequences": None,
        "stream": None,
        "temperature": None,
        "metadata": None,
        "thinking": None,
    },
    {
        "tools": [],
        "mcp_servers": [],
        "container": None,
        "anything": None,
        "speed": "standard",
        "service_tier": "auto",
    },
    {
        "service_tier": "standard_only",
        "cache_control": {"type": "ephemeral"},
        "metadata": {"user_id": None},
    },
    {"context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}},
    {"context_management": {"edits": []}, "output_config": {}},
    {"system": "", "stepspec": None},
    {"system": [], "stop_sequences": []},
    {"thinking": {"type": "adaptive"}},
]


@pytest.mark.parametrize("fields", NEUTRAL)
def test_fields_with_a_neutral_value_change_nothing(fields: dict[str, Any]) -> None:
    plain = ordered()
    other = ordered(**fields)
    seed = plain.run.sampling.seed
    assert (
        replace(
            other, run=other.run.model_copy(update={"sampling": other.run.sampling.with_seed(seed)})
        )
        == plain
    )


@pytest.mark.parametrize(
    ("fields", "budget"),
    [
        ({}, Budget(400)),
        ({"max_tokens": 5000}, Budget(1000)),
        ({"thinking": {"type": "enabled", "budget_tokens": 120}}, Budget(400, answer=280)),
        ({"thinking": {"type": "enabled", "budget_tokens": 399}}, Budget(400)),
        ({"thinking": {"type": "disabled"}}, Budget(400, answer=400 - 18)),
        ({"output_config": {"effort": "low"}}, Budget(400, answer=400 - 75)),
        ({"output_config": {"effort": "max"}}, Budget(400)),
        (
            {
                "output_config": {"effort": "low"},
                "thinking": {"type": "enabled", "budget_tokens": 60},
            },
            Budget(400, answer=340),
        ),
        ({"stepspec": {"budget": {"answer": 30}}}, Budget(400, answer=30)),
        ({"stepspec": {"budget": {"steps": 3, "seconds": 9.5}}}, Budget(400, 3, 9.5)),
        ({"max_tokens": 2, "thinking": {"type": "disabled"}}, Budget(2, answer=1)),
        (
            {"max_tokens": 5000, "thinking": {"type": "enabled", "budget_tokens": 4000}},
            Budget(1000),
        ),
    ],
)
def test_only_the_thinking_is_limited_further(fields: dict[str, Any], budget: Budget) -> None:
    assert ordered(**fields).run.budget == budget


def test_the_fields_of_a_request_are_those_of_its_run() -> None:
    schema = {"type": "object", "properties": {"schema": {"type": "string"}}}
    order = ordered(
        temperature=0.5,
        top_p=0.9,
        top_k=7,
        stop_sequences=["a", "b"],
        output_config={"format": {"type": "json_schema", "schema": schema}},
        stepspec={"options": {"threshold": 8}, "ahead": 2},
    )
    sampling = order.run.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.5, 0.9, 7)
    assert (order.wanted.stops, order.wanted.format) == (["a", "b"], schema)
    assert (order.run.options["threshold"], order.run.ahead, order.run.policy) == (
        8,
        2,
        OFFER.defaults.policy,
    )


def test_the_system_is_a_message_unless_it_is_empty() -> None:
    roles = [
        [message.role for message in ordered(system=system).wanted.conversation]
        for system in (None, "", [], "x", [TEXT])
    ]
    assert roles == [["user"]] * 3 + [["system", "user"]] * 2


def test_calls_and_their_results_are_messages_in_their_order() -> None:
    turns = [
        TURN,
        {
            "role": "assistant",
            "content": [{"type": "thinking", "thinking": "Hm.", "signature": ""}, TEXT, CALL],
        },
        {
            "role": "assistant",
            "content": [{**CALL, "id": "c2", "caller": None, "cache_control": None}],
        },
        {
            "role": "user",
            "content": [
                RESULT,
                {
                    **RESULT,
                    "tool_use_id": "c2",
                    "is_error": True,
                    "content": [TEXT, {"type": "text", "text": "y"}],
                },
                {"type": "text", "text": "Go"},
                {"type": "text", "text": "on."},
            ],
        },
    ]
    calls = tuple(ToolCall(name, "look_up", '{"word":"é"}') for name in ("c1", "c2"))
    request = parse_request(MessagesRequest, {**ASKED, "messages": turns})
    assert replace(RESOLVER, settings=ServiceSettings()).runs(request)[0].wanted.conversation[
        1:
    ] == (
        Message("assistant", "x", calls, reasoning="Hm."),
        Message("tool", "two", call_id="c1"),
        Message("tool", "Error: x\ny", call_id="c2"),
        Message("user", "Go\non."),
    )


def test_a_result_may_be_empty() -> None:
    turns = [
        TURN,
        {"role": "assistant", "content": [CALL]},
        {"role": "user", "content": [{**RESULT, "content": None}]},
    ]
    assert ordered(messages=turns).wanted.conversation[-1] == Message("tool", "", call_id="c1")


@pytest.mark.parametrize(
    ("choice", "name", "parallel"),
    [
        (None, "auto", True),
        ({"type": "auto"}, "auto", True),
        ({"type": "none"}, "none", True),
        ({"type": "any", "disable_parallel_tool_use": True}, "required", False),
        ({"type": "tool", "name": "look_up", "disable_parallel_tool_use": False}, "look_up", True),
    ],
)
def test_tools_and_their_choice(choice: Any, name: str, parallel: bool) -> None:
    hints = {
        "type": "custom",
        "strict": True,
        "cache_control": {"type": "ephemeral"},
        "defer_loading": False,
    }
    more = {
        "eager_input_streaming": True,
        "input_examples": [{"word": "x"}],
        "allowed_callers": ["direct"],
    }
    tools = [TOOL, {**TOOL, **hints, **more, "name": "other", "description": None}]
    schema = '{"type":"object"}'
    looked = Tool("look_up", "Look a word up.", schema)
    other = Tool("other", None, schema, strict=True)
    expected = Toolset((looked, other), name, parallel, named=name == "look_up")
    assert ordered(tools=tools, tool_choice=choice).wanted.tools == expected


@pytest.mark.parametrize("field", ["max_tokens", "stepspec", "stream"])
def test_a_request_to_count_has_no_fields_about_writing(field: str) -> None:
    with pytest.raises(ApiError) as caught:
        parse_request(CountTokensRequest, {"model": "auto", "messages": [TURN], field: 5})
    assert caught.value.param == field
