"""From the events of a run to what a client is told: deltas, messages, usage, steps. Pure."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import orjson
from starlette.responses import Response

from ..chain import THINK_END
from ..events import Answered, Answering, Called, Committed, Event
from ..ledger import COUNTED, Account, Ledger, Speculation
from ..solution import Solution
from .run_requests import RunRequest
from .settings import Thinking

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"
FAILED, FAILED_EVENT = b"data: %b\n\n" + DONE, b"event: error\ndata: %b\n\n"  # with the refusal's body
OPEN, CLOSE = "<think>\n", "\n</think>\n\n"
FIELDS: Mapping[Thinking, tuple[str, ...]] = {
    "both": ("reasoning", "reasoning_content"),
    "reasoning": ("reasoning",),
    "reasoning_content": ("reasoning_content",),
    "content": (),
    "none": (),
}


@dataclass(frozen=True, slots=True)
class Delta:
    """A further piece of a message, and what is to be told about the step that it is."""

    fields: Mapping[str, str]
    step: Mapping[str, Any] | None = None


class DeltaBuilder:
    """
    Tells the run of one choice, piece by piece; the pieces of a field join to the whole, streamed or not.

    A model that does not *think* answers as it reasons: then its steps are the content. Where a method goes on through
    the answer, the steps after the thinking are told as content too.
    """

    def __init__(self, thinking: Thinking, *, thinks: bool) -> None:
        self._thinking: Thinking = thinking
        self._thinks = thinks
        self._inside = self._closed = False
        self._answered = ""

    def hear(self, event: Event) -> Delta | None:
        """What *event* adds to the message."""
        match event:
            case Committed(index=index, step=step, score=score):
                told = {"index": index, "author": step.author, "grade": score, "fate": "kept", "reason": step.note}
                reasons = self._thinks and not self._closed
                self._closed = self._closed or step.text.endswith(THINK_END)
                return Delta(self._think(step.text.replace(THINK_END, "")) if reasons else {}, told)
            case Answering(text=text):
                self._answered += text
                return Delta({"content": self._close() + text})
            case _:
                return None

    def end(self, solution: Solution) -> Delta | None:
        """What is still to be told when the run is over."""
        rest = solution.text.removeprefix(self._answered) if solution.text.startswith(self._answered) else ""
        content = self._close() + rest
        return Delta({"content": content}) if content else None

    def _think(self, text: str) -> Mapping[str, str]:
        if self._thinking != "content":
            return dict.fromkeys(FIELDS[self._thinking], text)
        opening, self._inside = ("" if self._inside else OPEN), True
        return {"content": opening + text}

    def _close(self) -> str:
        closing, self._inside = (CLOSE if self._inside else ""), False
        return closing


class Count:
    """Counts one run, as its observer: tokens, the prompt's cached ones, and when some served model was at work."""

    def __init__(self) -> None:
        self.reasoning = self.answer = 0
        self.worked = self._closed = False
        self._calls: list[Called] = []

    def __call__(self, event: Event) -> None:
        match event:
            case Committed(step=step) if self._closed:
                self.answer += len(step.tokens)
            case Committed(step=step):
                self.reasoning += len(step.tokens)
                self._closed = step.text.endswith(THINK_END)
            case Answered(step=step):
                self.answer += len(step.tokens)
            case Called():
                self._calls.append(event)
                self.worked = self.worked or event.written > 0
            case _:
                pass

    @property
    def prompt(self) -> int:
        """The prompt tokens of the first request."""
        return min(self._calls, key=lambda call: call.started).prompt if self._calls else 0

    @property
    def cached(self) -> int:
        """How many of them were in a server's prefix cache."""
        return min(self._calls, key=lambda call: call.started).cached if self._calls else 0

    @property
    def upstream(self) -> float:
        """Seconds in which at least one request was open."""
        busy = end = 0.0
        for start, stop in sorted((call.started, call.started + call.seconds) for call in self._calls):
            busy += max(0.0, stop - max(start, end))
            end = max(end, stop)
        return busy


def usage(prompt: int, counts: Sequence[Count], *, thinks: bool) -> dict[str, Any]:
    """
    What one answer would have cost on one model: the conversation once, and the tokens that were kept.

    What was written besides, and for nothing, is in the ledger.
    """
    reasoning = sum(count.reasoning for count in counts)
    completion = reasoning + sum(count.answer for count in counts)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": min(prompt, max((count.cached for count in counts), default=0))},
        "completion_tokens_details": {"reasoning_tokens": reasoning if thinks else 0},
    }


def finish(solution: Solution) -> str:
    """OpenAI's word for how the run ended; what exactly cut it short is in `about`."""
    return "stop" if solution.finish_reason == "stop" else "length"


def about(solution: Solution, order: RunRequest) -> dict[str, Any]:
    """The rest of what there is to say about one run."""
    return {
        "method": order.method,
        "answer": solution.answer,
        "finish_reason": solution.finish_reason,
        "seconds": solution.seconds,
        "seed": order.sampling.seed,
        "accept_rate": solution.ledger.accept_rate,
        "share_large": solution.ledger.share_large,
        "degraded": list(solution.degraded),
        "speculation": {one.name: _speculation(one) for one in solution.ledger.speculation} or None,
    }


def steps(solutions: Sequence[Solution]) -> list[dict[str, Any]]:
    """Every step that was written, and what became of it; with the choice it belongs to, if there are several."""
    return [
        dataclasses.asdict(step) | ({"choice": choice} if len(solutions) > 1 else {})
        for choice, solution in enumerate(solutions)
        for step in solution.steps
    ]


def ledger(ledgers: Iterable[Ledger]) -> dict[str, Any]:
    """The ledgers of some runs, added up."""
    all_of = tuple(ledgers)
    small, large, critic = (_sum([getattr(one, role) for one in all_of]) for role in ("small", "large", "critic"))
    drafts, accepted, chosen = (sum(getattr(one, of) for one in all_of) for of in ("drafts", "accepted", "chosen"))
    nested = _by_path([account for one in all_of for account in one.nested])
    total = Ledger(small, large, drafts, accepted, critic, chosen, nested, _sifted(all_of), _widest(all_of))
    return dataclasses.asdict(total) | {
        "accept_rate": total.accept_rate,
        "share_large": total.share_large,
        "speculation": [_speculation(one) for one in total.speculation],
    }


def _speculation(one: Speculation) -> dict[str, Any]:
    return dataclasses.asdict(one) | {"rate": one.counted.rate, "length": one.counted.length}


def _widest(ledgers: Sequence[Ledger]) -> tuple[Speculation, ...]:
    """What was seen for the longest time of each model: the runs looked at the same counters, which must not add up."""
    found: dict[str, Speculation] = {}
    for one in sorted((one for each in ledgers for one in each.speculation), key=lambda one: one.seconds):
        found[one.name] = replace(one, shared=one.shared or one.name in found)
    return tuple(found[name] for name in sorted(found))


def _sum(accounts: Sequence[Account]) -> Account:
    return replace(accounts[0], **{name: sum(getattr(one, name) for one in accounts) for name in COUNTED})


def _by_path(accounts: Sequence[Account]) -> tuple[Account, ...]:
    paths = sorted({account.path for account in accounts})
    return tuple(_sum([account for account in accounts if account.path == path]) for path in paths)


def _sifted(ledgers: Sequence[Ledger]) -> tuple[tuple[str, int, int], ...]:
    drafts, stood = Counter[str](), Counter[str]()
    for path, judged, fine in [sifted for one in ledgers for sifted in one.sifted]:
        drafts[path] += judged
        stood[path] += fine
    return tuple((path, drafts[path], stood[path]) for path in sorted(drafts))


def failed(path: str) -> bytes:
    """How a stream of the API at *path* tells that it failed, as `Line.start` wants it."""
    return FAILED_EVENT if path in ("/live", "/v1/responses") else FAILED


def event(body: Mapping[str, Any]) -> bytes:
    """One server-sent event."""
    return b"data: " + orjson.dumps(body) + b"\n\n"


def json_response(body: Mapping[str, Any], status: int = 200) -> Response:
    """An answer in one piece."""
    return Response(orjson.dumps(body), status, media_type="application/json")


def solution(solved: Solution) -> dict[str, Any]:
    """What became of a run, for whoever has seen its events."""
    counted = ledger([solved.ledger])
    return {
        "answer": solved.answer,
        "text": solved.text,
        "finish_reason": solved.finish_reason,
        "seconds": solved.seconds,
        "ledger": counted,
        "accept_rate": counted["accept_rate"],
        "share_large": counted["share_large"],
    }
