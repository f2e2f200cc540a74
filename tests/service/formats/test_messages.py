"""Anthropic's Messages API, through its SDK and in its own words."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import anthropic
import orjson
import pytest
from anthropic import AsyncAnthropic
from anthropic.types import MessageDeltaUsage
from pydantic import BaseModel

from stepspec.orchestrator.errors import EndpointUnavailable
from stepspec.orchestrator.events import Answering, Calling
from stepspec.service.formats.deltas import Delta, DeltaBuilder
from stepspec.service.formats.messages import ContentBlocks

from ...evals.scripted import solution
from ...stand_in import Refuse
from ...stand_in import tools as stand_in_tools
from ..served import ANSWER, SCRIPT, THINKING, Reply, Served, chosen, down, serving, until

PROBLEM: Any = [{"role": "user", "content": "What is 1 + 1?"}]
ASKED: Any = {"model": "auto", "max_tokens": 400, "messages": PROBLEM}
PATH = "/v1/messages"
COUNT = "/v1/messages/count_tokens"


@asynccontextmanager
async def client(served: Served, key: str = "k", **settings: Any) -> AsyncGenerator[AsyncAnthropic]:
    async with AsyncAnthropic(base_url=served.base, api_key=key, **settings) as made:
        yield made


async def ask(served: Served, path: str = PATH, **fields: Any) -> Reply:
    return await served.post(path, {**ASKED, **fields})


def events(reply: Reply) -> list[dict[str, Any]]:
    """The events of a stream, each of which has its own type as its name."""
    found: list[dict[str, Any]] = []
    for line in reply.lines:
        name, data = line.removeprefix("event: ").split("\ndata: ")
        found.append(orjson.loads(data))
        assert found[-1]["type"] == name
    return found


def conversations(served: Served) -> list[list[dict[str, str]]]:
    """
    The conversations that the large model's server has rendered, but for those that its template is
    learnt from.
    """
    every = [body["messages"] for _, body in served.large.requests if "messages" in body]
    return [each for each in every if not each[0]["content"].startswith("stepspec")]


async def test_a_message_has_its_thinking_and_its_answer_as_blocks() -> None:
    async with serving() as served, client(served) as sdk:
        made = await sdk.messages.create(**ASKED)
    thinking, text = made.content
    assert thinking.type == "thinking"
    assert (thinking.thinking, bool(thinking.signature)) == (THINKING, True)
    assert text.type == "text"
    assert text.text == ANSWER
    assert (made.role, made.model, made.stop_reason, made.stop_sequence) == (
        "assistant",
        "auto",
        "end_turn",
        None,
    )
    assert made.id == f"msg_{served.recorded.requests[0].id}"
    # The SDK tells the id so.
    request_id = made._request_id  # pyright: ignore[reportPrivateUsage]
    assert request_id == served.recorded.requests[0].id
    assert made.usage.output_tokens == 12
    assert made.usage.output_tokens_details is not None
    assert made.usage.output_tokens_details.thinking_tokens == 8
    extra = made.model_extra or {}
    assert (len(extra["steps"]), extra["ledger"]["small"]["kept"], extra["stepspec"]["answer"]) == (
        3,
        8,
        "2",
    )


async def test_a_stream_has_each_verified_step_as_one_delta() -> None:
    async with serving() as served, client(served) as sdk:
        found = events(await ask(served, stream=True))
        async with sdk.messages.stream(**ASKED) as helped:
            kinds = {event.type async for event in helped}
            full = await helped.get_final_message()
        whole = (await ask(served)).json
    names = [event["type"] for event in found]
    assert names == [
        *("message_start", "ping", "content_block_start"),
        *["content_block_delta"] * 4,
        *("content_block_stop", "content_block_start"),
        *["content_block_delta"] * (len(names) - 12),
        *("content_block_stop", "message_delta", "message_stop"),
    ]
    deltas = [event["delta"] for event in found if event["type"] == "content_block_delta"]
    thoughts = [delta["thinking"] for delta in deltas if delta["type"] == "thinking_delta"]
    assert ("".join(thoughts), len(thoughts)) == (THINKING, 3)
    assert [delta["type"] for delta in deltas[:4]] == ["thinking_delta"] * 3 + ["signature_delta"]
    assert "".join(delta["text"] for delta in deltas if delta["type"] == "text_delta") == ANSWER
    assert [
        event["stepspec"]["author"] for event in found if "stepspec" in event and "index" in event
    ] == ["small"] * 3
    indices = [event["index"] for event in found if "index" in event]
    assert indices == sorted(indices)
    start = found[0]["message"]
    last = found[-2]
    assert (start["content"], start["stop_reason"], start["usage"]["output_tokens"]) == (
        [],
        None,
        0,
    )
    assert last["delta"] == {"stop_reason": "end_turn", "stop_sequence": None}
    assert last["usage"] | {"service_tier": "standard"} == whole["usage"]
    assert last["usage"].keys() <= MessageDeltaUsage.model_fields.keys()
    assert (len(last["steps"]), last["stepspec"]["answer"]) == (3, "2")
    assert [block.to_dict() for block in full.content] == whole["content"]
    assert full.usage.output_tokens == whole["usage"]["output_tokens"]
    assert {"thinking", "signature", "text"} <= kinds


async def test_a_conversation_continues_with_the_returned_message_and_its_tokens_are_counted() -> (
    None
):
    async with serving() as served, client(served) as sdk:
        short = await sdk.messages.count_tokens(model="auto", messages=PROBLEM)
        system = await sdk.messages.count_tokens(
            model="specreason", messages=PROBLEM, system="Be brief."
        )
        async with sdk.messages.stream(**ASKED) as helped:
            first = await helped.get_final_message()
        turns: Any = [
            *PROBLEM,
            {"role": "assistant", "content": first.content},
            {"role": "user", "content": "And?"},
        ]
        second = await sdk.messages.create(**ASKED | {"messages": turns})
        counted = await sdk.messages.count_tokens(
            model="auto", messages=turns, thinking={"type": "adaptive"}
        )
    assert [block.to_dict() for block in second.content] == [
        block.to_dict() for block in first.content
    ]
    assert (
        second.usage.input_tokens + (second.usage.cache_read_input_tokens or 0)
        == counted.input_tokens
    )
    assert (
        first.usage.input_tokens + (first.usage.cache_read_input_tokens or 0) == short.input_tokens
    )
    assert short.input_tokens < min(system.input_tokens, counted.input_tokens)


async def test_the_models_read_the_whole_conversation() -> None:
    blocks = [
        {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral", "ttl": "1h"}},
        {"type": "text", "text": "x-anthropic-billing-header: cch=123"},
        {"type": "text", "text": "Be kind."},
    ]
    thought = [
        {"type": "thinking", "thinking": "Hm.", "signature": "from elsewhere"},
        {"type": "redacted_thinking", "data": "xyz"},
        {"type": "text", "text": "Two.", "citations": None},
    ]
    turns = [
        {
            "role": "user",
            "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}],
        },
        {"role": "user", "content": "three"},
        {"role": "assistant", "content": thought},
        {"role": "system", "content": "Now hurry."},
        {"role": "user", "content": "four"},
    ]
    async with serving() as served:
        reply = await ask(served, messages=turns, system=blocks)
        read = conversations(served)[-1]
    assert reply.status == 200
    assert read == [
        {"role": "system", "content": "Be brief.\nBe kind."},
        {"role": "user", "content": "one\ntwo\nthree"},
        {"role": "assistant", "content": "Two.", "reasoning": "Hm."},
        {"role": "system", "content": "Now hurry."},
        {"role": "user", "content": "four"},
    ]


async def test_hidden_thinking_is_limited_or_left_out() -> None:
    choices: list[dict[str, Any]] = [
        {"thinking": {"type": "adaptive"}},
        {"thinking": {"type": "enabled", "budget_tokens": 300, "display": "summarized"}},
        {"thinking": {"type": "disabled"}},
        {"thinking": {"type": "adaptive", "display": "omitted"}},
        {"stepspec": {"thinking": "none"}},
        {"thinking": {"type": "disabled"}, "stepspec": {"thinking": "both"}},
        {"stepspec": {"thinking": "content"}},
    ]
    async with serving() as served:
        shown = [(await ask(served, **fields)).json for fields in choices]
        hidden = events(await ask(served, stream=True, thinking={"type": "disabled"}))
    kinds = [[block["type"] for block in made["content"]] for made in shown]
    assert kinds == [["thinking", "text"]] * 2 + [["text"]] * 3 + [["thinking", "text"], ["text"]]
    assert shown[-1]["content"][0]["text"] == f"<think>\n{THINKING}\n</think>\n\n{ANSWER}"
    assert shown[2]["content"][0]["text"] == ANSWER
    assert {
        event["delta"]["type"] for event in hidden if event["type"] == "content_block_delta"
    } == {"text_delta"}
    assert all(made["stepspec"]["method"] == "specreason" for made in shown)


async def test_an_answer_says_why_it_ended() -> None:
    async with serving() as served:
        whole = (await ask(served)).json
        cut = (await ask(served, max_tokens=8)).json
        stopped = (await ask(served, stop_sequences=["nothing", "boxed", "is"])).json
        streamed = events(await ask(served, stop_sequences=["\\boxed"], stream=True))
        method = (
            await ask(
                served,
                stop_sequences=["\\boxed"],
                stepspec={"answer": "method"},
            )
        ).json
    assert (whole["stop_reason"], whole["stop_sequence"]) == ("end_turn", None)
    assert (cut["stop_reason"], cut["stop_sequence"]) == ("max_tokens", None)
    assert (stopped["stop_reason"], stopped["stop_sequence"]) == ("stop_sequence", "is")
    assert stopped["content"][-1]["text"] == "It "
    assert streamed[-2]["delta"] == {"stop_reason": "stop_sequence", "stop_sequence": "\\boxed"}
    assert (method["stop_reason"], method["stop_sequence"]) == ("stop_sequence", "\\boxed")
    assert method["content"][-1]["text"].strip() == "It is"


async def test_an_answer_without_text_has_a_block_for_clients_that_read_the_first() -> None:
    async with serving(script=(*SCRIPT[:8], "STOP", "more")) as served:
        fields: Any = {"stop_sequences": ["STOP"], "thinking": {"type": "disabled"}}
        reply = await ask(served, **fields)
        streamed = events(await ask(served, stream=True, **fields))
    assert reply.json["content"] == [{"type": "text", "text": ""}]
    assert [event["type"] for event in streamed][2:4] == [
        "content_block_start",
        "content_block_stop",
    ]


async def test_the_answer_may_be_json_of_a_schema() -> None:
    class Count(BaseModel):
        x: int

    async with (
        serving(script=(*SCRIPT[:8], "\n\n", '{"x":', " 2}")) as served,
        client(served) as sdk,
    ):
        made = await sdk.messages.parse(**ASKED, output_format=Count)
        schemas = [
            body.get("structured_outputs")
            for path, body in served.large.requests
            if path == "/v1/completions"
        ]
    assert made.parsed_output == Count(x=2)
    assert [schema["json"]["properties"]["x"]["type"] for schema in schemas if schema] == [
        "integer"
    ]


async def test_an_idle_stream_gets_pings() -> None:
    async with serving(chosen(keep_alive=0.05)) as served, client(served) as sdk:
        served.small.gate = asyncio.Semaphore(0)
        async with served.http.post(served.base + PATH, json={**ASKED, "stream": True}) as reply:
            lines = [await reply.content.readuntil(b"\n\n") for _ in range(4)]
        served.small.gate = None
        assert len([event async for event in await sdk.messages.create(**ASKED, stream=True)]) > 5
    assert [line.split(b"\n")[0] for line in lines] == [
        b"event: message_start",
        *[b"event: ping"] * 3,
    ]


async def test_a_count_that_fails_has_its_status(monkeypatch: pytest.MonkeyPatch) -> None:
    async def failing(*_: object) -> int:
        raise EndpointUnavailable("no connection")

    async with serving() as served, client(served, max_retries=0) as sdk:
        monkeypatch.setattr(served.service.context.offer.engine.large, "call", failing)
        with pytest.raises(anthropic.ServiceUnavailableError, match="no connection") as failed:
            await sdk.messages.count_tokens(model="auto", messages=PROBLEM)
    assert failed.value.type == "overloaded_error"
    assert served.recorded.failures == []
    assert served.service.context.admission.running == 0


async def test_each_status_has_its_own_error_with_the_reason() -> None:
    settings = chosen(keys=("k",), max_running=1, max_waiting=0, max_body_bytes=5000)
    async with (
        serving(settings) as served,
        client(served, max_retries=0) as sdk,
        client(served, "x") as stranger,
    ):
        create = sdk.messages.create
        image: Any = {"type": "image", "source": {"type": "url", "url": "http://x"}}
        turns: Any = [{"role": "user", "content": [image]}]
        with pytest.raises(
            anthropic.BadRequestError, match=r"messages\[0\].content\[0\] cannot.* read text only"
        ) as bad:
            await create(**ASKED | {"messages": turns})
        assert (bad.value.type, bad.value.error_code) == (
            "invalid_request_error",
            "unsupported_parameter",
        )
        assert bad.value.request_id == served.recorded.requests[0].id
        with pytest.raises(anthropic.AuthenticationError, match="x-api-key") as wrong:
            await stranger.messages.create(**ASKED)
        assert wrong.value.type == "authentication_error"
        with pytest.raises(anthropic.NotFoundError, match="did you mean 'bild'") as unknown:
            await create(**ASKED | {"model": "bidl"})
        assert unknown.value.type == "not_found_error"
        with pytest.raises(anthropic.ContentTooLargeError) as large:
            await create(**ASKED, system="x" * 6000)
        error: dict[str, Any] = {
            "type": "request_too_large",
            "message": "the body is larger than 5000 bytes",
        }
        error |= {"details": {"error_code": "body_too_large"}}
        assert large.value.body == {
            "type": "error",
            "error": error,
            "request_id": large.value.request_id,
        }
        served.small.gate = asyncio.Semaphore(0)
        running = asyncio.create_task(create(**ASKED))
        await until(lambda: served.service.context.admission.running)
        with pytest.raises(anthropic.OverloadedError, match="too many requests") as full:
            await create(**ASKED)
        assert (full.value.status_code, full.value.type) == (529, "overloaded_error")
        assert full.value.response.headers["Retry-After"]
        served.service.context.admission.closed = True
        with pytest.raises(anthropic.ServiceUnavailableError, match="shutting down") as draining:
            await create(**ASKED)
        assert draining.value.type == "overloaded_error"
        for _ in range(99):
            served.small.gate.release()
        assert (await running).stop_reason == "end_turn"
    assert [request.status for request in served.recorded.requests if request.status == 529] == [
        529
    ]


async def test_a_failure_of_a_run_is_raised_by_the_sdk_or_from_the_stream() -> None:
    async with serving(policy="large") as served, client(served, max_retries=3) as sdk:
        served.large.faults.extend([None] + [Refuse(500, "dead")] * 99)
        extra: Any = {"extra_body": {"stepspec": {"ahead": 0}}}
        late = await sdk.messages.create(**ASKED, stream=True, **extra)
        with pytest.raises(anthropic.APIStatusError, match="dead") as broken:
            async for _ in late:
                pass
        assert broken.value.type == "overloaded_error"
        served.large.faults.clear()
        await until(lambda: not down(served))
        served.large.faults.extend([None] + [Refuse(500, "dead")] * 99)
        with pytest.raises(anthropic.ServiceUnavailableError, match="dead"):
            await sdk.messages.create(**ASKED, **extra)
    assert len(served.recorded.requests) == 2  # the SDK does not try again what has failed half way


async def test_paths_and_methods_that_do_not_exist_have_errors_in_the_same_shape() -> None:
    async with serving() as served:
        replies = [
            await served.get(PATH),
            await served.get("/v1/nothing", anthropic_version="2023-06-01"),
            await served.get("/v1/models/nobody", anthropic_version="2023-06-01"),
            await served.post(PATH, b"{"),
        ]
    kinds = ["invalid_request_error", "not_found_error", "not_found_error", "invalid_request_error"]
    assert [(reply.json["type"], reply.error["type"]) for reply in replies] == [
        ("error", kind) for kind in kinds
    ]
    assert [reply.status for reply in replies] == [405, 404, 404, 400]


TOOL: Any = {
    "name": "look_up",
    "description": "Look a word up.",
    "input_schema": {
        "type": "object",
        "properties": {"word": {"type": "string"}},
        "required": ["word"],
    },
}


def calling(*words: str, text: str = "Let me look.") -> tuple[str, ...]:
    """A script that thinks, and then calls the tool for each of *words*."""
    calls = [stand_in_tools.written("look_up", f'{{"word": "{word}"}}') for word in words]
    return (*SCRIPT[:8], "\n\n", text, *(half for call in calls for half in (call[:30], call[30:])))


@asynccontextmanager
async def serving_tools(*words: str, **choices: Any) -> AsyncGenerator[Served]:
    async with serving(script=calling(*words, **choices)) as served:
        served.large.scale_out = True
        yield served


async def test_an_answer_may_call_tools() -> None:
    async with serving_tools("six", "seven") as served, client(served) as sdk:
        made = await sdk.messages.create(**ASKED, tools=[TOOL])
        async with sdk.messages.stream(**ASKED, tools=[TOOL]) as helped:
            kinds = {event.type async for event in helped}
            full = await helped.get_final_message()
        found = events(await ask(served, tools=[TOOL], stream=True))
        choice: Any = {"type": "auto", "disable_parallel_tool_use": True}
        single = await sdk.messages.create(**ASKED, tools=[TOOL], tool_choice=choice)
        plain = await sdk.messages.count_tokens(model="auto", messages=PROBLEM)
        counted = await sdk.messages.count_tokens(
            model="auto",
            messages=PROBLEM,
            tools=[TOOL],
        )
    assert made.stop_reason == full.stop_reason == "tool_use"
    assert [block.type for block in made.content] == ["thinking", "text", "tool_use", "tool_use"]
    assert [block.to_dict() for block in full.content] == [
        block.to_dict() for block in made.content
    ]
    _, text, first, second = made.content
    assert text.type == "text"
    assert text.text == "Let me look."
    assert first.type == second.type == "tool_use"
    assert (first.name, first.input, second.input) == (
        "look_up",
        {"word": "six"},
        {"word": "seven"},
    )
    assert first.id != second.id
    assert "input_json" in kinds
    starts = [event["content_block"] for event in found if event["type"] == "content_block_start"]
    assert starts[2] == {"type": "tool_use", "id": first.id, "name": "look_up", "input": {}}
    stops = [event["index"] for event in found if event["type"] == "content_block_stop"]
    assert stops == [0, 1, 2, 3]
    assert found[-2]["delta"]["stop_reason"] == "tool_use"
    assert [block.type for block in single.content] == ["thinking", "text", "tool_use"]
    assert counted.input_tokens > plain.input_tokens + 20
    assert (
        made.usage.input_tokens + (made.usage.cache_read_input_tokens or 0) == counted.input_tokens
    )


def test_a_call_that_is_cut_off_is_in_the_stream_and_not_in_the_message() -> None:
    content = ContentBlocks()
    pieces = [
        Calling(0, "a", "f", '{"x":'),
        Calling(0, arguments=" 1}"),
        Calling(1, "b", "g", '{"y"'),
    ]
    stream = b"".join(content.add(Delta(call=piece)) for piece in pieces)
    stream += content.finish()
    assert content.content(cut=True) == [
        {"type": "tool_use", "id": "a", "name": "f", "input": {"x": 1}}
    ]
    found = events(Reply(200, {}, stream))
    kinds = [event["type"].removeprefix("content_block_") for event in found]
    assert kinds == ["start", "delta", "delta", "stop", "start", "delta", "stop"]
    assert [event["index"] for event in found] == [0] * 4 + [1] * 3
    deltas = [event["delta"] for event in found if "delta" in event]
    assert "".join(delta["partial_json"] for delta in deltas) == '{"x": 1}{"y"'


async def test_the_tool_runner_of_the_sdk_runs_a_loop() -> None:
    async with serving_tools("six") as served, client(served) as sdk:
        scripts = iter([calling("seven"), calling("eight"), SCRIPT])
        asked: list[str] = []

        @anthropic.beta_async_tool
        async def look_up(word: str) -> str:
            """Look a word up."""
            asked.append(word)
            served.small.script = served.large.script = next(scripts)
            if word == "seven":
                raise ValueError("no such word")
            return f"The number {word}"

        runner = sdk.beta.messages.tool_runner(**ASKED, tools=[look_up])
        replies = [message async for message in runner]
        read = conversations(served)[-1]
    assert asked == ["six", "seven", "eight"]
    assert [message.stop_reason for message in replies] == ["tool_use"] * 3 + ["end_turn"]
    last = replies[-1].content[-1]
    assert last.type == "text"
    assert last.text == ANSWER
    assert [turn["role"] for turn in read] == ["user", *["assistant", "tool"] * 3]
    assert read[2]["content"] == "The number six"
    assert read[4]["content"].startswith("Error: ")
    assert "no such word" in read[4]["content"]
    assert read[1]["tool_calls"]


def test_a_call_that_is_cut_off_leaves_one_block_for_each_index() -> None:
    content = ContentBlocks()
    stream = content.add(Delta(call=Calling(0, "a", "f", '{"x":'))) + content.finish()
    data = [orjson.loads(line[6:]) for line in stream.split(b"\n") if line.startswith(b"data: ")]
    starts = [event["index"] for event in data if event["type"] == "content_block_start"]
    assert len(starts) == len(set(starts))
    assert content.content(cut=True) == [{"type": "text", "text": ""}]


def test_text_after_a_call_makes_no_other_call() -> None:
    builder = DeltaBuilder("reasoning")
    content = ContentBlocks()
    deltas = [
        *builder.add_event(Calling(0, "c", "now")),
        *builder.add_event(Answering("Wait.")),
        *builder.finish(replace(solution("7"), text="Wait.")),
    ]
    for delta in deltas:
        content.add(delta)
    content.finish()
    assert [block["type"] for block in content.content(cut=False)] == ["tool_use", "text"]
