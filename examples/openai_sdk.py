"""
The OpenAI SDK against `stepspec serve`: plain, streamed, with options of stepspec, and with
structured output.

    stepspec serve --small http://localhost:8001/v1 --large http://localhost:8002/v1
    export OPENAI_BASE_URL=http://localhost:8765/v1 OPENAI_API_KEY=none
    python examples/openai_sdk.py "What is 6 x 7?"

The service replies with more fields than OpenAI; the SDK keeps them in the `model_extra` of each
object.
"""

import sys
from typing import Any

from openai import OpenAI
from openai.types.chat import ChatCompletionMessageParam
from pydantic import BaseModel

PROBLEM = (
    "Lily has 3 cards. On Monday she finds 9. On Tuesday she buys 9 more. "
    "On Wednesday she doubles them. How many cards does Lily have now?"
)
client = OpenAI()  # reads OPENAI_BASE_URL and OPENAI_API_KEY
messages: list[ChatCompletionMessageParam] = [
    {"role": "user", "content": " ".join(sys.argv[1:]) or PROBLEM}
]


class Count(BaseModel):
    count: int


def extra(part: BaseModel) -> dict[str, Any]:
    """Return the fields of *part* that OpenAI's API does not have."""
    return part.model_extra or {}


def plain() -> None:
    completion = client.chat.completions.create(model="auto", messages=messages)
    message = completion.choices[0].message
    print("reasoning:", len(extra(message)["reasoning"]), "characters")
    print("content:", message.content)


def streamed() -> None:
    with client.chat.completions.create(
        model="specreason", messages=messages, stream=True
    ) as chunks:
        for chunk in chunks:
            for choice in chunk.choices:
                # a verified step, which is never taken back
                if thought := extra(choice.delta).get("reasoning"):
                    step = extra(choice)["stepspec"]
                    grade = "" if step["grade"] is None else f", grade {step['grade']:.1f}"
                    print(f"[{step['author']}{grade}] {thought.strip()}")
                print(choice.delta.content or "", end="")
    print()


def with_options() -> None:
    options = {"options": {"threshold": 8}, "ahead": 1}
    completion = client.chat.completions.create(
        model="specreason",
        messages=messages,
        temperature=0,
        max_tokens=2048,
        extra_body={"stepspec": options},
    )
    run = extra(completion)["stepspec"]
    ledger = extra(completion)["ledger"]
    print(
        f"method: {run['method']}, answer: {run['answer']}, finish reason: {run['finish_reason']}"
    )
    print(f"{ledger['accepted']} of {ledger['drafts']} drafts accepted")
    for role in ("small", "large"):
        print(f"{role}: {ledger[role]['kept']} tokens kept, {ledger[role]['discarded']} wasted")


def structured() -> None:
    # A model whose prompt does not mention JSON may write white space where the schema allows it.
    system: ChatCompletionMessageParam = {
        "role": "system",
        "content": 'Answer in JSON, such as {"count": 1}.',
    }
    completion = client.chat.completions.parse(
        model="auto", messages=[system, *messages], response_format=Count
    )
    print("parsed:", completion.choices[0].message.parsed)


if __name__ == "__main__":
    for example in (plain, streamed, with_options, structured):
        print(f"--- {example.__name__}")
        example()
