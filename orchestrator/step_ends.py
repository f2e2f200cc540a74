r"""
Where steps end: at a delimiter outside of code, LaTeX environments and tables. Pure.

A delimiter is a text, by default a blank line. Within a block it does not count:

- code: from a fence of backticks or tildes to a fence of the same kind that is at least as long;
- LaTeX: from ``\begin{x}`` to ``\end{x}``, from ``\[`` to ``\]``, from ``$$`` to ``$$``;
- tables: from ``<table`` to ``</table``.

Whether a position is in a block depends only on the text before it. So the pieces in which a text
arrives do not matter. A block that is not closed ends after `MAX_BLOCK_CHARACTERS`, and at the end
of the thinking.

White space alone is no step. Further blank lines after a step belong to the next step.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple, TypeAlias

from .markers import THINK_END

BLANK_LINE = "\n\n"
WINDOWS_BLANK_LINE = "\r\n\r\n"
"""A blank line in a text that was pasted from Windows."""
MAX_BLOCK_CHARACTERS = 4096

Span: TypeAlias = tuple[int, int]
"""The places of the first character of a span, and of the first one after it."""

_MARK = r"""
    \\(?P<begin>begin|end)\{(?P<name>[^{}\n]*)\}
    | \$\$
    | \\(?<!\\\\)\\*+(?P<bracket>[\[\]])
    | <(?P<table>/?table)\b
    | </think>"""  # Every part begins with a character, for a fast search.
_MARKS = re.compile(rf"(?:```|~~~)(?:(?!</think>)[^\n])*\n? | {_MARK}", re.VERBOSE)
_OPENINGS = ("```", "~~~", "\\begin{", "$$", "\\[", "<table")
"""A text without any of them has no block."""
_FENCE = re.compile(r"`+|~+")


class Block(NamedTuple):
    """A block that is open."""

    mark: str
    """What opened it."""
    start: int
    """The place where it begins."""


@dataclass(frozen=True, slots=True)
class Blocks:
    """The blocks that are open at a place of a text. A longer text is searched from there on."""

    at: int = 0
    """The place, where a line begins."""
    opened: tuple[Block, ...] = ()
    """The blocks, the outermost first."""

    def advance(self, text: str) -> Blocks:
        """Return the blocks that are open where the last line of the longer *text* begins."""
        line = text.rfind("\n", self.at) + 1
        if line <= self.at:
            return self
        _, opened = _search(text[self.at : line], self)
        return Blocks(line, opened)

    def spans(self, text: str) -> list[Span]:
        """
        Return the spans of the blocks of *text* that do not end before `at`.

        A block that is open at the end of the text ends after it.
        """
        spans, opened = _search(text[self.at :], self)
        for block in opened:
            if len(text) - block.start <= MAX_BLOCK_CHARACTERS:
                return [*spans, (block.start, len(text) + 1)]
            spans.append((block.start, block.start + MAX_BLOCK_CHARACTERS + 1))
        return spans


NO_BLOCKS = Blocks()


@dataclass(frozen=True, slots=True)
class StepEnds:
    """What ends a step."""

    texts: tuple[str, ...] = (BLANK_LINE, WINDOWS_BLANK_LINE)
    """A step ends after any of these texts."""
    blocks: bool = True
    """Whether no step ends within code, LaTeX and tables."""

    @classmethod
    def of(cls, delimiter: str | Sequence[str]) -> StepEnds:
        """
        Parse the setting: one text, or several.

        Raise `ValueError` if a text is empty, or if there is none.
        """
        texts = (delimiter,) if isinstance(delimiter, str) else tuple(delimiter)
        if not texts or not all(texts):
            raise ValueError(
                r'a delimiter is a text that is not empty, such as "\n\n", or a list of such texts'
            )
        if BLANK_LINE in texts:
            texts = (*texts, WINDOWS_BLANK_LINE)
        return cls(texts)

    @property
    def text(self) -> str:
        """A text that ends a step."""
        return self.texts[0]

    def search(
        self,
        before: str,
        text: str,
        start: int = 0,
        blocks: Blocks = NO_BLOCKS,
    ) -> tuple[int, int]:
        """
        Find the end of the first step of *text*, which follows *before*. Search from *start* on.

        *blocks* are those of *before*, as far as they are known. Return the position after the
        delimiter, or -1, and the position to search from when there is more text.
        """
        spans: list[Span] | None = None
        place = start
        while (hit := self._next(text, place)) is not None:
            begin, end = hit
            place = begin + 1
            blank = not text[:end].strip()
            if not self.blocks:
                if not blank:
                    return end, begin
                continue
            if blank and self._begins(before):
                continue
            if spans is None:
                spans = blocks.spans(before + text)
            if not _inside(spans, len(before) + end):
                return end, begin
        return -1, max(place, len(text) - _longest(self.texts) + 1)

    def at_end(self, text: str, blocks: Blocks = NO_BLOCKS) -> bool:
        """Whether *text* ends a step. *blocks* are those of a beginning of *text*."""
        return text.endswith(self.texts) and not (self.blocks and self.in_block(text, blocks))

    def in_block(self, text: str, blocks: Blocks = NO_BLOCKS) -> bool:
        """Whether the end of *text* is in a block. *blocks* are those of a beginning of *text*."""
        return _inside(blocks.spans(text), len(text))

    def _begins(self, before: str) -> bool:
        """Whether a step begins after *before*, or with the white space at its end."""
        written = len(before.rstrip())
        if not written:
            return True
        return any(before.find(text, max(0, written - len(text))) >= 0 for text in self.texts)

    def _next(self, text: str, start: int) -> Span | None:
        """Return the first delimiter in *text* from *start* on, also in a block; None if none."""
        hits: list[Span] = []
        for delimiter in self.texts:
            place = text.find(delimiter, start)
            if place >= 0:
                hits.append((place, place + len(delimiter)))
        return min(hits, key=lambda hit: hit[1], default=None)


BLANK_LINES = StepEnds()


@cache
def _longest(texts: Sequence[str]) -> int:
    return max(map(len, texts), default=1)


def _inside(spans: Sequence[Span], place: int) -> bool:
    return any(start < place < end for start, end in spans)


def _search(text: str, blocks: Blocks) -> tuple[list[Span], tuple[Block, ...]]:
    """
    Search *text*, which begins at a line after the open *blocks*.

    Return the spans of the blocks that end in it, and the blocks that are open at its end. Text
    after a position never changes whether the position is in a block.
    """
    # One character is found much faster than several.
    places = [text.find(opening) for opening in _OPENINGS if opening[0] in text]
    first = min((place for place in places if place >= 0), default=-1)
    if first < 0 and not blocks.opened:
        return [], ()
    line = 0
    if not blocks.opened:
        line = text.rfind("\n", 0, first) + 1
    search = _BlockSearch(text, blocks)
    for match in _MARKS.finditer(text, line):
        search.read(match)
    return search.spans, tuple(search.opened)


class _BlockSearch:
    """Reads the marks in a text one after the other, and finds the blocks."""

    def __init__(self, text: str, blocks: Blocks) -> None:
        self._text = text
        self._offset = blocks.at
        self.spans: list[Span] = []
        """The spans of the blocks that ended."""
        self.opened = list(blocks.opened)
        """The blocks that are open, the outermost first."""

    def read(self, match: re.Match[str]) -> None:
        """Open or close a block at the next mark."""
        mark = match[0]
        start = self._offset + match.start()
        end = self._offset + match.end()
        self._end_long_blocks(start)
        if mark == THINK_END:
            self.spans += [(block.start, start + 1) for block in self.opened[:1]]
            self.opened.clear()
        elif mark[0] in "`~":
            self._read_fence(match, end)
        elif not self._in_code() and not _is_line_break(match):
            name = _name(match)
            if _closes(match) or (name == "$$" and any(b.mark == "$$" for b in self.opened)):
                self._close(name, end)
            else:
                self.opened.append(Block(name, start))

    def _read_fence(self, match: re.Match[str], end: int) -> None:
        mark = match[0]
        if mark[-1] != "\n":
            return  # What follows on the line is part of the fence.
        fence = _fence(self._text, match)
        if self._in_code():
            code = self.opened[-1].mark
            if fence.startswith(code) and fence == mark.strip():
                self._close(code, end)
        elif fence and "`" not in mark[len(fence) :]:
            self.opened.append(Block(fence, end - 1))

    def _in_code(self) -> bool:
        return bool(self.opened) and self.opened[-1].mark[0] in "`~"

    def _end_long_blocks(self, place: int) -> None:
        while self.opened and place - self.opened[0].start > MAX_BLOCK_CHARACTERS:
            start = self.opened.pop(0).start
            self.spans.append((start, start + MAX_BLOCK_CHARACTERS + 1))

    def _close(self, mark: str, place: int) -> None:
        """Close the innermost block that *mark* opened, and those within it."""
        for index in range(len(self.opened) - 1, -1, -1):
            block = self.opened[index]
            if block.mark == mark:
                if index == 0:
                    self.spans.append((block.start, place))
                del self.opened[index:]
                return


def _is_line_break(match: re.Match[str]) -> bool:
    r"""Whether *match* is a line break of LaTeX with its height, such as ``\\[2pt]``."""
    return bool(match["bracket"]) and len(match[0]) == 3


def _name(match: re.Match[str]) -> str:
    """Return what the beginning and the end of a block other than code have in common."""
    if match["begin"]:
        return f"\\{match['name']}"
    if match["bracket"]:
        return "["
    if match["table"]:
        return "<table"
    return match[0]


def _closes(match: re.Match[str]) -> bool:
    return match["begin"] == "end" or match["bracket"] == "]" or match["table"] == "/table"


def _fence(text: str, match: re.Match[str]) -> str:
    """Return the backticks or tildes of *match*; "" if the line has text before them."""
    line = text.rfind("\n", 0, match.start()) + 1
    before = text[line : match.start()]
    fence = _FENCE.match(match[0])
    if fence and not before.strip():
        return fence[0]
    return ""
