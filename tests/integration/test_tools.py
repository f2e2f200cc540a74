"""
Tools on real vLLM: the large model that was trained to call them, its server's parser, and the
service over both.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Generator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from anyio.from_thread import start_blocking_portal
from openai import AsyncOpenAI

from stepspec.orchestrator.answer import extract
from tests.tool_problems import NO_CALLS, THREE_CALLS, Loop, Message, Problem, generate, tools

from ..program import Program, serve
from .clients.conftest import serving_pair
from .conftest import Pair
from .tool_driver import solve_with_tools

pytestmark = pytest.mark.servers
AGENT = "You are a helpful assistant. Use the tools to answer the question."
CUPS = Problem("buy", "Ann", ((2, "cup"), (3, "pen")), (17, 23))
BOTH = Problem("buy", "Ann", ((2, "cup"), (3, "pen")), (17, 23), at_once=True)


@pytest.fixture
async def client(tool_pair: Pair) -> AsyncGenerator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=tool_pair.large.base_url, api_key="none") as client:
        yield client


@pytest.fixture(scope="module")
def service(tool_pair: Pair, tmp_path_factory: pytest.TempPathFactory) -> Generator[Program]:
    """``stepspec serve`` over the pair, in an event loop of its own."""
    log = tmp_path_factory.mktemp("tools") / "service.log"
    starting = serve(
        tool_pair.small.base_url,
        tool_pair.large.base_url,
        log,
        settings={"STEPSPEC_SAMPLING__TEMPERATURE": "0"},
    )
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(starting) as program:
        yield program


async def solve(
    client: AsyncOpenAI,
    model: str,
    problems: Sequence[Problem],
    *,
    stream: bool,
    before: Sequence[Message] = (),
) -> list[Loop]:
    return await asyncio.gather(
        *(
            solve_with_tools(client, model, problem, stream=stream, before=before)
            for problem in problems
        )
    )


@pytest.mark.parametrize("stream", [False, True])
async def test_the_large_model_solves_loops_of_three_calls_and_more(
    client: AsyncOpenAI, tool_pair: Pair, stream: bool
) -> None:
    problems = [CUPS, BOTH, *islice(generate(11, "test", THREE_CALLS), 4)]
    loops = await solve(client, tool_pair.large.served_name, problems, stream=stream)
    assert sum(loop.correct for loop in loops) >= 5
    assert all(sum(map(len, loop.calls)) >= 3 for loop in loops if loop.correct)
    assert max(len(calls) for loop in loops for calls in loop.calls) > 1  # some of them in one turn


async def test_it_solves_under_a_system_prompt_and_without_calls_where_none_is_needed(
    client: AsyncOpenAI, tool_pair: Pair
) -> None:
    problems = list(islice(generate(12, "test", NO_CALLS), 5))
    loops = await solve(
        client,
        tool_pair.large.served_name,
        problems,
        stream=False,
        before=[{"role": "system", "content": AGENT}],
    )
    assert sum(loop.correct for loop in loops) >= 4
    assert not any(loop.calls for loop in loops if loop.correct)


@pytest.mark.parametrize("stream", [False, True])
async def test_specreason_solves_loops_through_the_service(service: Program, stream: bool) -> None:
    problems = [CUPS, BOTH, *islice(generate(13, "test", THREE_CALLS), 3)]
    async with AsyncOpenAI(base_url=f"{service.base}/v1", api_key="none") as client:
        loops = await solve(client, "specreason", problems, stream=stream)
    assert sum(loop.correct for loop in loops) >= 4
    assert all(sum(map(len, loop.calls)) >= 3 for loop in loops if loop.correct)


@pytest.mark.timeout(900)  # the first test of a client has to install it, from a network
def test_an_agent_of_the_openai_agents_sdk_solves_loops_of_three_calls(
    tool_pair: Pair, tmp_path: Path
) -> None:
    arguments = ("specreason", CUPS.text, json.dumps(CUPS.catalogue))
    with serving_pair(tool_pair, tmp_path / "service.log") as keyed:
        report = keyed.report("openai_agents", *arguments, folder=tmp_path)
    for way in ("responses", "responses, streamed", "chat", "chat, streamed"):
        assert extract(report[way]["answer"]) == str(CUPS.answer)
        assert report[way]["calls"] == ["lookup", "lookup", "calculator"]


async def post(pair: Pair, path: str, body: Any) -> Any:
    async with (
        aiohttp.ClientSession() as http,
        http.post(pair.large.base_url + path, json=body) as reply,
    ):
        assert reply.status == 200, await reply.text()
        return await reply.json()


@pytest.mark.parametrize("problem", [CUPS, BOTH])
async def test_the_server_parses_a_turn_of_which_it_gets_the_token_ids(
    tool_pair: Pair, problem: Problem
) -> None:
    server = tool_pair.large
    root = server.base_url.removesuffix("/v1")
    calls = problem.calls[0]
    written = "\n\n" + "\n".join(
        f'<tool_call>\n{{"name": "{call.name}", "arguments":'
        f" {json.dumps(call.arguments)}}}\n</tool_call>"
        for call in calls
    )
    asked = {
        "model": server.served_name,
        "messages": [{"role": "user", "content": problem.text}],
        "tools": tools(),
    }
    async with (
        aiohttp.ClientSession() as http,
        http.post(
            f"{root}/tokenize",
            json={"model": server.served_name, "prompt": written, "add_special_tokens": False},
        ) as reply,
    ):
        ids = (await reply.json())["tokens"]
    body = {
        "model": server.served_name,
        "chat_request": asked,
        "generate_response": {"choices": [{"index": 0, "token_ids": ids, "finish_reason": "stop"}]},
    }
    message = (await post(tool_pair, "/chat/completions/derender", body))["choices"][0]["message"]
    assert [
        (call["function"]["name"], json.loads(call["function"]["arguments"]))
        for call in message["tool_calls"]
    ] == [(call.name, call.arguments) for call in calls]
    assert not (message["content"] or "").strip()
