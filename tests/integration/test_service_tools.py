"""
Tools through ``stepspec serve`` on real vLLM: the form of calls, their parser and their streams are
the server's own.

The models of this pair were not trained to call tools. Where a test asks for a call, the server's
grammar sees to it; the arguments are any JSON, as the tools are not strict.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Generator
from typing import Any

import pytest
from anyio.from_thread import start_blocking_portal
from openai import AsyncOpenAI, BadRequestError

from stepspec.evals.benchmarks.miniature import generate

from ..program import Program, serve
from .conftest import Pair

pytestmark = pytest.mark.servers
PROBLEM = next(generate(8, steps=(3, 3))).text
NUMBER = {
    "type": "object",
    "properties": {"n": {"type": "integer"}},
    "required": ["n"],
    "additionalProperties": False,
}
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": name, "parameters": NUMBER}}
    for name in ("tell", "keep")
]
KEEP: Any = {"type": "function", "function": {"name": "keep"}}
ASKED: list[Any] = [{"role": "user", "content": PROBLEM}]


@pytest.fixture(scope="module")
def service(pair: Pair, tmp_path_factory: pytest.TempPathFactory) -> Generator[Program]:
    log = tmp_path_factory.mktemp("tools") / "service.log"
    starting = serve(
        pair.small.base_url,
        pair.large.base_url,
        log,
        settings={"STEPSPEC_SAMPLING__TEMPERATURE": "0"},
    )
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(starting) as program:
        yield program


@pytest.fixture
async def client(service: Program) -> AsyncGenerator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=f"{service.base}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.mark.parametrize("model", ["large", "specreason", "bild", "auto"])
@pytest.mark.parametrize(("choice", "names"), [("required", {"tell", "keep"}), (KEEP, {"keep"})])
async def test_a_call_that_is_asked_for_has_the_form_of_its_tool(
    client: AsyncOpenAI, model: str, choice: Any, names: set[str]
) -> None:
    reply = await client.chat.completions.create(
        model=model,
        messages=ASKED,
        tools=TOOLS,
        tool_choice=choice,
        parallel_tool_calls=False,
        max_tokens=300,
    )
    (made,) = reply.choices
    (call,) = made.message.tool_calls or []
    assert made.finish_reason == "tool_calls"
    assert call.type == "function"
    assert call.function.name in names
    json.loads(call.function.arguments)
    assert "<tool_call>" not in (made.message.content or "")


@pytest.mark.parametrize("temperature", [0.0, 0.6])
async def test_a_stream_has_the_thinking_first_and_then_the_call_in_pieces(
    client: AsyncOpenAI, temperature: float
) -> None:
    stream = await client.chat.completions.create(
        model="specreason",
        messages=ASKED,
        tools=TOOLS,
        tool_choice="required",
        stream=True,
        max_tokens=300,
        temperature=temperature,
        seed=5,
    )
    kinds = list[str]()
    arguments = ""
    async for chunk in stream:
        for choice in chunk.choices:
            delta = choice.delta
            if getattr(delta, "reasoning", None):
                kinds.append("thinking")
            for piece in delta.tool_calls or ():
                if piece.index == 0 and piece.function is not None:
                    kinds.append("call")
                    arguments += piece.function.arguments or ""
    assert kinds.index("call") == kinds.count("thinking")
    assert kinds.count("call") > 1
    json.loads(arguments)


async def test_tools_that_are_not_called_change_nothing_but_the_prompt(client: AsyncOpenAI) -> None:
    plain = await client.chat.completions.create(model="specreason", messages=ASKED, max_tokens=300)
    reply = await client.chat.completions.create(
        model="specreason", messages=ASKED, tools=TOOLS, max_tokens=300
    )
    # its template shows no tools
    assert reply.choices[0].message.content == plain.choices[0].message.content
    assert reply.choices[0].finish_reason == "stop"


async def test_responses_have_the_call_as_an_item(client: AsyncOpenAI) -> None:
    flat: Any = [{"type": "function", **tool["function"]} for tool in TOOLS]
    reply = await client.responses.create(
        model="specreason",
        input=PROBLEM,
        tools=flat,
        tool_choice="required",
        parallel_tool_calls=False,
        max_output_tokens=300,
    )
    (call,) = [item for item in reply.output if item.type == "function_call"]
    json.loads(call.arguments)


async def test_the_small_model_alone_needs_a_parser_of_its_own(client: AsyncOpenAI) -> None:
    with pytest.raises(BadRequestError, match="--enable-scale-out"):
        await client.chat.completions.create(model="small", messages=ASKED, tools=TOOLS)
