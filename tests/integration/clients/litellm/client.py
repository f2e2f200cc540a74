"""Both ways to name an OpenAI-compatible server to LiteLLM, each in one piece and in a stream."""

import asyncio
import json
import os
import sys
from typing import Any

import litellm

MODEL, PROBLEM, FOLLOWING = sys.argv[1:]
URL = os.environ["OPENAI_BASE_URL"]
KEY = os.environ["OPENAI_API_KEY"]
PROVIDERS = ("openai", "hosted_vllm")
MESSAGES: Any = [{"role": "user", "content": PROBLEM}]
litellm.suppress_debug_info = True


def options_for(provider: str) -> dict[str, Any]:
    return {"model": f"{provider}/{MODEL}", "messages": MESSAGES, "api_base": URL, "api_key": KEY}


def ask(provider: str, messages: Any = MESSAGES, **choices: Any) -> Any:
    return litellm.completion(**{**options_for(provider), "messages": messages, **choices})


def as_dict(response: Any) -> dict[str, Any]:
    choice = response.choices[0]
    return {
        "content": choice.message.content,
        "reasoning_content": choice.message.reasoning_content,
        "fields": sorted(choice.message.provider_specific_fields or {}),
        "finish_reason": choice.finish_reason,
        "usage": response.usage.model_dump(),
    }


def stream(provider: str) -> dict[str, Any]:
    chunks = list(ask(provider, stream=True, stream_options={"include_usage": True}))
    thoughts = [
        getattr(chunk.choices[0].delta, "reasoning_content", None)
        for chunk in chunks
        if chunk.choices
    ]
    pieces = sum(bool(thought) for thought in thoughts)
    return {**as_dict(litellm.stream_chunk_builder(chunks, messages=MESSAGES)), "pieces": pieces}


async def asynchronous() -> dict[str, Any]:
    return as_dict(await litellm.acompletion(**options_for("hosted_vllm")))


def second_turn(provider: str) -> dict[str, Any]:
    first = ask(provider).choices[0].message
    return as_dict(ask(provider, [*MESSAGES, first, {"role": "user", "content": FOLLOWING}]))


def refused(**changed: Any) -> dict[str, Any]:
    try:
        ask("openai", **changed)
    except (litellm.AuthenticationError, litellm.BadRequestError, litellm.NotFoundError) as exc:
        return {"error": type(exc).__name__, "status": exc.status_code}
    return {"error": None}


print(
    json.dumps(
        {
            **{f"{provider} stream": stream(provider) for provider in PROVIDERS},
            **{f"{provider} second turn": second_turn(provider) for provider in PROVIDERS},
            "async": asyncio.run(asynchronous()),
            "wrong key": refused(api_key="wrong"),
            "unknown model": refused(model="openai/nobody"),
            "unknown parameter": refused(extra_body={"warmth": 1}),
        }
    )
)
