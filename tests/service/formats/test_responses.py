"""The newer API, through the OpenAI SDK and in its own words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.responses import ResponseFunctionToolCall

from stepspec.orchestrator.chain import Message, ToolCall
from stepspec.service.errors import ApiError
from stepspec.service.formats.responses import ResponsesRequest
from stepspec.service.formats.validation import parse_request

from ...stand_in import Refuse
from ..http.test_api_errors import RESOLVER
from ..served import ANSWER, SCRIPT, THINKING, serving
from .test_sdk import client

PROBLEM = "What is 1 + 1?"


async def test_a_response_has_its_thinking_and_its_answer_as_items() -> None:
    async with serving() as served, client(served) as sdk:
        made = await sdk.responses.create(
            model="auto",
            input=PROBLEM,
            instructions="Be brief.",
        )
    assert (made.status, made.output_text, made.id) == (
        "completed",
        ANSWER,
        f"resp_{served.recorded.requests[0].id}",
    )
    thinking, message = made.output
    assert thinking.type == "reasoning"
    assert thinking.content is not None
    assert thinking.content[0].text == THINKING
    assert message.type == "message"
    assert made.usage is not None
    assert (made.usage.output_tokens, made.usage.output_tokens_details.reasoning_tokens) == (12, 8)
    extra = made.model_extra or {}
    assert (len(extra["steps"]), extra["ledger"]["small"]["kept"], extra["stepspec"]["answer"]) == (
        3,
        8,
        "2",
    )


async def test_a_stream_has_the_same_content_in_numbered_events() -> None:
    async with serving() as served, client(served) as sdk:
        events = [
            event
            async for event in await sdk.responses.create(
                model="auto",
                input=PROBLEM,
                stream=True,
            )
        ]
        async with sdk.responses.stream(model="auto", input=PROBLEM) as helped:
            full = await helped.get_final_response()
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type.removeprefix("response.") for event in events]
    assert kinds == [
        *("created", "in_progress", "output_item.added", "content_part.added"),
        *["reasoning_text.delta"] * 3,
        *(
            "reasoning_text.done",
            "content_part.done",
            "output_item.done",
            "output_item.added",
            "content_part.added",
        ),
        *["output_text.delta"] * kinds.count("output_text.delta"),
        *("output_text.done", "content_part.done", "output_item.done", "completed"),
    ]
    deltas = [event for event in events if event.type == "response.reasoning_text.delta"]
    assert "".join(event.delta for event in deltas) == THINKING
    assert [(event.model_extra or {})["stepspec"]["author"] for event in deltas] == ["small"] * 3
    assert (
        "".join(event.delta for event in events if event.type == "response.output_text.delta")
        == ANSWER
    )
    assert events[-1].type == "response.completed"
    assert [item.type for item in events[-1].response.output] == ["reasoning", "message"]
    assert full.output_text == ANSWER


async def test_a_conversation_continues_with_the_returned_items() -> None:
    async with serving() as served, client(served) as sdk:
        first = await sdk.responses.create(model="auto", input=PROBLEM)
        items: Any = [
            {"role": "user", "content": PROBLEM},
            *first.output,
            {"role": "user", "content": "And then?"},
        ]
        second = await sdk.responses.create(model="auto", input=items)
    assert second.output_text == ANSWER
    assert second.usage is not None
    assert first.usage is not None
    assert second.usage.input_tokens > first.usage.input_tokens


def test_items_are_accepted_as_the_sdk_dumps_them() -> None:
    call = ResponseFunctionToolCall(
        type="function_call", call_id="c", name="f", arguments="{}"
    ).model_dump()
    output = {
        "type": "function_call_output",
        "call_id": "c",
        "output": "1",
        "namespace": None,
        "caller": None,
    }
    body = {"model": "auto", "input": [{"role": "user", "content": PROBLEM}, call, output]}
    assert len(RESOLVER.runs(parse_request(ResponsesRequest, body))) == 1


def called(number: str) -> dict[str, Any]:
    return {"type": "function_call", "call_id": f"c{number}", "name": "f", "arguments": "{}"}


def one_by_one(items: Sequence[dict[str, Any]]) -> list[Message]:
    """The messages of *items*, of which each of an answer is added to it at once."""
    made = list[Message]()
    answer = Message("assistant", "")
    for item in items:
        match item:
            case {"type": "reasoning"}:
                thought = "".join(part["text"] for part in item["content"] or ())
                answer = replace(answer, reasoning=answer.reasoning + thought)
            case {"type": "function_call"}:
                answer = replace(
                    answer, calls=(*answer.calls, ToolCall(item["call_id"], "f", "{}"))
                )
            case {"role": "assistant"}:
                text = item["content"]
                texts = [part for part in (answer.content, text) if part]
                answer = replace(answer, content="\n".join(texts))
            case _:
                made += [answer] if answer.content or answer.calls else []
                answer = Message("assistant", "")
                user = Message("user", item.get("content", ""))
                made.append(
                    Message("tool", item["output"], call_id=item["call_id"])
                    if "output" in item
                    else user
                )
    return made + ([answer] if answer.content or answer.calls else [])


SHORT = ("", "a", "b\n")
ITEMS: list[dict[str, Any]] = [
    *({"role": role, "content": text} for role in ("user", "assistant") for text in SHORT),
    *(
        {"type": "reasoning", "content": [{"type": "reasoning_text", "text": text}] * 2}
        for text in SHORT
    ),
    {"type": "reasoning", "content": []},
    {"type": "reasoning", "content": None},
    *({"type": "function_call_output", "call_id": "c1", "output": text} for text in SHORT),
    *map(called, "12"),
]


@given(st.lists(st.sampled_from(ITEMS), min_size=1, max_size=12))
def test_the_items_of_an_answer_are_one_message(items: list[dict[str, Any]]) -> None:
    request = parse_request(ResponsesRequest, {"model": "auto", "input": items})
    assert [*request.wanted.conversation] == one_by_one(items)


def test_an_answer_of_many_items_is_joined_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made = list[Message]()
    init = Message.__init__

    def counting(self: Message, *args: Any, **fields: Any) -> None:
        made.append(self)
        init(self, *args, **fields)

    monkeypatch.setattr(Message, "__init__", counting)
    items = [
        {"role": "assistant", "content": "a"},
        called("1"),
        {"role": "user", "content": "b"},
    ] * 2
    many = [each for each in items for _ in range(50)]
    assert (
        len(parse_request(ResponsesRequest, {"model": "auto", "input": many}).wanted.conversation)
        == 102
    )
    assert len(made) <= len(many) + 2 * 102  # one for each item, and one for each answer


async def test_json_and_budgets_and_effort_are_as_in_a_chat() -> None:
    script = (*SCRIPT[:8], "\n\n", '{"x":', " 2}")
    form: Any = {"format": {"type": "json_schema", "name": "x", "schema": {"type": "object"}}}
    async with serving(script=script) as served, client(served) as sdk:
        made = await sdk.responses.create(
            model="auto", input=PROBLEM, text=form, temperature=0.5, metadata={"a": "b"}
        )
        cut = await sdk.responses.create(
            model="auto",
            input=PROBLEM,
            max_output_tokens=8,
            reasoning={"effort": "low"},
            store=False,
        )
        schemas = [
            body.get("structured_outputs")
            for path, body in served.large.requests
            if path == "/v1/completions"
        ]
    assert (made.output_text, made.temperature, made.metadata) == ('{"x": 2}', 0.5, {"a": "b"})
    assert {"json": {"type": "object"}} in schemas
    assert cut.status == "incomplete"
    assert cut.incomplete_details is not None
    assert cut.incomplete_details.reason == "max_output_tokens"
    assert [item.to_dict()["status"] for item in cut.output][-1] == "incomplete"
    assert cut.usage is not None
    assert cut.usage.to_dict()["input_tokens_details"] == {
        "cached_tokens": 0,
        "cache_write_tokens": 0,
    }


IMAGE = {"type": "input_image", "image_url": "data:"}


async def test_what_a_load_generator_sends_has_no_effect() -> None:
    forced: dict[str, Any] = {"ignore_eos": True, "min_tokens": 64, "stop": None}
    body = {"model": "auto", "input": PROBLEM, "max_output_tokens": 64, "temperature": 0}
    async with serving() as served:
        plain = await served.post("/v1/responses", body)
        forced_reply = await served.post("/v1/responses", body | forced)
    assert (forced_reply.status, forced_reply.json["status"]) == (200, "completed")
    assert forced_reply.json["output"][1]["content"] == plain.json["output"][1]["content"]
    assert forced_reply.json["usage"] == plain.json["usage"]


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"input": [{"role": "assistant", "content": "x"}]}, "input", "end with"),
        ({"input": [{"type": "web_search_call"}]}, "input[0]", "tools of the type function"),
        (
            {"input": [{"type": "function_call", "name": "f", "arguments": "{}"}]},
            "input[0].call_id",
            "missing",
        ),
        (
            {"input": [{"type": "function_call_output", "call_id": "c", "output": "1"}]},
            "input",
            "no message before it",
        ),
        ({"input": [{"type": "banana"}]}, "input[0]", "reasoning, or a call"),
        ({"input": [{"type": "item_reference", "id": "m"}]}, "input[0]", "send the whole item"),
        ({"input": [{"id": "m"}]}, "input[0]", "send the whole item"),
        (
            {"input": [{"role": "user", "content": [IMAGE]}]},
            "input[0].content[0].type",
            "read text only",
        ),
        ({"input": [{"role": "user"}]}, "input[0].content", "missing"),
        (
            {"text": {"format": {"type": "json_schema", "name": "x"}}},
            "text.format.schema",
            "missing",
        ),
        ({"reasoning_effort": "low"}, "reasoning_effort", "called reasoning"),
        ({"max_output_tokens": 0}, "max_output_tokens", "greater than or equal to 1"),
        ({"previous_response_id": "r"}, "previous_response_id", "send the whole conversation"),
        ({"reasoning": {"effort": "none"}}, "reasoning.effort", "always thinks"),
        ({"max_tokens": 5}, "max_tokens", "max_output_tokens"),
        ({"stop": ["x"]}, "stop", "leave it out"),
    ],
)
def test_unsupported_fields_are_named(fields: dict[str, Any], param: str, words: str) -> None:
    with pytest.raises(ApiError) as caught:
        RESOLVER.runs(
            parse_request(ResponsesRequest, {"model": "auto", "input": PROBLEM, **fields})
        )
    assert (caught.value.status, caught.value.param) == (400, param)
    assert words in caught.value.message


async def test_a_failure_has_its_status_or_ends_the_stream() -> None:
    async with serving(policy="large") as served, client(served, max_retries=0) as sdk:
        served.large.faults.extend([None] + [Refuse(500, "dead")] * 99)
        extra = {"stepspec": {"ahead": 0}}
        late = await sdk.responses.create(
            model="auto", input=PROBLEM, stream=True, extra_body=extra
        )
        events = [event async for event in late]
        last = events[-1]
        assert last.type == "response.failed"
        assert last.response.error is not None
        assert "dead" in last.response.error.message
        assert (last.response.status, last.response.error.code) == ("failed", "server_error")
        assert [event.sequence_number for event in events] == [*range(len(events))]
        states = [
            (
                item.type,
                getattr(
                    item,
                    "status",
                    None,
                ),
            )
            for item in last.response.output
        ]
        assert states == [("reasoning", "incomplete")]
        assert events[-2].type == "response.output_item.done"
        assert {event.response.id for event in events if event.type == "response.created"} == {
            last.response.id
        }
        with pytest.raises(openai.InternalServerError, match="dead"):
            await sdk.responses.create(model="auto", input=PROBLEM)
