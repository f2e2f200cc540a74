r"""
Where steps end: at a delimiter outside of code, LaTeX environments and tables. Pure.

A delimiter is a text, by default a blank line. Within a block it does not count:

    code     a fence of backticks or tildes, up to a fence of the same kind that is at least as
    long; LaTeX    ``\begin{x}`` to ``\end{x}``, ``\[`` to ``\]``, ``$$`` to ``$$``; tables
    ``<table`` to ``</table``.

Whether a position is in a block depends only on the text before it, so that it does not matter in
which pieces the text arrives. A block that is not closed ends after `MOST` characters, and at the
end of the thinking.

White space alone is no step: further blank lines after a step belong to the next one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TypeAlias

BLANK_LINE = "\n\n"
OF_WINDOWS = "\r\n\r\n"  # a blank line where lines end as in a problem that was pasted from Windows
MOST = 4096  # characters

Span: TypeAlias = tuple[int, int]

_MARK = r"""
    \\(?P<begin>begin|end)\{(?P<name>[^{}\n]*)\}
    | \$\$
    | \\(?<!\\\\)\\*+(?P<bracket>[\[\]])
    | <(?P<table>/?table)\b
    | </think>"""  # Every part begins with a character, for a fast search.
_MARKS = re.compile(rf"(?:```|~~~)(?:(?!</think>)[^\n])*\n? | {_MARK}", re.VERBOSE)
# without one of them a text has no block
_OPENINGS = ("```", "~~~", "\\begin{", "$$", "\\[", "<table")
_FENCE = re.compile(r"`+|~+")


@dataclass(frozen=True, slots=True)
class Blocks:
    """
    The blocks that are *opened* before character *at* of a text, where a line begins, and not
    closed yet.

    Each has its mark and its place; the outermost comes first. A longer text is searched from there
    on only.
    """

    at: int = 0
    opened: tuple[tuple[str, int], ...] = ()

    def advance(self, text: str) -> Blocks:
        """
        Return those that are open where the last line of *text* begins, which continues the text so
        far.
        """
        line = text.rfind("\n", self.at) + 1
        return Blocks(line, _search(text[self.at : line], self)[1]) if line > self.at else self

    def spans(self, text: str) -> list[Span]:
        """
        The spans of the blocks of *text* that do not end before `at`; one that is open at its end
        ends after it.
        """
        spans, opened = _search(text[self.at :], self)
        for _, start in opened:
            if len(text) - start <= MOST:
                return [*spans, (start, len(text) + 1)]
            spans.append((start, start + MOST + 1))
        return spans


NO_BLOCKS = Blocks()


@dataclass(frozen=True, slots=True)
class StepEnds:
    """
    What ends a step: one of the *texts*; if *blocks* is false, also within code, LaTeX and tables.
    """

    texts: tuple[str, ...] = (BLANK_LINE, OF_WINDOWS)
    blocks: bool = True

    @classmethod
    def of(cls, delimiter: str | Sequence[str]) -> StepEnds:
        """
        Parse the setting: one text, or several. Raise `ValueError` if one is empty, or if there is
        none.
        """
        texts = (delimiter,) if isinstance(delimiter, str) else tuple(delimiter)
        if not texts or not all(texts):
            raise ValueError(
                r'a delimiter is a text that is not empty, such as "\n\n", or a list of such texts'
            )
        return cls((*texts, OF_WINDOWS) if BLANK_LINE in texts else texts)

    @property
    def text(self) -> str:
        """A text that ends a step."""
        return self.texts[0]

    def search(
        self, before: str, text: str, start: int = 0, blocks: Blocks = NO_BLOCKS
    ) -> tuple[int, int]:
        """
        Find the end of the first step of *text*, which follows *before*; search from *start* on.

        *blocks* are those of *before*, as far as they are known. Return the position after the
        delimiter, or -1, and the position to search from when there is more text.
        """
        spans: list[Span] | None = None
        at = start
        while (hit := self._next(text, at)) is not None:
            begin, end = hit
            if not text[:end].strip() and (not self.blocks or self._begins(before)):
                at = begin + 1
                continue
            if not self.blocks:
                return end, begin
            spans = blocks.spans(before + text) if spans is None else spans
            if _inside(spans, len(before) + end):
                at = begin + 1
            else:
                return end, begin
        return -1, max(at, len(text) - _longest(self.texts) + 1)

    def at_end(self, text: str, blocks: Blocks = NO_BLOCKS) -> bool:
        """Whether *text*, whose *blocks* are known so far, ends in a delimiter."""
        return text.endswith(self.texts) and not (self.blocks and self.in_block(text, blocks))

    def in_block(self, text: str, blocks: Blocks = NO_BLOCKS) -> bool:
        """Whether the end of *text*, whose *blocks* are known so far, is in a block."""
        return _inside(blocks.spans(text), len(text))

    def _begins(self, before: str) -> bool:
        """
        Whether a step begins after *before*, perhaps with the white space that *before* ends in.
        """
        said = before.rstrip()
        return not said or any(
            before.find(text, max(0, len(said) - len(text))) >= 0 for text in self.texts
        )

    def _next(self, text: str, start: int) -> Span | None:
        """
        The span of the first delimiter in *text* that begins at *start* or later, in a block or
        not.
        """
        hits = [(at, at + len(each)) for each in self.texts if (at := text.find(each, start)) >= 0]
        return min(hits, key=lambda hit: hit[1]) if hits else None


BLANK_LINES = StepEnds()


@cache
def _longest(texts: Sequence[str]) -> int:
    return max(map(len, texts), default=1)


def _inside(spans: Sequence[Span], place: int) -> bool:
    return any(start < place < end for start, end in spans)


def _search(text: str, blocks: Blocks) -> tuple[list[Span], tuple[tuple[str, int], ...]]:
    """
    Search *text*, which begins at a line after the open *blocks*: return the spans that end in it,
    and what is open.

    Text after a position never changes whether it is in a block: hence a fence counts from the end
    of its line.
    """
    # One character is found much faster.
    places = [text.find(opening) for opening in _OPENINGS if opening[0] in text]
    first = min((place for place in places if place >= 0), default=-1)
    if first < 0 and not blocks.opened:
        return [], ()
    spans: list[Span] = []
    opened = list(blocks.opened)

    def end_long_blocks(at: int) -> None:
        while opened and at - opened[0][1] > MOST:
            start = opened.pop(0)[1]
            spans.append((start, start + MOST + 1))

    def close(mark: str, at: int) -> None:
        for place in range(len(opened) - 1, -1, -1):
            if opened[place][0] == mark:
                if place == 0:
                    spans.append((opened[0][1], at))
                del opened[place:]
                return

    for match in _MARKS.finditer(text, 0 if opened else text.rfind("\n", 0, first) + 1):
        start = blocks.at + match.start()
        end = blocks.at + match.end()
        end_long_blocks(start)
        mark = match[0]
        fence = _fence(text, match)
        if mark == "</think>":
            spans += [(outer, start + 1) for _, outer in opened[:1]]
            opened.clear()
        elif mark[0] in "`~" and mark[-1] != "\n":
            # The line of a fence is not complete, and what follows on it is part of the fence.
            continue
        elif opened and opened[-1][0][0] in "`~":
            if fence.startswith(opened[-1][0]) and fence == mark.strip():
                close(opened[-1][0], end)
        elif mark[0] in "`~":
            if fence and "`" not in mark[len(fence) :]:
                opened.append((fence, end - 1))
        elif match["bracket"] and end - start == 3:
            continue  # a line break of LaTeX, with its height
        else:
            name = _name(match)
            if _closes(match) or (name == "$$" and any(each == "$$" for each, _ in opened)):
                close(name, end)
            else:
                opened.append((name, start))
    return spans, tuple(opened)


def _name(match: re.Match[str]) -> str:
    """The name that the beginning and the end of a block, other than code, have in common."""
    if match["begin"]:
        return f"\\{match['name']}"
    return "[" if match["bracket"] else "<table" if match["table"] else match[0]


def _closes(match: re.Match[str]) -> bool:
    return match["begin"] == "end" or match["bracket"] == "]" or match["table"] == "/table"


def _fence(text: str, match: re.Match[str]) -> str:
    """The backticks or tildes that *match* begins with; "" if the line has text before them."""
    begins = text.rfind("\n", 0, match.start()) + 1
    fence = _FENCE.match(match[0])
    return fence[0] if fence and not text[begins : match.start()].strip() else ""
