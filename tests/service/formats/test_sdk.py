"""
The OpenAI SDK with the service: its typed errors, its stream, and the extensions that it keeps.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI

from ...stand_in import Refuse
from ..served import ANSWER, THINKING, Served, chosen, serving, until

MESSAGES: Any = [{"role": "user", "content": "What is 1 + 1?"}]


@asynccontextmanager
async def client(served: Served, key: str = "k", **settings: Any) -> AsyncGenerator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=f"{served.base}/v1", api_key=key, **settings) as made:
        yield made


async def test_each_status_has_its_own_error_with_the_reason() -> None:
    settings = chosen(keys=("k",), max_running=1, max_waiting=0)
    async with (
        serving(settings) as served,
        client(served, max_retries=0) as sdk,
        client(served, "x") as stranger,
    ):
        create = sdk.chat.completions.create
        with pytest.raises(openai.BadRequestError, match="by its own name") as bad:
            await create(model="auto", messages=MESSAGES, logprobs=True)
        assert (bad.value.param, bad.value.code, bad.value.status_code) == (
            "logprobs",
            "unsupported_parameter",
            400,
        )
        with pytest.raises(openai.AuthenticationError, match="an API key is needed"):
            await stranger.models.list()
        with pytest.raises(openai.NotFoundError, match="did you mean 'bild'"):
            await create(model="bidl", messages=MESSAGES)
        served.small.gate = asyncio.Semaphore(0)
        running = asyncio.create_task(create(model="auto", messages=MESSAGES))
        await until(lambda: served.service.context.admission.running)
        with pytest.raises(openai.RateLimitError, match="too many requests"):
            await create(model="auto", messages=MESSAGES)
        for _ in range(99):
            served.small.gate.release()
        assert (await running).choices[0].message.content == ANSWER
        served.large.faults.extend([Refuse(500, "dead")] * 99)
        with pytest.raises(openai.InternalServerError, match="dead") as down:
            await create(model="large", messages=MESSAGES)
        assert down.value.status_code == 503


async def test_a_stream_keeps_the_extensions_and_raises_its_errors() -> None:
    async with serving(policy="large") as served, client(served) as sdk:
        stream = await sdk.chat.completions.create(
            model="specreason",
            messages=MESSAGES,
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = [chunk async for chunk in stream]
        served.large.faults.extend([None] + [Refuse(500, "dead")] * 99)
        extra = {"stepspec": {"ahead": 0}}
        broken = await sdk.chat.completions.create(
            model="auto", messages=MESSAGES, stream=True, extra_body=extra
        )
        with pytest.raises(openai.APIError, match="dead"):
            async for _ in broken:
                pass
    deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    assert "".join((delta.model_extra or {}).get("reasoning", "") for delta in deltas) == THINKING
    assert "".join(delta.content or "" for delta in deltas) == ANSWER
    steps = [
        (chunk.choices[0].model_extra or {}).get("stepspec") for chunk in chunks if chunk.choices
    ]
    assert [step["author"] for step in steps if step] == ["small"] * 3
    last = next(chunk for chunk in chunks if chunk.choices and chunk.choices[0].finish_reason)
    assert len((last.model_extra or {})["steps"]) == 3
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens_details is not None
    assert chunks[-1].usage.completion_tokens_details.reasoning_tokens == 8


async def test_a_message_may_be_sent_back_as_the_sdk_returned_it() -> None:
    async with serving() as served, client(served) as sdk:
        first = await sdk.chat.completions.create(model="auto", messages=MESSAGES)
        turns: Any = [
            *MESSAGES,
            first.choices[0].message,
            {"role": "user", "content": "And 2 + 2?"},
        ]
        second = await sdk.chat.completions.create(model="auto", messages=turns)
        helped = sdk.chat.completions.stream(model="auto", messages=MESSAGES)
        async with helped as events:
            full = await events.get_final_completion()
    assert second.choices[0].message.content == ANSWER
    assert full.choices[0].message.content == ANSWER
    # The SDK tells the id so.
    request_id = first._request_id  # pyright: ignore[reportPrivateUsage]
    assert served.recorded.requests[0].id == request_id
    assert first.id == f"chatcmpl-{request_id}"
