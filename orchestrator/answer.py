"""Close the thinking and write the final answer; find the answer in a text."""

from __future__ import annotations

import asyncio
import re
from bisect import bisect_left
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from itertools import accumulate
from typing import NamedTuple

from .chain import THINK_END, Chain, Step, ToolCall
from .concurrency import background
from .errors import EndpointError, FormatIgnored
from .events import Answering, Calling
from .interfaces import AnswerParser, Model
from .json_values import is_json
from .markers import may_repeat, partial_match, without_repeats
from .step_builder import text_of

CLOSED = "closed"
"""The note of a step that ends the thinking although the models had not ended it."""
PARSE_EVERY = 0.05
"""Seconds for which tokens are collected before the parser reads them."""
BOX_MARK = re.compile(
    r"\\(?:boxed|fbox|framebox(?:\s*\[[^\]\n]*\])*)"
    r"(?:\s*\{|\s*(?P<bare>-?\d+(?:[.,]\d+)*|(?<=\s)[A-Za-z](?!\w)"
    r"|\\(?!boxed|fbox)[a-zA-Z]+\s*(?:\d{1,2}(?!\d)|(?:\{(?:[^{}]|\{[^{}]{0,60}\}){0,90}\}){1,2})))"
    r"|\\(?!\\(?:boxed|fbox|framebox))[\\{}]|[{}]"
)
BLANK = re.compile(  # a box to be filled in
    r"(?:\s|~|\\[,;:!"
    r" ]|\\q?quad|\\h?(?:phantom|space)\*?\s*\{[^{}]*\}|\\text[a-zA-Z]*|\\square|\\[lc]?dots?"
    r"|[{}_?$…]|\.{3}|(?:(?:your|the|final) ?){0,2}answer)*",
    re.IGNORECASE,
)
_JSON_PIECE = re.compile(r'"(?:[^"\\]|\\.)*\\?"?|\S', re.DOTALL)
"""A string of JSON, which may be cut off, or another character; none is white space."""
EMPTY_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{\s*\}")
_TEXT = r"\\(?:text(?:bf|rm|it)?|mathrm|mbox)\s?\{[\s,]{0,9}(?:and|or)\s{0,9}\}"
_GAP = r"(?:(?!\n[ \t]*\n)[\s$*~]|\\[,;:! ()\[\]]|\\q?quad){0,24}"
JOINT = re.compile(  # between two boxes of one answer; bounded, so that no text takes long
    rf"{_GAP}(?:,|;|\\?&|{_TEXT}|\\(?:lor|land|vee)(?![a-z])|(?:and|or|as well as)\b){_GAP}"
    rf"(?:(?:(?:and|or)\b|{_TEXT}){_GAP})?"
    rf"(?:(?:[a-zA-Z]|\\[a-z]{{2,7}})(?:_\w|_\{{\w\}})?\s{{0,9}}=\s{{0,9}})?{_GAP}"
)


def close(chain: Chain, author: Model) -> Chain:
    """End the thinking of *chain*, unless it has ended, so that an answer can follow."""
    if chain.closed:
        return chain
    return chain.extend(closing_step(chain, author))


def closing_step(chain: Chain, author: Model) -> Step:
    """Return the step with which *author* ends the thinking of *chain*."""
    text = THINK_END
    if not chain.text.endswith("\n"):
        text = f"\n{THINK_END}"
    return Step(text, author.role, "end", note=CLOSED)


def has_answer(chain: Chain, stops: Sequence[str] = ()) -> bool:
    """Whether *chain* has a complete answer: one that ended, or that contains one of *stops*."""
    _, answer = chain.parts()
    return answer.finished or first_stop(answer.text, stops) is not None


def first_stop(text: str, stops: Sequence[str]) -> tuple[int, str] | None:
    """
    Return where the first of *stops* is in *text*, and that stop; None if there is none.

    A stop in the white space that begins *text* does not count.
    """
    blank = len(text) - len(text.lstrip())
    found = [
        (place, stop)
        for stop in stops
        if (place := text.find(stop, max(0, blank + 1 - len(stop)))) >= 0
    ]
    return min(found, default=None)


def answer_text(
    text: str,
    stops: Sequence[str] = (),
    *,
    complete: bool = True,
    thought: bool = False,
) -> str:
    """
    Return the answer in *text*: up to the first of *stops*, with the white space around it.

    If *text* is not yet *complete*, return only the part that no further token can change. If the
    model has *thought* before the answer, leave out the blank line after the end of the thinking,
    and the end of the thinking where *text* begins with it once more.
    """
    found = first_stop(text, stops)
    if found is not None:
        text = text[: found[0]]
    elif not complete:
        if thought and may_repeat(text):
            return ""
        begun = max((partial_match(text, stop) for stop in stops), default=0)
        text = text[: len(text) - begun]
    if thought:
        return without_repeats(text).lstrip("\n")
    return text


class AnswerStream:
    """
    Emits an answer in pieces while it is written.

    The pieces join to the `answer_text` of the whole. No piece is ever taken back: a model that
    begins again, as on another replica, has to continue what it has written.
    """

    def __init__(
        self,
        emit: Callable[[str], None],
        stops: Sequence[str] = (),
        *,
        thought: bool = False,
    ) -> None:
        self._emit = emit
        self._stops = stops
        self._thought = thought
        self.restarted = False
        """Whether the write ended because the model began again."""
        self._emitted = ""
        self._fixed = False
        """Whether the model has to continue what it has written."""
        self.partial: Step | None = None
        """The answer as far as it is written; None before its first token."""

    def on_token(self, partial: Step) -> bool:
        """
        Take the *partial* answer after every token.

        Return whether to end the write, because the model began again.
        """
        self.restarted = self._fixed and not partial.text.startswith(self._written)
        if not self.restarted:
            self.partial = partial
            self.update(partial.text)
        return self.restarted

    async def resume(self) -> str:
        """Return the text that a write has to begin with, so that nothing is taken back."""
        self.restarted = False
        return self._written

    @property
    def _written(self) -> str:
        """The text of the answer as far as it is written."""
        return self.partial.text if self.partial is not None else ""

    def update(self, text: str) -> None:
        """Emit the new part of *text*, to which more will be added."""
        self._emit_rest(text, complete=False)

    def finish(self, text: str) -> None:
        """Emit the rest of *text*, which is complete."""
        self._emit_rest(text, complete=True)

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        """The calls of tools in the answer."""
        return ()

    @property
    def text(self) -> str:
        """The text of the answer, as far as it is written, without calls of tools."""
        return self._written

    @asynccontextmanager
    async def following(self) -> AsyncGenerator[None]:
        """In the block the answer is written. Do meanwhile what takes longer than a token."""
        yield

    async def complete(self, step: Step) -> None:
        """Take in the complete answer *step*."""
        self.partial = step

    def _emit_rest(self, text: str, *, complete: bool) -> None:
        shown = answer_text(text, self._stops, complete=complete, thought=self._thought)
        if len(shown) > len(self._emitted):
            self._fixed = True
            self._emit(shown[len(self._emitted) :])
            self._emitted = shown


class CallStream(AnswerStream):
    """
    Emits an answer that may call tools: `Answering` for its content, `Calling` for its calls.

    A *live* stream emits what the *parser* finds while the answer is written. When the answer is
    complete, the parser reads it as a whole, and the stream emits what is missing. An answer that
    was cut off is read as it was written, so that no half of a call becomes content. A parser that
    fails is asked again when the answer is complete. Its second failure is raised.
    """

    def __init__(
        self,
        emit: Callable[[Answering | Calling], None],
        parser: AnswerParser,
        stops: Sequence[str] = (),
        *,
        thought: bool = False,
        live: bool = True,
    ) -> None:
        super().__init__(lambda text: emit(Answering(text)), stops, thought=thought)
        self._emit_call = emit
        self._parser = parser
        self._live = live
        self._parsed = 0
        """The number of tokens of the answer that the parser has read."""
        self._read = ""
        """The text of these tokens."""
        self._content = ""
        self._calls: dict[int, ToolCall] = {}
        """The calls that the parser found, as far as they were emitted."""
        self._more = asyncio.Event()
        """Is set while there are tokens that the parser has not read."""

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        return tuple(self._calls[index] for index in sorted(self._calls))

    @property
    def text(self) -> str:
        # As in vLLM's answers, white space alone is no text beside calls.
        if self._calls and self._content.isspace():
            return ""
        return self._content

    async def resume(self) -> str:
        if self.partial is not None:
            await self._parse_rest(self.partial)
        return await super().resume()

    def update(self, text: str) -> None:
        self._more.set()

    def finish(self, text: str) -> None:
        super().finish(self.text)

    @asynccontextmanager
    async def following(self) -> AsyncGenerator[None]:
        if not self._live:
            yield
            return
        async with background(self._follow()):
            yield

    async def complete(self, step: Step) -> None:
        if step.stop == "length":
            await self._parse_rest(step, finished=True)
            return
        content, calls = await self._parser.parse_whole(step)
        if not self._is_begun(calls):
            await self._parse_rest(step, finished=True)
        elif content.startswith(self._content):
            self._content = content
        self._add("", [*self._missing(calls)])

    async def _follow(self) -> None:
        while True:
            await self._more.wait()
            self._more.clear()
            if self.partial is not None:
                try:
                    await self._parse_rest(self.partial)
                except EndpointError:
                    return
            await asyncio.sleep(PARSE_EVERY)

    async def _parse_rest(self, step: Step, *, finished: bool = False) -> None:
        """
        Let the parser read the tokens of *step* that it has not read, and emit what they add.

        A *finished* answer has no more tokens.
        """
        if text_of(step.tokens[: self._parsed]) != self._read:
            # The model began again, with other tokens for the same text.
            ends = [*accumulate(len(token.text) for token in step.tokens)]
            self._parsed = bisect_left(ends, len(self._read)) + 1
        left = step.tokens[self._parsed :]
        while left or finished:
            count, content, pieces = await self._parser.parse(left, finished=finished)
            self._parsed += count
            self._read += text_of(left[:count])
            self._add(content, pieces)
            if not count:
                return
            self._fixed = True
            left = left[count:]
            finished = finished and bool(left)

    def _is_begun(self, calls: Sequence[ToolCall]) -> bool:
        """Whether the calls that were emitted are beginnings of *calls*."""
        return len(self._calls) <= len(calls) and all(
            missing_json(begun.arguments, call.arguments) is not None
            for begun, call in zip(self.calls, calls, strict=False)
        )

    def _missing(self, calls: Sequence[ToolCall]) -> Iterator[Calling]:
        """Yield the pieces of the complete *calls* that were not emitted."""
        for index, call in enumerate(calls):
            begun = self._calls.get(index)
            if begun is None:
                yield Calling(index, call.id, call.name, call.arguments)
                continue
            rest = missing_json(begun.arguments, call.arguments)
            if rest:
                yield Calling(index, arguments=rest)

    def _add(self, content: str, pieces: Sequence[Calling]) -> None:
        """Emit more *content*, and the next *pieces* of calls."""
        self._content += content
        if not self._content.isspace():
            self._emit_rest(self._content, complete=bool(self._calls or pieces))
        for piece in pieces:
            call = self._calls.get(piece.index, ToolCall("", "", ""))
            self._calls[piece.index] = ToolCall(
                piece.id or call.id,
                piece.name or call.name,
                call.arguments + piece.arguments,
            )
            self._emit_call(piece)


def missing_json(begun: str, whole: str) -> str | None:
    """
    Return what follows *begun* in the JSON text *whole*; None if *whole* does not begin so.

    White space between values does not matter.
    """
    place = 0
    for piece in _JSON_PIECE.findall(begun):
        while whole[place : place + 1].isspace():
            place += 1
        if not whole.startswith(piece, place):
            return None
        place += len(piece)
    return whole[place:]


async def write_answer(
    author: Model,
    chain: Chain,
    *,
    limit: int,
    stream: AnswerStream,
    stop: Sequence[str] = (),
    thinks: bool = True,
) -> Step:
    """
    Let *author* write the answer through *stream*.

    It has at most *limit* tokens, and ends after a *stop* string. If the model *thinks*, the
    thinking of *chain* is ended first.
    """
    if thinks:
        chain = close(chain, author)
    opening = ""
    while True:
        async with stream.following():
            step = await author.write(
                chain,
                stop=stop,
                limit=limit,
                until=stream.on_token,
                opening=opening,
            )
        if not stream.restarted:
            await stream.complete(step)
            return step
        opening = await stream.resume()


def complete_calls(calls: Sequence[ToolCall]) -> tuple[ToolCall, ...]:
    """Return the *calls* of an answer that was cut off whose arguments are complete."""
    return tuple(call for call in calls if is_json(call.arguments))


def require_json(text: str, url: str) -> None:
    """
    Raise `FormatIgnored` if *text*, the answer of the server at *url*, is no JSON.

    Some servers ignore a format.
    """
    if not is_json(text):
        raise FormatIgnored(
            f"it was asked for JSON and wrote {text[:80]!r}: serve it with structured outputs"
            " enabled",
            role="large",
            url=url,
            verb="write",
        )


def extract(text: str) -> str:
    """Return the content of the boxes at the end of *text*, or its last line that is not empty."""
    inside = boxed(text)
    if inside is not None:
        return inside
    lines = EMPTY_BOX.sub("", text).strip().splitlines()
    return lines[-1].strip() if lines else ""


def boxed(text: str) -> str | None:
    r"""
    Return the content of the last complete box of *text* that is not empty; None if there is none.

    Boxes that a comma, "and" or "or" joins are one answer. The answer of ``\boxed{3}, \boxed{5}``
    is ``3, 5``.
    """
    contents: list[str] = []
    begin = 0
    for box in reversed(_boxes(text)):
        if BLANK.fullmatch(box.content):
            continue
        if contents and not JOINT.fullmatch(text, box.end, begin):
            break
        contents.insert(0, box.content)
        begin = box.begin
    return ", ".join(dict.fromkeys(contents)) if contents else None


class _Box(NamedTuple):
    begin: int
    """The place of its first character in the text."""
    end: int
    """The place after its last character."""
    content: str
    """What stands between its braces."""


def _boxes(text: str) -> list[_Box]:
    """Return the complete boxes of *text* in the order of their beginnings."""
    found: list[_Box] = []
    opened: list[re.Match[str]] = []  # braces, with the commands before those of boxes
    for mark in BOX_MARK.finditer(text):
        sign = mark[0]
        if mark["bare"]:
            found.append(_Box(mark.start(), mark.end(), mark["bare"]))
        elif sign == "}" and opened:
            opening = opened.pop()
            if opening[0] != "{":
                content = text[opening.end() : mark.start()].strip()
                found.append(_Box(opening.start(), mark.end(), content))
        elif sign.endswith("{") and sign != r"\{":
            opened.append(mark)
    return sorted(found)
