"""
Tools in vLLM's HTTP protocol. Pure: no I/O.

The parser of calls is the server's own, which its flag ``--tool-call-parser`` names. The flag
``--enable-scale-out`` opens the routes to the parser. `RENDER` says in which form an answer has to
be written for a choice of tools. `DERENDER` turns the token ids of an answer into its content and
its calls. The ids are a complete answer, or the next tokens of an answer that is being written.
The server keeps no state between two requests: each request has the `ParserState` of the one
before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from ...chain import Message, Tool, ToolCall, Toolset
from ...endpoints.interfaces import ParsedAnswer, ParsedTokens, ParserState, ServerFormat
from ...errors import EndpointRejected, MissingCapability
from ...events import Calling
from ...http.http_errors import Call, Reply, reading
from ...http.paths import Body
from ...json_values import json_text, read_json, readable_json
from .bodies import Variables

RENDER = "/v1/chat/completions/render"
DERENDER = "/v1/chat/completions/derender"

CURE = (
    "start vLLM with --enable-scale-out --enable-auto-tool-choice --tool-call-parser NAME, where"
    " NAME is the parser of this model (vllm serve --help=tool-call-parser)"
)

_NOT_THINKING = {"enable_thinking": False, "thinking": False}
"""The variables by which parsers learn that an answer does not begin with thinking."""

_PLACEHOLDER = ({"role": "user", "content": "?"},)
"""The conversation of requests whose tools matter, and nothing else."""


def message_fields(message: Message) -> Body:
    """Return *message* in the form of a chat completion's request."""
    calls = [
        {
            "id": call.id,
            "type": "function",
            "function": {"name": call.name, "arguments": readable_json(call.arguments)},
        }
        for call in message.calls
    ]
    others = {
        "tool_calls": calls,
        "tool_call_id": message.call_id,
        "name": message.name,
        "reasoning": message.reasoning,
    }
    fields: Body = {"role": message.role, "content": message.content}
    return fields | {name: value for name, value in others.items() if value}


def tool_fields(tool: Tool) -> Body:
    """Return *tool* in the form of a chat completion's request."""
    function: Body = {
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.parameters and read_json(readable_json(tool.parameters)),
        "strict": tool.strict,
    }
    given = {name: value for name, value in function.items() if value is not None}
    return {"type": "function", "function": given}


def chat_request(model: str, toolset: Toolset) -> Body:
    """Return the request that tells a server about the *toolset*."""
    choice: object = toolset.choice
    if toolset.forced:
        choice = {"type": "function", "function": {"name": toolset.forced}}
    return {
        "model": model,
        "messages": _PLACEHOLDER,
        "tools": [tool_fields(tool) for tool in toolset.tools],
        "tool_choice": choice,
        "parallel_tool_calls": toolset.parallel,
    }


def parsing_body(model: str, toolset: Toolset, template: Variables, block: Sequence[int]) -> Body:
    """
    Ask `DERENDER` to parse an answer, which other fields describe.

    *template* has variables of the chat template. The parser is given what follows the thinking,
    and must not look for thinking. *block* is the empty thinking block before the answer.
    """
    variables = {**template, **_NOT_THINKING}
    return {
        "model": model,
        "chat_request": chat_request(model, toolset) | {"chat_template_kwargs": variables},
        "prompt_token_ids": block,
    }


def answer_format(call: Call, reply: Reply) -> ServerFormat | None:
    """Return the form of an answer that a reply of `RENDER` describes. None: any form."""
    with reading(call, "form of calls", reply):
        outputs = reply["sampling_params"].get("structured_outputs")
        if not outputs:
            return None
        return ServerFormat(
            {name: value for name, value in outputs.items() if value and not name.startswith("_")}
        )


def no_parser(call: Call, exc: EndpointRejected) -> MissingCapability | None:
    """Return the error, with its cure, of a server without a parser. None: it has one."""
    cause = exc.cause.lower()
    if "scale-out" in cause or cause.startswith(("http 404", "http 405")):
        return call.missing(f"tools need the routes that its flag --enable-scale-out opens: {CURE}")
    if any(flag in cause for flag in ("tool-call-parser", "auto-tool-choice", "tool_parser")):
        return call.missing(f"it has no parser for the calls of tools: {CURE}")
    return None


def answer_fields(ids: Sequence[int]) -> Body:
    """Ask `DERENDER` for the content and the calls of the complete answer *ids*."""
    return {"generate_response": _written(ids, "stop")}


def tokens_fields(ids: Sequence[int], state: ParserState, *, finished: bool) -> Body:
    """
    Ask `DERENDER` for what *ids*, the next ones of an answer, add to its content and its calls.

    A *finished* answer ends with these ids.
    """
    return {
        "stream": True,
        "generate_chunk": _written(ids, "stop" if finished else None),
        "stream_state": state or None,
    }


def _written(ids: Sequence[int], finish_reason: str | None) -> Body:
    choice = {"index": 0, "token_ids": ids, "finish_reason": finish_reason}
    return {"request_id": "answer", "choices": [choice]}


def parsed_answer(call: Call, reply: Reply, *, parallel: bool) -> ParsedAnswer:
    """
    Return the answer in a reply of `DERENDER`, without *parallel* with its first call only.

    Raise `MalformedReply`.
    """
    with reading(call, "content and calls", reply):
        message: Reply = reply["choices"][0]["message"]
        calls = [
            ToolCall(fields.get("id") or "", fields["function"]["name"], _arguments(fields))
            for fields in message.get("tool_calls") or ()
        ]
        return ParsedAnswer(
            content=message.get("content") or "",
            calls=tuple(calls if parallel else calls[:1]),
            reasoning=message.get("reasoning") or "",
        )


def parsed_tokens(call: Call, reply: Reply) -> ParsedTokens:
    """Return what a reply of `DERENDER` says about tokens of an answer. Raise `MalformedReply`."""
    with reading(call, "content and calls", reply):
        state = cast("ParserState", reply["stream_state"])
        delta: Reply = reply["chunk"]["choices"][0]["delta"]
        pieces = [
            Calling(
                int(piece["index"]),
                piece.get("id") or "",
                _function(piece).get("name") or "",
                _arguments(piece),
            )
            for piece in delta.get("tool_calls") or ()
        ]
        return ParsedTokens(delta.get("content") or "", tuple(pieces), state)


def _function(call: Reply) -> Reply:
    return call.get("function") or {}


def _arguments(call: Reply) -> str:
    """Return the arguments of a *call* as text; some parsers give the value itself."""
    arguments = _function(call).get("arguments")
    if isinstance(arguments, str):
        return arguments
    return "" if arguments is None else json_text(arguments)
