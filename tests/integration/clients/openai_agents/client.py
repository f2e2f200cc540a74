"""
An agent of the OpenAI Agents SDK with two tools, through both APIs. The SDK reads OPENAI_BASE_URL
itself.
"""

import asyncio
import json
import sys
from typing import Any

from agents import (
    Agent,
    Model,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI

MODEL, PROBLEM, PRICES = sys.argv[1:]
set_tracing_disabled(disabled=True)  # Traces go to OpenAI.


@function_tool
def lookup(item: str) -> str:
    """Look up the price of an item."""
    return f"{item}: {json.loads(PRICES)[item]}"


@function_tool
def calculator(expression: str) -> str:
    """Calculate the value of an expression."""
    return f"result: {eval(expression, {'__builtins__': {}})}"


async def run(model: Model, *, streamed: bool) -> dict[str, Any]:
    agent = Agent(
        name="Shopper", instructions="Use the tools.", model=model, tools=[lookup, calculator]
    )
    if streamed:
        result = Runner.run_streamed(agent, PROBLEM)
        events = [event.type async for event in result.stream_events()]
    else:
        result = await Runner.run(agent, PROBLEM)
        events = []
    calls = [item.raw_item.name for item in result.new_items if item.type == "tool_call_item"]
    return {"answer": result.final_output, "calls": calls, "events": len(events)}


async def main() -> None:
    client = AsyncOpenAI()
    responses = OpenAIResponsesModel(MODEL, client)
    chat = OpenAIChatCompletionsModel(MODEL, client)
    report = {
        "responses": await run(responses, streamed=False),
        "responses, streamed": await run(responses, streamed=True),
        "chat": await run(chat, streamed=False),
        "chat, streamed": await run(chat, streamed=True),
    }
    print(json.dumps(report))


asyncio.run(main())
