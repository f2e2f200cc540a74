"""Every way to ask through the OpenAI SDK. It reads OPENAI_BASE_URL and OPENAI_API_KEY itself."""

import asyncio
import json
import sys
from typing import Any

import openai
from openai import AsyncOpenAI, DefaultAioHttpClient, OpenAI
from pydantic import BaseModel

MODEL, PROBLEM, FOLLOWING = sys.argv[1:]
REQUEST: Any = {"model": MODEL, "messages": [{"role": "user", "content": PROBLEM}]}
STREAMED: Any = {**REQUEST, "stream": True, "stream_options": {"include_usage": True}}
client = OpenAI()


def unstreamed() -> dict[str, Any]:
    return as_dict(client.chat.completions.create(**REQUEST))


def as_dict(completion: Any) -> dict[str, Any]:
    choice, more = completion.choices[0], completion.model_extra
    return {
        "id": completion.id,
        "content": choice.message.content,
        "reasoning": choice.message.reasoning,
        "reasoning_content": choice.message.reasoning_content,
        "finish_reason": choice.finish_reason,
        "usage": completion.usage.to_dict(),
        "steps": kept(more),
    }


def kept(more: Any) -> list[str]:
    """The texts of the steps that stand, where a completion or a chunk tells them."""
    return [step["text"] for step in (more or {}).get("steps", []) if step["fate"] == "kept"]


class Gathered:
    """What the chunks of a stream come to."""

    def __init__(self) -> None:
        self.content, self.reasoning, self.verified = "", [], 0
        self.steps: list[str] = []
        self.finish_reason = self.usage = None

    def add(self, chunk: Any) -> None:
        self.usage = chunk.usage.to_dict() if chunk.usage else self.usage
        self.steps = kept(chunk.model_extra) or self.steps
        for choice in chunk.choices:
            self.content += choice.delta.content or ""
            self.reasoning += [thought] if (thought := getattr(choice.delta, "reasoning", None)) else []
            self.verified += "stepspec" in (choice.model_extra or {})
            self.finish_reason = choice.finish_reason or self.finish_reason

    def as_dict(self) -> dict[str, Any]:
        return {**vars(self), "reasoning": "".join(self.reasoning), "pieces": self.reasoning}


def stream() -> dict[str, Any]:
    gathered = Gathered()
    for chunk in client.chat.completions.create(**STREAMED):
        gathered.add(chunk)
    return gathered.as_dict()


def accumulated() -> dict[str, Any]:
    kinds = set()
    with client.chat.completions.stream(**REQUEST, stream_options={"include_usage": True}) as events:
        for event in events:
            kinds.add(event.type)
        return {**as_dict(events.get_final_completion()), "kinds": sorted(kinds)}


def raw() -> dict[str, Any]:
    response = client.chat.completions.with_raw_response.create(**REQUEST, extra_headers={"X-Request-Id": "mine-1"})
    completion = response.parse()
    return {**as_dict(completion), "headers": dict(response.headers), "request_id": completion._request_id}


def typed() -> dict[str, Any]:
    class Count(BaseModel):
        count: int

    try:
        completion = client.chat.completions.parse(**REQUEST, response_format=Count, max_completion_tokens=120)
    except openai.LengthFinishReasonError as exc:
        return {"error": type(exc).__name__, **as_dict(exc.completion)}
    parsed = completion.choices[0].message.parsed
    return {"error": None, "count": parsed and parsed.count}


def second_turn() -> dict[str, Any]:
    first = client.chat.completions.create(**REQUEST).choices[0].message
    messages = [*REQUEST["messages"], first, {"role": "user", "content": FOLLOWING}]
    return as_dict(client.chat.completions.create(model=MODEL, messages=messages))


def passed_through() -> dict[str, Any]:
    """Ask one of the served models by its own name."""
    served = [model.id for model in client.models.list() if model.owned_by == "vllm"]
    completion = client.chat.completions.create(**{**REQUEST, "model": served[-1]}, temperature=0)
    return {"model": completion.model, "content": completion.choices[0].message.content}


def options() -> dict[str, Any]:
    """Ask with options of the service's own, which every other server would not know."""
    return as_dict(client.chat.completions.create(**REQUEST, extra_body={"stepspec": {"options": {"threshold": 9}}}))


async def asynchronous() -> dict[str, Any]:
    async with AsyncOpenAI() as asking:
        return as_dict(await asking.chat.completions.create(**REQUEST))


async def asynchronous_stream() -> dict[str, Any]:
    gathered = Gathered()
    async with AsyncOpenAI() as asking:
        async for chunk in await asking.chat.completions.create(**STREAMED):
            gathered.add(chunk)
    return gathered.as_dict()


async def aiohttp_stream() -> dict[str, Any]:
    gathered = Gathered()
    async with AsyncOpenAI(http_client=DefaultAioHttpClient()) as asking:
        async for chunk in await asking.chat.completions.create(**STREAMED):
            gathered.add(chunk)
    return gathered.as_dict()


def refused(asking: OpenAI, **changed: Any) -> dict[str, Any]:
    try:
        asking.chat.completions.create(**{**REQUEST, **changed})
    except openai.APIStatusError as exc:
        return {"error": type(exc).__name__, "status": exc.status_code, "code": exc.code, "param": exc.param}
    return {"error": None}


print(
    json.dumps(
        {
            "models": [model.id for model in client.models.list()],
            "whole": unstreamed(),
            "stream": stream(),
            "accumulated": accumulated(),
            "raw": raw(),
            "typed": typed(),
            "second turn": second_turn(),
            "options": options(),
            "passed through": passed_through(),
            "async": asyncio.run(asynchronous()),
            "async stream": asyncio.run(asynchronous_stream()),
            "aiohttp stream": asyncio.run(aiohttp_stream()),
            "wrong key": refused(OpenAI(api_key="wrong")),
            "unknown model": refused(client, model="nobody"),
            "unknown parameter": refused(client, extra_body={"warmth": 1}),
            "failing stream": refused(client, stream=True, messages=[]),
        }
    )
)
