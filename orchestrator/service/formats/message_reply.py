"""
The replies of Anthropic's API: a run as a message of content blocks, in one piece or as events.

The thinking is a block, in which each verified step is one delta with the field ``stepspec``; the answer is the next.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from ...answer import is_json
from ...events import Answered, Calling, Committed, Event
from ...solution import Solution
from ..http.errors import ApiError
from ..http.runs import PROGRESS, RunItem, Runs
from ..settings import Thinking
from ..watch.records import RunResult, ServiceRequest
from . import deltas
from .deltas import Delta, DeltaBuilder
from .messages import MessagesRequest
from .schemas import arguments_object

SIGNATURE = "stepspec"
"""
The signature of every block of thinking. Clients send it back unread, and nothing here depends on it.

Anthropic's own API refuses it: it accepts the thinking of its own models only.
"""


def event(kind: str, **fields: Any) -> bytes:
    """Return one event of a stream."""
    return b"event: " + kind.encode() + b"\ndata: " + orjson.dumps({"type": kind, **fields}) + b"\n\n"


PING = event("ping")


class ContentBlocks:
    """
    The content *blocks* of one message, and the events of a stream that build them.

    The calls of tools are told apart by their index, as a server may repeat an id.
    """

    def __init__(self) -> None:
        self.blocks: list[dict[str, Any]] = []
        self._open = False
        self._call = -1  # the index of the open call
        self._inputs: dict[int, str] = {}  # JSON texts, by the index of the block

    def add(self, delta: Delta) -> bytes:
        """Add *delta* to the open block, or to new ones; return the events."""
        events = b""
        for name, text in delta.fields.items():
            kind = "thinking" if name == "reasoning" else "text"
            if not self._open or self.blocks[-1]["type"] != kind:
                events += self.close() + self._start({"type": kind, kind: ""})
            self.blocks[-1][kind] += text
            about = {"stepspec": delta.step} if delta.step else {}
            events += self._delta({"type": f"{kind}_delta", kind: text}, **about)
        return events + b"".join(map(self._add_call, delta.calls))

    def _add_call(self, piece: Calling) -> bytes:
        events = b""
        if not self._open or self.blocks[-1]["type"] != "tool_use" or piece.index != self._call:
            events = self.close() + self._start({"type": "tool_use", "id": piece.id, "name": piece.name})
            self._call = piece.index
        block = len(self.blocks) - 1
        self._inputs[block] = self._inputs.get(block, "") + piece.arguments
        return events + (
            self._delta({"type": "input_json_delta", "partial_json": piece.arguments}) if piece.arguments else b""
        )

    def close(self) -> bytes:
        """Complete the open block, if there is one; return the events."""
        if not self._open:
            return b""
        self._open, signed = False, b""
        if self.blocks[-1]["type"] == "thinking":
            self.blocks[-1]["signature"] = SIGNATURE
            signed = self._delta({"type": "signature_delta", "signature": SIGNATURE})
        return signed + event("content_block_stop", index=len(self.blocks) - 1)

    def finish(self, *, cut: bool) -> bytes:
        """
        Complete the last block; return the events. A message has one at least: clients read the first unasked.

        Of an answer that was *cut* off, calls whose arguments are no JSON are left out. A stream has begun them.
        """
        events = self.close()
        for block, text in self._inputs.items():
            self.blocks[block]["input"] = orjson.loads(arguments_object(text))
        lost = {block for block, text in self._inputs.items() if cut and not is_json(text)}
        self.blocks = [block for index, block in enumerate(self.blocks) if index not in lost]
        return events if self.blocks else events + self._start({"type": "text", "text": ""}) + self.close()

    def _start(self, block: dict[str, Any]) -> bytes:
        self.blocks.append(block)
        self._open = True
        more: Mapping[str, dict[str, Any]] = {"thinking": {"signature": ""}, "tool_use": {"input": {}}}
        begun = block | more.get(block["type"], {})
        return event("content_block_start", index=len(self.blocks) - 1, content_block=begun)

    def _delta(self, delta: Mapping[str, Any], **fields: Any) -> bytes:
        return event("content_block_delta", index=len(self.blocks) - 1, delta=delta, **fields)


class RawAnswer:
    """An observer of one run that keeps the answer as the model wrote it, with the stop sequence that ended it."""

    def __init__(self) -> None:
        self._text = ""
        self._thought = False

    def __call__(self, event: Event) -> None:
        match event:
            case Committed(step=step) if self._thought:
                self._text += step.text
            case Committed(step=step):
                self._thought = step.closes
            case Answered(step=step):
                self._text = step.text
            case _:
                pass

    def stopped_by(self, stops: Sequence[str]) -> str | None:
        """Return which of *stops* ended the answer; None if none did."""
        places = {stop: place for stop in stops if (place := self._text.find(stop)) >= 0}
        return min(places, key=lambda stop: places[stop]) if places else None


class MessagesReply:
    """Writes the one run of *runs* as a message. A `ReplyFormat`."""

    keep_alive = PING
    starts_at = PROGRESS

    def __init__(self, runs: Runs, request: ServiceRequest, body: MessagesRequest, thinking: Thinking) -> None:
        self._runs, self._model = runs, body.model
        (self._run_request,) = runs.run_requests
        self._builder = DeltaBuilder(deltas.one_field(thinking), thinks=runs.thinks)
        self._id = request.id
        self._content, self._raw = ContentBlocks(), RawAnswer()

    async def opening(self) -> bytes:
        used = _usage(await self._runs.prompt_tokens(), {})
        return event("message_start", message=self._message() | {"usage": used | TIER}) + PING

    def render(self, item: RunItem) -> bytes:
        if not isinstance(item, RunResult):
            self._raw(item.event)
        return self._content.add(self._builder.add(item))

    async def closing(self) -> bytes:
        events, used = self._finish(), await self._used()
        ended = event("message_delta", delta=self._ended(), usage=used, **self._runs.extension([0]))
        return events + ended + event("message_stop")

    def failed(self, error: ApiError, body: bytes) -> bytes:
        return deltas.FAILED_EVENT % body

    async def body(self) -> dict[str, Any]:
        self._finish()
        return self._message() | self._ended() | {"usage": await self._used() | TIER} | self._runs.extension([0])

    def _finish(self) -> bytes:
        return self._content.finish(cut=self._runs.solutions[0].finish_reason != "stop")

    async def _used(self) -> dict[str, Any]:
        counted = await self._runs.usage()
        return _usage(counted["prompt_tokens"], counted)

    def _ended(self) -> dict[str, Any]:
        solution, stopped = self._runs.solutions[0], self._raw.stopped_by(self._run_request.stop)
        reason = stop_reason(solution, stopped)
        return {"stop_reason": reason, "stop_sequence": stopped if reason == "stop_sequence" else None}

    def _message(self) -> dict[str, Any]:
        return {
            "id": f"msg_{self._id}",
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": self._content.blocks,
            "stop_reason": None,
            "stop_sequence": None,
        }


def stop_reason(solution: Solution, stopped: str | None) -> str:
    """Return Anthropic's reason for the end of a message, whose answer was *stopped* by a stop sequence or not."""
    match solution.finish_reason:
        case "stop" if stopped is not None and not solution.calls:
            return "stop_sequence"
        case "stop":
            return "tool_use" if solution.calls else "end_turn"
        case "context":
            return "model_context_window_exceeded"
        case _:
            return "max_tokens"


TIER = {"service_tier": "standard"}
"""What the usage of a message has, and that of its last event has not."""


def _usage(prompt: int, counted: Mapping[str, Any]) -> dict[str, Any]:
    """Return the usage of a message: of the *prompt*, the tokens in the prefix cache are counted separately."""
    cached = counted["prompt_tokens_details"]["cached_tokens"] if counted else 0
    thinking = counted["completion_tokens_details"]["reasoning_tokens"] if counted else 0
    return {
        "input_tokens": prompt - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": counted["completion_tokens"] if counted else 0,
        "output_tokens_details": {"thinking_tokens": thinking},
    }
