"""
Tools in the service, over stand-ins: what models read, how calls are streamed, and which servers
can do it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import orjson
import pytest
from aiohttp import web
from openai import AsyncOpenAI

from stepspec import Solver
from stepspec.service.http.app import Service
from stepspec.service_factory import offer

from ...stand_in import DERENDER, RENDER, StandIn
from ..served import chosen, reachable

FUNCTION = {
    "name": "lookup",
    "description": "The price of an item.",
    "parameters": {
        "type": "object",
        "properties": {"item": {"type": "string"}},
        "required": ["item"],
    },
}
CALCULATOR = {
    "name": "calculator",
    "parameters": {"type": "object", "properties": {"expression": {"type": "string"}}},
}
TOOLS = [{"type": "function", "function": each} for each in (FUNCTION, CALCULATOR)]
FLAT = [{"type": "function", **each} for each in (FUNCTION, CALCULATOR)]
ASKED = {"role": "user", "content": "What does a cup cost?"}
METHODS = ("large", "small", "specreason", "bild", "lookahead-reasoning")
FORCED = {"type": "function", "function": {"name": "calculator"}}


@dataclass
class Watched(StandIn):
    """A stand-in that keeps what it was sent by path."""

    seen: list[tuple[str, dict[str, Any]]] = field(default_factory=list[tuple[str, dict[str, Any]]])

    async def tokenize(self, request: web.Request) -> web.Response:
        self.seen.append((request.path, orjson.loads(await request.read())))
        return await super().tokenize(request)

    async def parse_tools(self, request: web.Request) -> web.Response:
        self.seen.append((request.path, orjson.loads(await request.read())))
        return await super().parse_tools(request)

    def bodies(self, path: str) -> list[dict[str, Any]]:
        return [body for seen, body in self.seen if seen == path]


@dataclass(frozen=True)
class Pair:
    """A service over two stand-ins."""

    http: httpx.AsyncClient
    small: Watched
    large: Watched

    async def chat(self, **fields: Any) -> Any:
        reply = await self.http.post(
            "/v1/chat/completions", json={"model": "auto", "messages": [ASKED], **fields}
        )
        return reply.json()

    async def stream(
        self, path: str = "/v1/chat/completions", **fields: Any
    ) -> list[dict[str, Any]]:
        body = {
            "model": "auto",
            "stream": True,
            **({"messages": [ASKED]} if "chat" in path else {}),
            **fields,
        }
        reply = await self.http.post(path, json=body)
        lines = [
            line.removeprefix("data: ")
            for line in reply.text.splitlines()
            if line.startswith("data: {")
        ]
        return [orjson.loads(line) for line in lines]


@asynccontextmanager
async def standing_in(**large: Any) -> AsyncGenerator[Pair]:
    """Serve over two stand-ins that think in three steps; *large* are fields of the large one."""
    few: dict[str, Any] = {"steps": 3, "step_tokens": 8, "scale_out": True}
    small = Watched(names=("small-model",), **few)
    other = Watched(names=("large-model",), **few | large)
    async with (
        small.serve("small") as one,
        other.serve("large", suffix_scoring=other.scale_out) as two,
        Solver(small=one, large=two) as solver,
        reachable(Service(offer(solver), chosen()), chosen()) as (base, _, _),
        httpx.AsyncClient(base_url=base, timeout=60) as http,
    ):
        yield Pair(http, small, other)


def called(reply: Any) -> list[tuple[str, Any]]:
    """The name and the arguments of every call in a completion."""
    calls = reply["choices"][0]["message"].get("tool_calls", [])
    return [
        (call["function"]["name"], orjson.loads(call["function"]["arguments"])) for call in calls
    ]


def joined(chunks: Sequence[Any]) -> list[dict[str, str]]:
    """Join the pieces of every call in a stream, as OpenAI's clients do."""
    calls: dict[int, dict[str, str]] = {}
    deltas = [each["delta"] for chunk in chunks for each in chunk["choices"]]
    for piece in [call for delta in deltas for call in delta.get("tool_calls", [])]:
        call = calls.setdefault(piece["index"], {"id": "", "name": "", "arguments": ""})
        call["id"] += piece.get("id") or ""
        call["name"] += piece["function"].get("name") or ""
        call["arguments"] += piece["function"].get("arguments") or ""
    return [calls[index] for index in sorted(calls)]


@pytest.mark.parametrize("model", METHODS)
async def test_every_method_calls_tools_after_its_thinking(model: str) -> None:
    async with standing_in() as pair:
        reply = await pair.chat(model=model, tools=TOOLS)
    (choice,) = reply["choices"]
    assert (choice["finish_reason"], called(reply)) == ("tool_calls", [("lookup", {"item": "42"})])
    assert choice["message"]["content"] is None
    assert choice["message"]["reasoning"].count("\n\n") == 2


async def test_both_models_read_about_tools_and_calls_in_their_own_templates() -> None:
    call = {
        "id": "c1",
        "type": "function",
        "function": {"name": "lookup", "arguments": '{"item": "cup"}'},
    }
    turns = [
        ASKED,
        {
            "role": "assistant",
            "content": None,
            "reasoning_content": "Let me look.",
            "tool_calls": [call],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "12"},
    ]
    async with standing_in() as pair:
        reply = await pair.chat(messages=turns, tools=TOOLS)
    for model in (pair.small, pair.large):
        (body,) = [body for body in model.bodies("/tokenize") if body.get("tools")]
        assert body["tools"] == TOOLS
        assert body["messages"] == [
            ASKED,
            {"role": "assistant", "content": "", "tool_calls": [call], "reasoning": "Let me look."},
            {"role": "tool", "content": "12", "tool_call_id": "c1"},
        ]
    assert reply["choices"][0]["finish_reason"] == "stop"
    assert reply["choices"][0]["message"]["content"] == "The answer is \\boxed{42}."


@pytest.mark.parametrize(
    ("choice", "name"),
    [("auto", "lookup"), ("required", "lookup"), (FORCED, "calculator"), ("none", None)],
)
async def test_the_choice_of_a_tool_is_the_servers_own(choice: Any, name: str | None) -> None:
    async with standing_in() as pair:
        reply = await pair.chat(tools=TOOLS, tool_choice=choice)
        rendered = pair.large.bodies(RENDER)
    assert [called_name for called_name, _ in called(reply)] == ([name] if name else [])
    assert [body["tool_choice"] for body in rendered] == ([choice] if name else [])
    assert not pair.small.bodies(RENDER)


async def test_a_stream_has_the_calls_of_the_reply_in_pieces() -> None:
    async with standing_in() as pair:
        chunks = await pair.stream(tools=TOOLS, stream_options={"include_usage": True})
    (call,) = joined(chunks)
    assert (call["name"], orjson.loads(call["arguments"])) == ("lookup", {"item": "42"})
    assert call["id"]
    finishes = [
        each["finish_reason"]
        for chunk in chunks
        for each in chunk["choices"]
        if each["finish_reason"]
    ]
    assert finishes == ["tool_calls"]
    reasoning = "".join(
        each["delta"].get("reasoning", "") for chunk in chunks for each in chunk["choices"]
    )
    assert reasoning.count("\n\n") == 2
    assert "<tool_call>" not in "".join(
        orjson.dumps(chunk).decode() for chunk in chunks if chunk["choices"]
    )


@pytest.mark.parametrize(
    ("large", "words"),
    [({"scale_out": False}, "--enable-scale-out"), ({"parses_tools": False}, "--tool-call-parser")],
)
async def test_a_server_without_a_parser_is_refused_with_the_cure(
    large: dict[str, Any], words: str
) -> None:
    async with standing_in(**large) as pair:
        reply = await pair.chat(tools=TOOLS)
        without = await pair.chat(tools=TOOLS, tool_choice="none")
    assert words in reply["error"]["message"]
    assert "the large model at" in reply["error"]["message"]
    assert without["choices"][0]["finish_reason"] == "stop"


async def test_responses_have_calls_as_items_and_take_them_back() -> None:
    async with standing_in() as pair:
        body: dict[str, Any] = {"model": "auto", "input": "What does a cup cost?", "tools": FLAT}
        first = (await pair.http.post("/v1/responses", json=body)).json()
        (call,) = [item for item in first["output"] if item["type"] == "function_call"]
        output = {"type": "function_call_output", "call_id": call["call_id"], "output": "12"}
        turns = [{"role": "user", "content": "What does a cup cost?"}, *first["output"], output]
        second = (await pair.http.post("/v1/responses", json=body | {"input": turns})).json()
        events = await pair.stream("/v1/responses", **body)
    assert (call["name"], orjson.loads(call["arguments"]), call["status"]) == (
        "lookup",
        {"item": "42"},
        "completed",
    )
    assert first["status"] == "completed"
    assert second["output"][-1]["content"][0]["text"] == "The answer is \\boxed{42}."
    read = [turn for body in pair.large.bodies("/tokenize") for turn in body.get("messages", ())]
    assert {"role": "tool", "content": "12", "tool_call_id": call["call_id"]} in read
    kinds = [event["type"] for event in events]
    assert kinds.index("response.function_call_arguments.done") < kinds.index("response.completed")
    pieces = [
        event["delta"]
        for event in events
        if event["type"] == "response.function_call_arguments.delta"
    ]
    assert orjson.loads("".join(pieces)) == {"item": "42"}


async def test_the_parser_is_asked_again_only_about_what_is_new() -> None:
    async with standing_in(chunk=4) as pair:
        await pair.stream(tools=TOOLS)
        asked = pair.large.bodies(DERENDER)
        await pair.chat(tools=TOOLS)
        whole, ids = pair.large.bodies(DERENDER)[len(asked) :]
    written = [body for body in asked if body.get("stream")]
    lengths = {len(body["generate_chunk"]["choices"][0]["token_ids"]) for body in written[:-1]}
    assert lengths <= {1, 4}  # one token at a time once a call may have begun
    (answer,) = whole["generate_response"]["choices"]
    assert pair.large.decode(answer["token_ids"]).startswith("<tool_call>")
    assert pair.large.decode(answer["token_ids"]).endswith("</tool_call>")
    assert ids["stream"] is True
    assert all(len(body["prompt_token_ids"]) < 64 for body in (*asked, whole, ids))


@pytest.mark.parametrize("name", ["none", "auto", "required"])
async def test_a_tool_may_be_called_like_a_choice(name: str) -> None:
    tools: list[dict[str, Any]] = [*TOOLS, {"type": "function", "function": {"name": name}}]
    forced = {"type": "function", "function": {"name": name}}
    async with standing_in() as pair:
        reply = await pair.chat(tools=tools, tool_choice=forced)
        flat: list[dict[str, Any]] = [{"type": "function", **each["function"]} for each in tools]
        response = await pair.http.post(
            "/v1/responses",
            json={
                "model": "auto",
                "input": "What does a cup cost?",
                "tools": flat,
                "tool_choice": {"type": "function", "name": name},
            },
        )
        nothing: dict[str, Any] = {}
        message = await pair.http.post(
            "/v1/messages",
            json={
                "model": "auto",
                "max_tokens": 500,
                "messages": [ASKED],
                "tools": [{"name": each["name"], "input_schema": nothing} for each in flat],
                "tool_choice": {"type": "tool", "name": name},
            },
        )
        rendered = [body["tool_choice"] for body in pair.large.bodies(RENDER)]
    assert [called_name for called_name, _ in called(reply)] == [name]
    items = [item for item in response.json()["output"] if item["type"] == "function_call"]
    assert [item["name"] for item in items] == [name]
    blocks = [block for block in message.json()["content"] if block["type"] == "tool_use"]
    assert [block["name"] for block in blocks] == [name]
    assert rendered == [forced] * len(rendered)


async def test_what_is_empty_in_a_tool_stays_empty_and_what_is_absent_stays_absent() -> None:
    functions: list[dict[str, Any]] = [
        {"name": "a", "description": "", "parameters": {}},
        {"name": "b"},
        {"name": "c", "description": None, "parameters": None},
    ]
    bare = [functions[0], {"name": "b"}, {"name": "c"}]
    async with standing_in() as pair:
        await pair.chat(tools=[{"type": "function", "function": each} for each in functions])
        (body,) = [body for body in pair.large.bodies("/tokenize") if body.get("tools")]
    assert [tool["function"] for tool in body["tools"]] == bare


SCHEMA = {"type": "object", "properties": {"price": {"type": "integer"}}, "required": ["price"]}
FORMAT = {"type": "json_schema", "json_schema": {"name": "price", "schema": SCHEMA}}


@pytest.mark.parametrize("form", [FORMAT, {"type": "json_object"}])
async def test_tools_and_a_format_are_possible_together(form: dict[str, Any]) -> None:
    async with standing_in() as pair:
        fields: dict[str, Any] = {"tools": TOOLS, "response_format": form}
        first = await pair.chat(**fields)
        message = first["choices"][0]["message"]
        (call,) = message["tool_calls"]
        result = {"role": "tool", "tool_call_id": call["id"], "content": "12"}
        fields["messages"] = [ASKED, message, result]
        second = await pair.chat(**fields)
        chunks = await pair.stream(**fields)
        forced = await pair.chat(**fields, tool_choice="required")
    assert called(first) == [("lookup", {"item": "42"})]
    answer = second["choices"][0]["message"]
    assert "tool_calls" not in answer or not answer["tool_calls"]
    assert isinstance(orjson.loads(answer["content"]), dict)
    deltas = [each["delta"] for chunk in chunks for each in chunk["choices"]]
    assert "".join(delta.get("content") or "" for delta in deltas) == answer["content"]
    assert [name for name, _ in called(forced)] == ["lookup"]


@pytest.mark.parametrize("streamed", [False, True])
async def test_openais_sdk_gets_the_custom_call_and_the_namespace_that_it_offered(
    streamed: bool,
) -> None:
    custom: dict[str, Any] = {"type": "custom", "name": "patch", "description": "Change files."}
    functions = [{key: FLAT[0][key] for key in FLAT[0]}]
    space: dict[str, Any] = {
        "type": "namespace",
        "name": "shop",
        "description": "Prices.",
        "tools": functions,
    }
    async with (
        standing_in() as pair,
        AsyncOpenAI(base_url=f"{pair.http.base_url}/v1", api_key="none") as sdk,
    ):
        made: list[Any] = []
        responses: Any = sdk.responses
        for tool in (custom, space):
            fields: dict[str, Any] = {"model": "auto", "input": "Do it.", "tools": [tool]}
            if streamed:
                async with responses.stream(**fields) as stream:
                    response = await stream.get_final_response()
            else:
                response = await responses.create(**fields)
            made.append(response.output[-1])
            turns: list[Any] = [item.model_dump() for item in response.output]
            kind = f"{turns[-1]['type']}_output"
            output = {"type": kind, "call_id": turns[-1]["call_id"], "output": "done"}
            asked = [{"role": "user", "content": "Do it."}, *turns, output]
            again = await responses.create(**{**fields, "input": asked})
            assert again.output_text == "The answer is \\boxed{42}."
    patch, lookup = made
    assert (patch.type, patch.name) == ("custom_tool_call", "patch")
    assert patch.input
    assert "{" not in patch.input
    assert (lookup.type, lookup.namespace, lookup.name) == ("function_call", "shop", "lookup")
    assert orjson.loads(lookup.arguments) == {"item": "42"}
