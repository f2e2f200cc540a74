"""
How a stand-in calls tools: conversations and answers in the form of Hermes, and vLLM's routes about
them. No I/O.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

BEGIN = "<tool_call>"
END = "</tool_call>"
TOOLS = "tools: "  # how the turn begins that shows the tools
NO_SCALE_OUT = (
    "Scale-out endpoints are disabled. Restart vllm serve with --enable-scale-out to enable them."
)
NO_PARSER = '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'
_CALL = re.compile(re.escape(BEGIN) + r"(.*?)" + re.escape(END), re.DOTALL)


def json_text(value: object) -> str:
    """Write *value* as vLLM does, with integers of any size."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def shown(tools: Sequence[Mapping[str, Any]]) -> str:
    """Return the turn that shows *tools*."""
    return TOOLS + json_text(tools)


def listed(text: str) -> list[dict[str, Any]]:
    """
    Read the tools of a conversation, whose first turn has this *text*; none if it does not show
    any.
    """
    return json.loads(text.removeprefix(TOOLS)) if text.startswith(TOOLS) else []


def spelt(message: Mapping[str, Any]) -> str:
    """Return the text of *message* with its calls."""
    calls = [
        written(each["function"]["name"], each["function"]["arguments"])
        for each in message.get("tool_calls", ())
    ]
    return "\n".join([text for text in (message.get("content") or "", *calls) if text])


def written(name: str, arguments: str) -> str:
    """Return a call as the stand-in writes it."""
    return f'{BEGIN}\n{{"name": "{name}", "arguments": {arguments}}}\n{END}'


def parse(text: str) -> tuple[str, list[tuple[str, str]]]:
    """
    Split *text* of an answer, as far as it is written, into its content and its complete calls.
    """
    content = text.partition(BEGIN)[0]
    if content == text:
        partial = next(
            (size for size in range(len(BEGIN) - 1, 0, -1) if text.endswith(BEGIN[:size])), 0
        )
        content = text[: len(text) - partial]
    calls = [json.loads(match) for match in _CALL.findall(text)]
    return content, [(call["name"], json_text(call["arguments"])) for call in calls]


def required(request: Mapping[str, Any]) -> str | None:
    """
    Return the tool that an answer to the chat completion *request* has to call; None if it need not
    call one.
    """
    choice = request.get("tool_choice", "auto")
    if not isinstance(choice, str):
        return str(choice["function"]["name"])
    return str(request["tools"][0]["function"]["name"]) if choice == "required" else None


def rendered(request: Mapping[str, Any]) -> dict[str, Any]:
    """
    Answer a request to vLLM's route that renders chat completions, as far as it is about tools.
    """
    name = required(request)
    outputs = {"structured_outputs": {"json": None, "structural_tag": name}} if name else {}
    return {"token_ids": [0], "sampling_params": {"temperature": 1.0, **outputs}}


def derendered_whole(body: Mapping[str, Any], text: str) -> dict[str, Any]:
    """Answer a request to vLLM's route that parses the complete answer *text*."""
    content, calls = parse(text)
    made = [
        {
            "id": f"call-{index}",
            "type": "function",
            "function": {"name": name, "arguments": arguments},
        }
        for index, (name, arguments) in enumerate(calls)
    ]
    message = {"role": "assistant", "content": content if calls else text, "tool_calls": made}
    return {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}


def derendered(body: Mapping[str, Any], before: str, text: str) -> dict[str, Any]:
    """Answer a request to vLLM's route that parses an answer: its text *before*, and now."""
    state: Mapping[str, Any] = body["stream_state"] or {}
    (chunk,) = body["generate_chunk"]["choices"]
    old_content, old_calls = parse(before)
    content, calls = parse(text)
    if chunk["finish_reason"] and not calls:
        content = text
    new = list(enumerate(calls))[len(old_calls) :]
    pieces = [
        {"index": index, "id": f"call-{index}", "function": {"name": name, "arguments": arguments}}
        for index, (name, arguments) in new
        if index == 0 or body["chat_request"].get("parallel_tool_calls", True)
    ]
    ids = [*state.get("output_token_ids", ()), *chunk["token_ids"]]
    lengths = [
        *state.get("output_chunk_lens", ()),
        *([len(chunk["token_ids"])] if chunk["token_ids"] else []),
    ]
    delta = {"content": content.removeprefix(old_content) or None, "tool_calls": pieces}
    after = {"output_token_ids": ids, "output_chunk_lens": lengths, "tools_streamed": bool(calls)}
    return {"chunk": {"choices": [{"index": 0, "delta": delta}]}, "stream_state": after}
