"""
An eval of one sample with two turns of one conversation.

Inspect takes the service called NAME of the model ``openai-api/NAME/MODEL`` from NAME_BASE_URL and NAME_API_KEY. Any
name does, but stepspec: variables that begin so are stepspec's own settings.
"""

import json
import os
import sys
from typing import Any

from inspect_ai import Task, eval
from inspect_ai.dataset import Sample
from inspect_ai.event import ModelEvent
from inspect_ai.log import EvalLog, resolve_sample_attachments
from inspect_ai.model import ChatMessageAssistant, ContentReasoning
from inspect_ai.scorer import includes
from inspect_ai.solver import generate, user_message

MODEL, PROBLEM, FOLLOWING, TARGET = sys.argv[1:]
URL, KEY = os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"]
os.environ |= {"LOCAL_BASE_URL": URL, "LOCAL_API_KEY": KEY, "VLLM_API_KEY": KEY}


def as_dict(message: ChatMessageAssistant) -> dict[str, Any]:
    parts = message.content if isinstance(message.content, list) else []
    return {
        "content": message.text,
        "reasoning": [part.reasoning for part in parts if isinstance(part, ContentReasoning)],
        "internal": [part.internal for part in parts if isinstance(part, ContentReasoning)],
    }


def evaluate(model: str, **choices: Any) -> EvalLog:
    task = Task(
        dataset=[Sample(input=PROBLEM, target=TARGET)],
        solver=[generate(), user_message(FOLLOWING), generate()],
        scorer=includes(),
    )
    (log,) = eval(task, model=model, display="none", log_level="error", **choices)
    return log


def evaluated(model: str, **choices: Any) -> dict[str, Any]:
    log = evaluate(model, **choices)
    if log.status != "success":
        return {"status": log.status, "error": log.error.message}
    sample = resolve_sample_attachments(log.samples[0], "full")
    calls = [event for event in sample.events if isinstance(event, ModelEvent)]
    return {
        "status": log.status,
        "accuracy": log.results.scores[0].metrics["accuracy"].value,
        "turns": [as_dict(one) for one in sample.messages if isinstance(one, ChatMessageAssistant)],
        "usage": [event.output.usage.model_dump() for event in calls],
        "sent back": [one for one in calls[-1].call.request["messages"] if one["role"] == "assistant"],
    }


print(
    json.dumps(
        {
            "whole": evaluated(f"openai-api/local/{MODEL}"),
            "stream": evaluated(f"openai-api/local/{MODEL}", model_args={"stream": True}),
            "limited": evaluated(f"openai-api/local/{MODEL}", max_tokens=1000, seed=3, reasoning_effort="medium"),
            "vllm": evaluated(f"vllm/{MODEL}", model_base_url=URL),
            "unknown model": evaluated("openai-api/local/nobody"),
        }
    )
)
