"""The fields of a reply, made of the events of a run: deltas, usage, steps, ledgers. No I/O."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from starlette.responses import Response

from stepspec.orchestrator.chain import THINK_END, Step, ToolCall
from stepspec.orchestrator.events import (
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

from ..json_types import JsonFields, JsonObject
from ..records import RunEvent, RunResult
from ..settings import Thinking
from .schemas import has_arguments

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"
OPENAI_ERROR_EVENT = b"data: %b\n\n" + DONE
"""The end of a stream of OpenAI's API that fails. ``%b`` is the body of the error."""
ANTHROPIC_ERROR_EVENT = b"event: error\ndata: %b\n\n"
"""The end of a stream of Anthropic's API that fails. ``%b`` is the body of the error."""
THINK_OPENING = "<think>\n"
THINK_CLOSING = "\n</think>\n\n"
FIELDS: Mapping[Thinking, tuple[str, ...]] = {
    "both": ("reasoning", "reasoning_content"),
    "reasoning": ("reasoning",),
    "reasoning_content": ("reasoning_content",),
    "content": (),
    "none": (),
}
"""The fields of a message that have the thinking, by the place of the thinking."""


def written_arguments(call: ToolCall) -> str:
    """Return the arguments of a complete *call* as replies write them."""
    return call.arguments if has_arguments(call.arguments) else "{}"


@dataclass(frozen=True, slots=True)
class Delta:
    """A further piece of a message. It may be empty."""

    fields: Mapping[str, str] = field(default_factory=dict[str, str])
    """Text to append, by the field of the message."""
    step: JsonFields | None = None
    """The description of the step that this piece is. None: it is no step."""
    call: Calling | None = None
    """A piece of a call. None: the piece is no call."""


class ThinkingTracker:
    """Finds the thinking block of one run in its steps. The block may be *open* from the start."""

    def __init__(self, *, open: bool = True) -> None:
        self._open = open
        self._over = False
        self._begun = ""  # the text before and within the block, until the block is open

    def add(self, step: Step) -> str | None:
        """
        Return the text that *step* adds to the thinking, without the marks of the block.

        Return None if the step is before or after the block.
        """
        if self._over:
            return None
        text = step.reasoning
        if not self._open:
            self._begun += step.text
            marks = opened_by(self._begun)
            if marks is None:
                self._over = not may_open_block(self._begun)
                return None
            self._open = True
            text = self._begun.removesuffix(THINK_END if step.closes else "")
            text = text[len(marks.begun(self._begun)) :]
        self._over = step.closes
        return text


class DeltaBuilder:
    """
    Builds the message of one run as deltas. The deltas of a field join to the same text, streamed
    or not.

    Steps outside of a thinking block are content. The content comes from `Answering`. All steps are
    content if the model does not think, and the steps after the thinking are content if the method
    reasons through the answer.

    A call without arguments gets ``{}``, so arguments are held back while they may become ``null``.
    An index identifies a call, since servers may repeat an id.
    """

    def __init__(self, thinking: Thinking) -> None:
        self.texts = dict.fromkeys(("content", *FIELDS[thinking]), "")
        """The texts of the message so far, by field."""
        self._thinking: Thinking = thinking
        self._tracker = ThinkingTracker()
        self._tag_open = False
        self._answer = ""
        self._call_index = -1  # of the last call
        self._held: str | None = None  # its arguments, while they may become "null"; None: sent

    def add(self, item: RunEvent | RunResult) -> Iterator[Delta]:
        if isinstance(item, RunResult):
            return self.finish(item.solution)
        return self.add_event(item.event)

    def add_event(self, event: Event) -> Iterator[Delta]:
        match event:
            case Started(thinks=thinks):
                self._tracker = ThinkingTracker(open=thinks)
            case Committed(index=index, step=step, score=score):
                about = {
                    "index": index,
                    "author": step.author,
                    "grade": score,
                    "fate": "kept",
                    "reason": step.note,
                }
                yield self._text(self._think(self._tracker.add(step)), about)
            case Answering(text=text):
                self._answer += text
                yield from self._end_call()
                yield from self._content(text)
            case Calling():
                yield from self._content("")
                yield from self._continue_call(event)
            case _:
                pass

    def finish(self, solution: Solution) -> Iterator[Delta]:
        """
        Yield the rest of the message when the run is over.

        The last call is complete unless the answer was cut off.
        """
        if solution.finish_reason == "stop":
            yield from self._end_call()
        rest = ""
        if solution.text.startswith(self._answer):
            rest = solution.text.removeprefix(self._answer)
        yield from self._content(rest)

    def _think(self, text: str | None) -> Mapping[str, str]:
        """Return the fields for *text*, a part of the thinking. None: there is none."""
        if text is None:
            return {}
        if self._thinking != "content":
            return dict.fromkeys(FIELDS[self._thinking], text)
        opening = "" if self._tag_open else THINK_OPENING
        self._tag_open = True
        return {"content": opening + text}

    def _content(self, text: str) -> Iterator[Delta]:
        """Yield *text* of the answer, after the end of the thinking that is in the content."""
        if self._tag_open:
            text = THINK_CLOSING + text
            self._tag_open = False
        if text:
            yield self._text({"content": text})

    def _text(self, fields: Mapping[str, str], step: JsonFields | None = None) -> Delta:
        for name, text in fields.items():
            self.texts[name] += text
        return Delta(fields, step)

    def _continue_call(self, piece: Calling) -> Iterator[Delta]:
        if piece.index != self._call_index:
            yield from self._end_call()
            self._call_index = piece.index
            self._held = ""
        if self._held is not None:
            self._held += piece.arguments
            is_empty = "null".startswith(self._held.strip())
            piece = replace(piece, arguments="" if is_empty else self._held)
            if not is_empty:
                self._held = None
        if piece.id or piece.name or piece.arguments:
            yield Delta(call=piece)

    def _end_call(self) -> Iterator[Delta]:
        """Yield ``{}`` if the last call had no arguments."""
        if self._held is not None:
            self._held = None
            yield Delta(call=Calling(self._call_index, arguments="{}"))


def calls_of(events: Iterable[Event]) -> list[Called]:
    """Return the requests to models among the *events* of a run, in the order of their start."""
    calls = [event for event in events if isinstance(event, Called)]
    return sorted(calls, key=lambda call: call.started)


def upstream_seconds(events: Iterable[Event]) -> float:
    """Return the seconds in which at least one request to a model was open."""
    busy = 0.0
    busy_until = 0.0
    for call in calls_of(events):
        ended = call.started + call.seconds
        busy += max(0.0, ended - max(call.started, busy_until))
        busy_until = max(busy_until, ended)
    return busy


def usage(prompt: int, cached: int = 0, solutions: Collection[Solution] = ()) -> JsonObject:
    """
    Return the usage as one model alone would report it, in the form of a chat completion.

    The *prompt* tokens of the conversation count once. *cached* of these tokens were in the prefix
    cache. Of the written tokens only kept ones count; the ledger has the others.
    """
    ledgers = [solution.ledger for solution in solutions]
    completion = sum(ledger.small.kept + ledger.large.kept for ledger in ledgers)
    reasoning = sum(solution.thinking_tokens for solution in solutions)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": min(prompt, cached)},
        "completion_tokens_details": {"reasoning_tokens": reasoning},
    }


def finish_reason(solution: Solution) -> str:
    """Return OpenAI's finish reason. The field ``stepspec`` has the exact one."""
    if solution.finish_reason != "stop":
        return "length"
    return "tool_calls" if solution.calls else "stop"


def _summary(solution: Solution) -> JsonObject:
    """Return what every reply says about a run."""
    return {
        "answer": solution.answer,
        "finish_reason": solution.finish_reason,
        "seconds": solution.seconds,
        "verified": solution.verified,
        **_rates(solution.ledger),
    }


def about(solution: Solution, method: str) -> JsonObject:
    """Return the field ``stepspec`` of one run of *method*."""
    return {
        **_summary(solution),
        "method": method,
        "seed": solution.seed,
        "degraded": list(solution.degraded),
        "rejection": solution.rejection or None,
    }


def steps(solutions: Sequence[Solution]) -> list[JsonObject]:
    """Return every written step with its fate. With several choices a step has its choice too."""
    written: list[JsonObject] = []
    for choice, solution in enumerate(solutions):
        about = {"choice": choice} if len(solutions) > 1 else {}
        written += [dataclasses.asdict(step) | about for step in solution.steps]
    return written


def ledger(ledger: Ledger) -> JsonObject:
    """Return the *ledger* of a run with its rates."""
    return dataclasses.asdict(ledger) | _rates(ledger)


def _rates(ledger: Ledger) -> JsonObject:
    return {"accept_rate": ledger.accept_rate, "share_large": ledger.share_large}


def response_error(status: int, message: str) -> JsonObject:
    """Return the error of a failed response, which before its stream has this HTTP *status*."""
    code = "invalid_prompt"
    if status == 429:
        code = "rate_limit_exceeded"
    elif status >= 500:
        code = "server_error"
    return {"code": code, "message": message}


def named_event(kind: str, **fields: Any) -> bytes:
    """Return an event of a stream with its name, as Anthropic and the Responses API write it."""
    return b"event: " + kind.encode() + b"\n" + event({"type": kind, **fields})


def event(body: JsonFields) -> bytes:
    """Return an event of a stream without a name, as OpenAI's chat API writes it."""
    return b"data: " + write_json(body) + b"\n\n"


def json_response(body: JsonFields, status: int = 200) -> Response:
    return Response(write_json(body), status, media_type="application/json")


def solution(solution: Solution) -> JsonObject:
    """Return the summary of a run for the page, which follows its events."""
    return {
        **_summary(solution),
        "text": solution.text,
        "rejection": solution.rejection,
        "ledger": ledger(solution.ledger),
    }
