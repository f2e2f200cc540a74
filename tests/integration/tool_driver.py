"""Drive loops of the problems with tools through any server with OpenAI's chat API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from openai import AsyncOpenAI, AsyncStream
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from tests.tool_problems import Loop, Message, Problem, tool_loop, tools


async def solve_with_tools(
    client: AsyncOpenAI,
    model: str,
    problem: Problem,
    *,
    before: Sequence[Message] = (),
    stream: bool = False,
) -> Loop:
    """
    Let the *model* behind *client* solve *problem* with the tools, greedily, and return the loop.

    The messages *before* stand before the problem. Each message of the model is sent back as it
    came, with its thinking where the server shows it.
    """
    loop = tool_loop(problem, before)
    messages = next(loop)
    while True:
        request = {"model": model, "messages": messages, "tools": tools(), "temperature": 0}
        reply = await (_streamed(client, request) if stream else _whole(client, request))
        try:
            messages = loop.send(reply)
        except StopIteration as end:
            solved: Loop = end.value
            return solved


async def _whole(client: AsyncOpenAI, request: Mapping[str, Any]) -> Message:
    create: Any = client.chat.completions.create  # No overload takes a mapping.
    completion: ChatCompletion = await create(**request)
    message: Message = completion.choices[0].message.model_dump(exclude_none=True)
    return message


async def _streamed(client: AsyncOpenAI, request: Mapping[str, Any]) -> Message:
    """Put the message together of its deltas, those of a call by their index."""
    message: Message = {"role": "assistant", "content": ""}
    calls: dict[int, Message] = {}
    chunks: AsyncStream[ChatCompletionChunk] = await client.chat.completions.create(
        **request, stream=True
    )
    async with chunks:
        async for chunk in chunks:
            for choice in chunk.choices:
                delta = choice.delta.model_dump(exclude_none=True)
                for name in ("content", "reasoning_content", "reasoning"):
                    if name in delta:
                        message[name] = message.get(name, "") + delta[name]
                for part in delta.get("tool_calls", ()):
                    call = calls.setdefault(
                        part["index"], {"type": "function", "function": {"arguments": ""}}
                    )
                    function = part.get("function", {})
                    call["function"]["arguments"] += function.get("arguments", "")
                    if "name" in function:
                        call["function"]["name"] = function["name"]
                    if "id" in part:
                        call["id"] = part["id"]
    if calls:
        message["tool_calls"] = [calls[index] for index in sorted(calls)]
    return message
