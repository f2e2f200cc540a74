"""Every way to ask through Anthropic's SDK. It reads ANTHROPIC_BASE_URL and ANTHROPIC_API_KEY itself."""

import asyncio
import json
import sys
from typing import Any

import anthropic
from anthropic import Anthropic, AsyncAnthropic, DefaultAioHttpClient
from pydantic import BaseModel

MODEL, PROBLEM, FOLLOWING = sys.argv[1:]
REQUEST: Any = {"model": MODEL, "max_tokens": 2000, "messages": [{"role": "user", "content": PROBLEM}]}
client = Anthropic()


def as_dict(message: Any) -> dict[str, Any]:
    blocks = {block.type: block.to_dict() for block in message.content}
    return {
        "id": message.id,
        "kinds": [block.type for block in message.content],
        "content": blocks["text"]["text"],
        "reasoning": blocks.get("thinking", {}).get("thinking"),
        "signed": bool(blocks.get("thinking", {}).get("signature")),
        "stop_reason": message.stop_reason,
        "stop_sequence": message.stop_sequence,
        "usage": message.usage.to_dict(),
        "steps": kept(message.model_extra),
    }


def kept(more: Any) -> list[str]:
    """The texts of the steps that stand, where a message or an event tells them."""
    return [step["text"] for step in (more or {}).get("steps", []) if step["fate"] == "kept"]


class Gathered:
    """What the events of a stream come to."""

    def __init__(self) -> None:
        self.content, self.pieces, self.verified = "", [], 0
        self.steps: list[str] = []
        self.stop_reason = self.usage = None

    def add(self, event: Any) -> None:
        if event.type == "content_block_delta":
            self.verified += "stepspec" in (event.model_extra or {})
            if event.delta.type == "thinking_delta":
                self.pieces.append(event.delta.thinking)
            elif event.delta.type == "text_delta":
                self.content += event.delta.text
        elif event.type == "message_delta":
            self.stop_reason, self.usage = event.delta.stop_reason, event.usage.to_dict()
            self.steps = kept(event.model_extra)

    def as_dict(self) -> dict[str, Any]:
        return {**vars(self), "reasoning": "".join(self.pieces)}


def stream() -> dict[str, Any]:
    gathered = Gathered()
    for event in client.messages.create(**REQUEST, stream=True):
        gathered.add(event)
    return gathered.as_dict()


def helped() -> dict[str, Any]:
    kinds = set()
    with client.messages.stream(**REQUEST) as events:
        for event in events:
            kinds.add(event.type)
        return {**as_dict(events.get_final_message()), "events": sorted(kinds)}


def raw() -> dict[str, Any]:
    response = client.messages.with_raw_response.create(**REQUEST, extra_headers={"X-Request-Id": "mine-1"})
    message = response.parse()
    return {**as_dict(message), "headers": dict(response.headers), "request_id": message._request_id}


def typed() -> dict[str, Any]:
    class Count(BaseModel):
        count: int

    parsed = client.messages.parse(**{**REQUEST, "max_tokens": 400}, output_format=Count)
    return {"count": parsed.parsed_output and parsed.parsed_output.count}


def second_turn() -> dict[str, Any]:
    first = client.messages.create(**REQUEST)
    turns = [*REQUEST["messages"], {"role": "assistant", "content": first.content}]
    messages = [*turns, {"role": "user", "content": FOLLOWING}]
    return as_dict(client.messages.create(**{**REQUEST, "messages": messages}))


def counted() -> dict[str, Any]:
    return {
        model: client.messages.count_tokens(model=model, messages=REQUEST["messages"]).input_tokens
        for model in (MODEL, "testbed-large")
    }


def passed_through() -> dict[str, Any]:
    """Ask one of the served models by its own name."""
    message = client.messages.create(**{**REQUEST, "model": "testbed-large"}, extra_body={"temperature": 0})
    return {"model": message.model, "content": "".join(getattr(block, "text", "") for block in message.content)}


def with_fields(**fields: Any) -> dict[str, Any]:
    return as_dict(client.messages.create(**REQUEST, **fields))


async def asynchronous() -> dict[str, Any]:
    async with AsyncAnthropic() as asking:
        return as_dict(await asking.messages.create(**REQUEST))


async def asynchronous_stream() -> dict[str, Any]:
    gathered = Gathered()
    async with AsyncAnthropic() as asking:
        async for event in await asking.messages.create(**REQUEST, stream=True):
            gathered.add(event)
    return gathered.as_dict()


async def aiohttp_stream() -> dict[str, Any]:
    async with (
        AsyncAnthropic(http_client=DefaultAioHttpClient()) as asking,
        asking.messages.stream(**REQUEST) as events,
    ):
        return as_dict(await events.get_final_message())


def refused(asking: Anthropic, **changed: Any) -> dict[str, Any]:
    try:
        asking.messages.create(**{**REQUEST, **changed})
    except anthropic.APIStatusError as exc:
        found = {"error": type(exc).__name__, "status": exc.status_code, "type": exc.type, "code": exc.error_code}
        return {**found, "message": exc.api_message}
    return {"error": None}


print(
    json.dumps(
        {
            "models": [model.id for model in client.models.list()],
            "whole": as_dict(client.messages.create(**REQUEST)),
            "stream": stream(),
            "helped": helped(),
            "raw": raw(),
            "typed": typed(),
            "second turn": second_turn(),
            "thinking": with_fields(thinking={"type": "enabled", "budget_tokens": 1500}),
            "hidden": with_fields(thinking={"type": "adaptive", "display": "omitted"}),
            "stopped": with_fields(stop_sequences=["boxed"]),
            "options": with_fields(extra_body={"stepspec": {"options": {"threshold": 9}}}),
            "beta": as_dict(client.beta.messages.create(**REQUEST, betas=["interleaved-thinking-2025-05-14"])),
            "counted": counted(),
            "passed through": passed_through(),
            "async": asyncio.run(asynchronous()),
            "async stream": asyncio.run(asynchronous_stream()),
            "aiohttp stream": asyncio.run(aiohttp_stream()),
            "wrong key": refused(Anthropic(api_key="wrong")),
            "unknown model": refused(client, model="nobody"),
            "unknown parameter": refused(client, extra_body={"warmth": 1}),
            "failing stream": refused(client, stream=True, messages=[]),
        }
    )
)
