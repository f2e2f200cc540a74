"""Close the thinking and write the final answer; find the answer in a text."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import orjson

from .chain import THINK_END, Chain, Step
from .errors import MalformedReply
from .interfaces import Model
from .markers import opens_block

BOXED = "\\boxed{"
CLOSED = "closed"  # the note of a step that ends the thinking although the models had not
BRACE = re.compile(r"\\boxed\{|[{}]")


def has_thought(chain: Chain) -> bool:
    """Whether *chain* holds a thinking block. Then it is not the answer, even if its models were taken not to think."""
    return chain.closed or opens_block(chain.text)


def close(chain: Chain, author: Model) -> Chain:
    """End the thinking of *chain*, unless it has ended, so that an answer can follow."""
    return chain if chain.closed else chain.extend(closing_step(chain, author))


def closing_step(chain: Chain, author: Model) -> Step:
    """The step with which *author* ends the thinking of *chain*, so that an answer can follow."""
    text = f"{'' if chain.text.endswith(chr(10)) else chr(10)}{THINK_END}"
    return Step(text, author.role, "end", note=CLOSED)


def has_answer(chain: Chain, stops: Sequence[str] = ()) -> bool:
    """Whether *chain* holds its thinking and a complete answer: one that ended, or that contains one of *stops*."""
    _, answer = chain.parts()
    return answer.finished or any(stop in answer.text for stop in stops)


def answer_text(text: str, stops: Sequence[str] = (), *, complete: bool = True) -> str:
    """
    Return the answer in *text*, which was written after the thinking: up to the first of *stops*, stripped.

    If *text* is not yet *complete*, only the part that no further token can change is returned.
    """
    ends = [at for stop in stops if (at := text.find(stop)) >= 0]
    if ends:
        text = text[: min(ends)]
    elif not complete:
        text = text[: len(text) - max(_partial_match(text, mark) for mark in (THINK_END, *stops))]
    return text.replace(THINK_END, "").strip()


def _partial_match(text: str, mark: str) -> int:
    """How many characters at the end of *text* may be the beginning of *mark*."""
    return next((size for size in range(min(len(mark) - 1, len(text)), 0, -1) if text.endswith(mark[:size])), 0)


class AnswerStream:
    """
    Emits an answer in pieces while it is written; the pieces join to `answer_text` of the whole.

    Nothing is emitted before `start`, because the answer may be a bet. No piece is ever taken back: a model that begins
    again, as on another replica, has to continue from *partial*.
    """

    def __init__(self, emit: Callable[[str], None], stops: Sequence[str] = ()) -> None:
        self._emit, self._stops = emit, stops
        self._started = self.restarted = False
        self._emitted = ""
        self.partial: Step | None = None

    def start(self) -> None:
        """Emit the answer as far as it is written, and from now on every piece as it comes."""
        self._started = True
        if self.partial is not None:
            self.update(self.partial.text)

    def on_token(self, partial: Step) -> bool:
        """Take the *partial* answer after every token. Return whether to end the write, because it began again."""
        self.restarted = self._emitted != "" and self.partial is not None and _is_shorter(partial, self.partial)
        if not self.restarted:
            self.partial = partial
            self.update(partial.text)
        return self.restarted

    def update(self, text: str) -> None:
        """Emit the new part of *text*, to which more will be added."""
        self._emit_rest(answer_text(text, self._stops, complete=False))

    def finish(self, text: str) -> None:
        """Emit the rest of *text*, which is complete."""
        self._emit_rest(answer_text(text, self._stops))

    def _emit_rest(self, text: str) -> None:
        if self._started and len(text) > len(self._emitted):
            self._emit(text[len(self._emitted) :])
            self._emitted = text


def _is_shorter(step: Step, other: Step) -> bool:
    return len(step.tokens) < len(other.tokens)


async def write_answer(
    author: Model, chain: Chain, *, limit: int, stop: Sequence[str] = (), stream: AnswerStream | None = None
) -> Step:
    """Let *author* write the answer after the thinking: at most *limit* tokens, or until it wrote a *stop* string."""
    closed = close(chain, author)
    until = stream.on_token if stream is not None else None
    step = await author.write(closed, stop=stop, limit=limit, until=until)
    while stream is not None and stream.restarted and stream.partial is not None:
        stream.restarted = False
        step = await author.write(closed, stop=stop, limit=limit, until=until, opening=stream.partial.text)
    return step


def require_json(text: str, url: str) -> None:
    """Raise `MalformedReply` if *text*, the answer of the server at *url*, is no JSON: some servers ignore a format."""
    try:
        orjson.loads(text)
    except ValueError as exc:
        raise MalformedReply(
            f"it was asked for JSON and wrote {text[:80]!r}: serve it with structured outputs enabled",
            role="large",
            url=url,
            verb="write",
        ) from exc


def extract(text: str) -> str:
    r"""Return the content of the last complete ``\boxed{}`` of *text*, or else its last line that is not empty."""
    inside = boxed(text)
    if inside is not None:
        return inside
    lines = text.strip().splitlines()
    return lines[-1].strip() if lines else ""


def boxed(text: str) -> str | None:
    r"""Return the content of the complete ``\boxed{}`` of *text* that begins last; None if there is none."""
    open_boxes: list[tuple[int, int]] = []  # start of the content, number of braces that were open before
    last, content, depth = -1, None, 0
    for brace in BRACE.finditer(text):
        if brace[0] == "}":
            depth -= 1
            if open_boxes and open_boxes[-1][1] == depth:
                start, _ = open_boxes.pop()
                if start > last:
                    last, content = start, text[start : brace.start()]
        else:
            if brace[0] == BOXED:
                open_boxes.append((brace.end(), depth))
            depth += 1
    return content.strip() if content is not None else None
