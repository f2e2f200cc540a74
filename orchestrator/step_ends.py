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
    | \\(?<!\\\\)(?:\\{2,}+)?(?P<bracket>[\[\]])
    | <(?P<table>/?table)\b
    | </think>"""  # Every part begins with a character, for a fast search.
# Two backslashes before a bracket are a line break of LaTeX with its height, such as \\[2pt].
_MARKS = re.compile(rf"(?:```|~~~)(?:(?!</think>)[^\n])*\n? | {_MARK}", re.VERBOSE)
_OPENINGS = ("```", "~~~", "\\begin{", "$$", "\\[", "<table")
"""A text without any of them has no block."""
_FENCE = re.compile(r"(`++|~++)(.*)\n")
_CLOSING = ("end", "]", "/table")


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
        if opened:
            spans.append((opened[0].start, len(text) + 1))
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

    @property
    def longest(self) -> int:
        """The length of the longest delimiter."""
        return max(map(len, self.texts), default=1)

    def search(
        self,
        before: str,
        text: str,
        start: int = 0,
        blocks: Blocks = NO_BLOCKS,
    ) -> int:
        """
        Return where the first step of *text* ends, which follows *before*; -1 if it does not end.

        No delimiter before *start* counts. *blocks* are those of *before*, as far as they are
        known.
        """
        while (hit := self._next(text, start)) is not None:
            end, begin = hit
            start = begin + 1
            if not text[:end].strip() and (not self.blocks or self._begins(before)):
                continue
            if not self.blocks or not self.in_block(before + text[:end], blocks):
                return end
        return -1

    def at_end(self, text: str, blocks: Blocks = NO_BLOCKS) -> bool:
        """Whether *text* ends a step. *blocks* are those of a beginning of *text*."""
        return text.endswith(self.texts) and not (self.blocks and self.in_block(text, blocks))

    def in_block(self, text: str, blocks: Blocks = NO_BLOCKS) -> bool:
        """Whether the end of *text* is in a block. *blocks* are those of a beginning of *text*."""
        return any(start < len(text) < end for start, end in blocks.spans(text))

    def _begins(self, before: str) -> bool:
        """Whether a step begins after *before*, or with the white space at its end."""
        written = len(before.rstrip())
        if not written:
            return True
        return any(before.find(text, max(0, written - len(text))) >= 0 for text in self.texts)

    def _next(self, text: str, start: int) -> tuple[int, int] | None:
        """
        Return the end and the beginning of the first delimiter in *text* from *start* on.

        It may be in a block. None: there is none.
        """
        hits = [
            (place + len(delimiter), place)
            for delimiter in self.texts
            if (place := text.find(delimiter, start)) >= 0
        ]
        return min(hits, default=None)


BLANK_LINES = StepEnds()


def _search(text: str, blocks: Blocks) -> tuple[list[Span], tuple[Block, ...]]:
    """
    Search *text*, which begins at a line after the open *blocks*.

    Return the spans of the blocks that end in it, and the blocks that are open at its end. Text
    after a position never changes whether the position is in a block.
    """
    if not blocks.opened and not any(opening in text for opening in _OPENINGS):
        return [], ()
    spans: list[Span] = []
    opened = list(blocks.opened)
    for match in _MARKS.finditer(text):
        start = blocks.at + match.start()
        spans += _end_long_blocks(opened, start)
        if match[0] == THINK_END:
            spans += [(block.start, start + 1) for block in opened[:1]]
            opened.clear()
        elif match[0][0] in "`~":
            spans += _read_fence(text, match, blocks.at, opened)
        elif not _code(opened):
            spans += _read_mark(match, blocks.at, opened)
    spans += _end_long_blocks(opened, blocks.at + len(text))
    return spans, tuple(opened)


def _end_long_blocks(opened: list[Block], place: int) -> list[Span]:
    """Remove the blocks that have their longest length before *place*; return their spans."""
    spans: list[Span] = []
    while opened and place - opened[0].start > MAX_BLOCK_CHARACTERS:
        start = opened.pop(0).start
        spans.append((start, start + MAX_BLOCK_CHARACTERS + 1))
    return spans


def _read_fence(text: str, match: re.Match[str], at: int, opened: list[Block]) -> list[Span]:
    """Open or close a block of code, unless its line has other text or is not complete."""
    line = text.rfind("\n", 0, match.start()) + 1
    fence = _FENCE.fullmatch(match[0])
    if fence is None or text[line : match.start()].strip():
        return []
    marks, rest = fence.groups()
    code = _code(opened)
    if code and marks.startswith(code) and not rest.strip():
        return _close(code, at + match.end(), opened)
    if not code and "`" not in rest:
        opened.append(Block(marks, at + match.end() - 1))
    return []


def _read_mark(match: re.Match[str], at: int, opened: list[Block]) -> list[Span]:
    """Open or close a block other than code."""
    turn = match["begin"] or match["bracket"] or match["table"]
    name = f"{match.lastgroup} {match['name']}"
    is_open = any(block.mark == name for block in opened)
    if is_open and (turn is None or turn in _CLOSING):
        return _close(name, at + match.end(), opened)
    if turn not in _CLOSING:
        opened.append(Block(name, at + match.start()))
    return []


def _code(opened: Sequence[Block]) -> str:
    """Return the fence of the code that is open; "" outside of code."""
    if opened and opened[-1].mark[0] in "`~":
        return opened[-1].mark
    return ""


def _close(mark: str, place: int, opened: list[Block]) -> list[Span]:
    """Close the innermost block that *mark* opened, and those within; return an outermost one."""
    outermost = opened[0]
    while opened.pop().mark != mark:
        pass
    return [] if opened else [(outermost.start, place)]
