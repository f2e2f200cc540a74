"""
Tools in vLLM's HTTP protocol: conversations with calls, the form of an answer with calls, and the
parser of one.

The parser is the server's own, which its flag ``--tool-call-parser`` names. It is reached by the
routes that the flag ``--enable-scale-out`` opens: `RENDER` says how an answer has to be written for
a choice of tools, and `DERENDER` turns the token ids of an answer into its content and its calls,
piece by piece. It keeps no state between two requests: each has that of the one before,
`ParserState`. Pure: no I/O and no clock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, cast

from ..chain import Message, Tool, Toolset
from ..errors import EndpointRejected, MissingCapability
from ..events import Calling
from ..json_values import json_text, read_json, readable_json
from .vllm_protocol import Body, Call, Reply, ServerFormat, reading

RENDER, DERENDER = "/v1/chat/completions/render", "/v1/chat/completions/derender"
MOST_PROMPT = 64  # tokens of a prompt that the parser needs: the end of the thinking is among them
FLAGS = "--enable-scale-out --enable-auto-tool-choice --tool-call-parser NAME"
CURE = (
    f"start vLLM with {FLAGS}, where NAME is the parser of this model (vllm serve"
    " --help=tool-call-parser)"
)

ParserState: TypeAlias = Mapping[str, Any]
"""What the parser has taken in, in the server's own words; empty at the beginning of an answer."""
_PLACEHOLDER = ({"role": "user", "content": "?"},)
"""The conversation of requests whose tools matter, and nothing else."""


def message_fields(message: Message) -> dict[str, Any]:
    """
    Return *message* in the form of a chat completion's request; the chat template sees all of it.
    """
    fields: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.calls:
        fields["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": readable_json(call.arguments)},
            }
            for call in message.calls
        ]
    if message.call_id:
        fields["tool_call_id"] = message.call_id
    if message.reasoning:
        fields["reasoning"] = message.reasoning
    return fields


def tool_fields(tool: Tool) -> dict[str, Any]:
    """Return *tool* in the form of a chat completion's request."""
    function: dict[str, Any] = {"name": tool.name}
    if tool.description:
        function["description"] = tool.description
    if tool.parameters:
        function["parameters"] = read_json(readable_json(tool.parameters))
    if tool.strict is not None:
        function["strict"] = tool.strict
    return {"type": "function", "function": function}


def chat_request(model: str, toolset: Toolset) -> Body:
    """Return the request that tells a server about the *toolset*."""
    named = toolset.choice not in ("auto", "none", "required")
    return {
        "model": model,
        "messages": _PLACEHOLDER,
        "tools": [tool_fields(tool) for tool in toolset.tools],
        "tool_choice": (
            {"type": "function", "function": {"name": toolset.choice}} if named else toolset.choice
        ),
        "parallel_tool_calls": toolset.parallel,
    }


def answer_format(call: Call, reply: Reply) -> ServerFormat | None:
    """Read from a reply of `RENDER` how an answer has to be written; None: in any form."""
    with reading(call, "form of calls", reply):
        outputs = reply["sampling_params"].get("structured_outputs")
        if not outputs:
            return None
        return ServerFormat(
            {name: value for name, value in outputs.items() if value and not name.startswith("_")}
        )


def no_parser(exc: EndpointRejected) -> MissingCapability | None:
    """
    Return the error, with its cure, if the server rejected a request because it has no parser; None
    otherwise.
    """
    cause = exc.cause.lower()
    if "scale-out" in cause or cause.startswith(("http 404", "http 405")):
        why = "tools need the routes that its flag --enable-scale-out opens"
    elif "tool-call-parser" in cause or "auto-tool-choice" in cause or "tool_parser" in cause:
        why = "it has no parser for the calls of tools"
    else:
        return None
    return MissingCapability(f"the {exc.role} model at {exc.url}: {why}: {CURE}")


def parser_body(
    model: str,
    toolset: Toolset,
    prompt: Sequence[int],
    ids: Sequence[int],
    state: ParserState,
    *,
    finished: bool,
) -> Body:
    """
    Ask for what *ids*, the next ones of an answer after *prompt*, add to its content and its calls.
    """
    choice = {"index": 0, "token_ids": list(ids), "finish_reason": "stop" if finished else None}
    return {
        "model": model,
        "stream": True,
        "generate_chunk": {"request_id": "answer", "choices": [choice]},
        "stream_state": state or None,
        "chat_request": chat_request(model, toolset),
        "prompt_token_ids": list(prompt[-MOST_PROMPT:]),
    }


def parsed(call: Call, reply: Reply) -> tuple[str, tuple[Calling, ...], ParserState]:
    """
    Read a reply of `DERENDER`: further content, further pieces of calls, and the state. Raise
    `MalformedReply`.
    """
    with reading(call, "content and calls", reply):
        state = cast("ParserState", reply["stream_state"])
        delta: Mapping[str, Any] = reply["chunk"]["choices"][0]["delta"]
        pieces = [_piece(piece) for piece in delta.get("tool_calls") or ()]
        return delta.get("content") or "", tuple(pieces), _short(state)


def _piece(piece: Mapping[str, Any]) -> Calling:
    function: Mapping[str, Any] = piece.get("function") or {}
    arguments = function.get("arguments")
    if not isinstance(arguments, str):  # some parsers give the value itself
        arguments = "" if arguments is None else json_text(arguments)
    return Calling(
        int(piece["index"]), piece.get("id") or "", function.get("name") or "", arguments
    )


def _short(state: ParserState) -> ParserState:
    """
    Join the pieces of *state* to one while no call has begun: the server replays them one by one
    for every request.

    Once a call has begun the pieces stay, as parsers remember which parts of it they have emitted.
    """
    if state.get("tools_streamed") or not state.get("output_token_ids"):
        return state
    return {**state, "output_chunk_lens": [len(state["output_token_ids"])]}
