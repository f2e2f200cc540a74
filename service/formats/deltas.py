"""From the events of a run to the fields of a reply: deltas, usage, steps, ledgers. No I/O."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from starlette.responses import Response

from stepspec.orchestrator.chain import THINK_END, Step, ToolCall
from stepspec.orchestrator.events import (
    Answered,
    Answering,
    Called,
    Calling,
    Committed,
    Event,
    Started,
)
from stepspec.orchestrator.json_values import write_json
from stepspec.orchestrator.ledger import Ledger
from stepspec.orchestrator.markers import may_open_block, opened_by
from stepspec.orchestrator.solution import Solution
from stepspec.orchestrator.trace import EventLog

from ..records import RunEvent, RunResult
from ..settings import Thinking
from .requests import RunRequest
from .schemas import has_arguments

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"
# %b: the body of the error
FAILED = b"data: %b\n\n" + DONE
FAILED_EVENT = b"event: error\ndata: %b\n\n"
OPEN = "<think>\n"
CLOSE = "\n</think>\n\n"
FIELDS: Mapping[Thinking, tuple[str, ...]] = {
    "both": ("reasoning", "reasoning_content"),
    "reasoning": ("reasoning",),
    "reasoning_content": ("reasoning_content",),
    "content": (),
    "none": (),
}
"""The fields of a message that hold the thinking."""


def one_field(thinking: Thinking) -> Thinking:
    """
    Return the place of the *thinking* in an API whose messages have one field for it,
    ``reasoning``.
    """
    return "reasoning" if thinking in ("both", "reasoning_content") else thinking


class CallPieces:
    """
    The pieces of an answer's calls as clients may join them to JSON: a call without arguments has
    ``{}``.

    What may still become ``null`` is held back. Calls are told apart by their index: servers may
    repeat an id.
    """

    def __init__(self) -> None:
        self._index = -1
        self._held = ""
        self._begun = True

    def add(self, piece: Calling) -> Iterator[Calling]:
        """Take in *piece*, and yield what can be sent now."""
        if piece.index != self._index:
            yield from self.close()
            self._index = piece.index
            self._held = ""
            self._begun = False
        if not self._begun:
            self._held += piece.arguments
            waits = "null".startswith(self._held.strip())
            piece = replace(piece, arguments="" if waits else self._held)
            self._begun = not waits
        if piece.id or piece.name or piece.arguments:
            yield piece

    def close(self) -> Iterator[Calling]:
        """Yield the end of the last call, which is complete."""
        if not self._begun:
            self._begun = True
            yield Calling(self._index, arguments="{}")


def written_arguments(call: ToolCall) -> str:
    """Return the arguments of a complete *call* as an answer has them."""
    return call.arguments if has_arguments(call.arguments) else "{}"


@dataclass(frozen=True, slots=True)
class Delta:
    """
    A further part of a message: what *ended* a call, text by field, and then pieces of *calls*. It
    may be empty.

    *step* describes the step that it is; None if it is no step.
    """

    fields: Mapping[str, str]
    step: Mapping[str, Any] | None = None
    calls: tuple[Calling, ...] = ()
    ended: tuple[Calling, ...] = ()


class ThinkingBlock:
    """
    Follows the steps of one run: those in its thinking block, which is *open* at first or opened by
    the text.
    """

    def __init__(self, *, open: bool = True) -> None:
        self._open = open
        self._over = False
        self._begun = ""

    def add(self, step: Step) -> str | None:
        """
        Return what *step* adds to the thinking, without the marks; None if it is not, or not yet,
        in the block.
        """
        if self._over:
            return None
        text = step.reasoning
        if not self._open:
            self._begun += step.text
            opened = opened_by(self._begun)
            self._open = opened is not None
            self._over = not may_open_block(self._begun)
            if opened is None:
                return None
            text = self._begun.removesuffix(THINK_END if step.closes else "")[
                len(opened.begun(self._begun)) :
            ]
        self._over = step.closes
        return text


class DeltaBuilder:
    """
    Builds the message of one run as deltas; those of a field join to the same text, streamed or
    not.

    Steps outside of a thinking block are the content, which `Answering` has: all of them with a
    model that does not think, and those after the thinking with a method that reasons through the
    answer.
    """

    def __init__(self, thinking: Thinking) -> None:
        self._thinking: Thinking = thinking
        self._block = ThinkingBlock()
        self._tag_open = False
        self._answer = ""
        self._calls = CallPieces()

    def add(self, item: RunEvent | RunResult) -> Delta:
        return (
            self.finish(item.solution)
            if isinstance(item, RunResult)
            else self.add_event(item.event)
        )

    def add_event(self, event: Event) -> Delta:
        match event:
            case Started(thinks=thinks):
                self._block = ThinkingBlock(open=thinks)
                return Delta({})
            case Committed(index=index, step=step, score=score):
                about = {
                    "index": index,
                    "author": step.author,
                    "grade": score,
                    "fate": "kept",
                    "reason": step.note,
                }
                thought = self._block.add(step)
                return Delta({} if thought is None else self._think(thought), about)
            case Answering(text=text):
                self._answer += text
                return Delta({"content": self._close() + text}, ended=tuple(self._calls.close()))
            case Calling():
                return Delta(_content(self._close()), calls=tuple(self._calls.add(event)))
            case _:
                return Delta({})

    def finish(self, solution: Solution) -> Delta:
        """
        Return the rest of the message when the run is over. A call without arguments is complete
        unless cut off.
        """
        rest = (
            solution.text.removeprefix(self._answer)
            if solution.text.startswith(self._answer)
            else ""
        )
        ended = tuple(self._calls.close()) if solution.finish_reason == "stop" else ()
        return Delta(_content(self._close() + rest), ended=ended)

    def _think(self, text: str) -> Mapping[str, str]:
        if self._thinking != "content":
            return dict.fromkeys(FIELDS[self._thinking], text)
        opening = "" if self._tag_open else OPEN
        self._tag_open = True
        return {"content": opening + text}

    def _close(self) -> str:
        closing = CLOSE if self._tag_open else ""
        self._tag_open = False
        return closing


def _content(text: str) -> Mapping[str, str]:
    return {"content": text} if text else {}


class TokenCounts:
    """
    An observer of one run that counts its tokens, and the seconds in which a served model was busy.
    """

    def __init__(self) -> None:
        self.reasoning = self.answer = self.written = 0
        self._block = ThinkingBlock()
        self.events = EventLog()

    def __call__(self, event: Event) -> None:
        self.events.append(event)
        match event:
            case Started(thinks=thinks):
                self._block = ThinkingBlock(open=thinks)
            case Committed(step=step) if self._block.add(step) is None:
                self.answer += len(step.tokens)
            case Committed(step=step):
                self.reasoning += len(step.tokens)
            case Answered(step=step):
                self.answer += len(step.tokens)
            case Called():
                self.written += event.written
            case _:
                pass

    @property
    def _calls(self) -> list[Called]:
        return [event for event in self.events if isinstance(event, Called)]

    @property
    def prompt(self) -> int:
        """The prompt tokens of the first request to a model."""
        return min(calls, key=lambda call: call.started).prompt if (calls := self._calls) else 0

    @property
    def cached(self) -> int:
        """How many of these prompt tokens were in the server's prefix cache."""
        return min(calls, key=lambda call: call.started).cached if (calls := self._calls) else 0

    @property
    def upstream(self) -> float:
        """Seconds in which at least one request to a model was open."""
        busy = end = 0.0
        for start, stop in sorted(
            (call.started, call.started + call.seconds) for call in self._calls
        ):
            busy += max(0.0, stop - max(start, end))
            end = max(end, stop)
        return busy


def usage(prompt: int, counts: Sequence[TokenCounts]) -> dict[str, Any]:
    """
    Return the usage as one model alone would report it: the conversation once, and the tokens that
    were kept.

    Discarded tokens and those of judging are in the ledger.
    """
    reasoning = sum(count.reasoning for count in counts)
    completion = reasoning + sum(count.answer for count in counts)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {
            "cached_tokens": min(prompt, max((count.cached for count in counts), default=0))
        },
        "completion_tokens_details": {"reasoning_tokens": reasoning},
    }


def finish_reason(solution: Solution) -> str:
    """Return OpenAI's finish reason; the field ``stepspec`` has the exact one."""
    if solution.finish_reason != "stop":
        return "length"
    return "tool_calls" if solution.calls else "stop"


def about(solution: Solution, run_request: RunRequest) -> dict[str, Any]:
    """Return the field ``stepspec`` of one run."""
    ledger = solution.ledger
    return {
        "method": run_request.run.policy,
        "answer": solution.answer,
        "finish_reason": solution.finish_reason,
        "seconds": solution.seconds,
        "seed": solution.seed,
        "accept_rate": ledger.accept_rate,
        "share_large": ledger.share_large,
        "degraded": list(solution.degraded),
        "verified": solution.verified,
        "rejection": solution.rejection or None,
    }


def steps(solutions: Sequence[Solution]) -> list[dict[str, Any]]:
    """
    Return every written step with its fate, and with the index of its choice if there are several
    choices.
    """
    return [
        dataclasses.asdict(step) | ({"choice": choice} if len(solutions) > 1 else {})
        for choice, solution in enumerate(solutions)
        for step in solution.steps
    ]


def ledger(ledger: Ledger) -> dict[str, Any]:
    """Return the *ledger* of a run with its rates."""
    return dataclasses.asdict(ledger) | {
        "accept_rate": ledger.accept_rate,
        "share_large": ledger.share_large,
    }


def response_error(status: int, message: str) -> dict[str, Any]:
    """
    Return the error of a failed response; *status* is the HTTP status that it would have had before
    the stream.
    """
    code = (
        "rate_limit_exceeded"
        if status == 429
        else "server_error"
        if status >= 500
        else "invalid_prompt"
    )
    return {"code": code, "message": message}


def response_failed(response: Mapping[str, Any], number: int, status: int, message: str) -> bytes:
    """
    Return the last event, with this sequence *number*, of a stream of the Responses API that fails.
    """
    failed = {**response, "status": "failed", "error": response_error(status, message)}
    return named_event("response.failed", sequence_number=number, response=failed)


def named_event(kind: str, **fields: Any) -> bytes:
    return b"event: " + kind.encode() + b"\n" + event({"type": kind, **fields})


def event(body: Mapping[str, Any]) -> bytes:
    return b"data: " + write_json(body) + b"\n\n"


def json_response(body: Mapping[str, Any], status: int = 200) -> Response:
    return Response(write_json(body), status, media_type="application/json")


def solution(solution: Solution) -> dict[str, Any]:
    """Return the summary that follows the events of a run."""
    total = ledger(solution.ledger)
    return {
        "answer": solution.answer,
        "text": solution.text,
        "finish_reason": solution.finish_reason,
        "seconds": solution.seconds,
        "verified": solution.verified,
        "rejection": solution.rejection,
        "ledger": total,
        "accept_rate": total["accept_rate"],
        "share_large": total["share_large"],
    }
