r"""
Where a step ends: at a delimiter that stands outside code, LaTeX environments and tables. Pure.

A delimiter is a text, a blank line by default, or a regular expression that is looked for in every complete line. One
that stands in a block is none:

    code     a fence of backticks or tildes, up to a fence of the same kind that is as long at least;
    LaTeX    ``\begin{x}`` to ``\end{x}``, ``\[`` to ``\]``, ``$$`` to ``$$``;
    tables   ``<table`` to ``</table``, and a row of a Markdown table after which another row follows. Whether one does
             is known with the next character that is not white space: until then the step has not ended.

Whether a place is in a block depends on the text before it alone, so that it does not matter in which pieces the text
arrives. A block that is not closed is given up after `MOST` characters, and at the end of the thinking. Where a line
break ends steps, an empty line is no step of its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TypeAlias

BLANK_LINE = "\n\n"
REGEX = "regex:"
MOST = 4096  # characters

Span: TypeAlias = tuple[int, int]

_MARKS = re.compile(  # every part begins with a character, for a fast search
    r"""(?:`{3,}|~{3,})[^\n]*\n
    | \\(?P<begin>begin|end)\{(?P<name>[^{}\n]*)\}
    | \$\$
    | \\+(?P<bracket>[\[\]])
    | <(?P<table>/?table)\b
    | </think>""",
    re.VERBOSE,
)
_FENCE = re.compile(r"`+|~+")
_RULE = re.compile(r"\|[\s:|-]*-[\s:|-]*")
_ROWS = 64  # lines of a table that are looked through for its rule


@dataclass(frozen=True, slots=True)
class StepEnds:
    """
    What ends a step: one of the *texts*, or a complete line in which one of the *patterns* is found.

    Without *blocks* every place counts, whatever it is in.
    """

    texts: tuple[str, ...] = (BLANK_LINE,)
    patterns: tuple[str, ...] = ()
    blocks: bool = True

    @classmethod
    def of(cls, delimiter: str | Sequence[str]) -> StepEnds:
        """
        Read a setting: a text, or several; those that begin with `REGEX` are regular expressions.

        Raise `ValueError`, which names the cure, for what cannot end a step.
        """
        parts = (delimiter,) if isinstance(delimiter, str) else tuple(delimiter)
        if not parts or not all(part.removeprefix(REGEX) for part in parts):
            raise ValueError(r'a delimiter is a text that is not empty, such as "\n\n", or a list of such texts')
        for part in parts:
            if part.startswith(REGEX):
                _checked(part.removeprefix(REGEX))
        texts = tuple(part for part in parts if not part.startswith(REGEX))
        return cls(texts, tuple(part.removeprefix(REGEX) for part in parts if part.startswith(REGEX)))

    @property
    def text(self) -> str:
        """A text that ends a step; a blank line where only patterns do."""
        return self.texts[0] if self.texts else BLANK_LINE

    def search(self, before: str, text: str, start: int = 0) -> tuple[int, int]:
        """
        Find where the first step of *text* ends, which follows *before*; look from *start* on.

        Return the place behind the delimiter, or -1, and where to look from once there is more text.
        """
        spans: list[Span] | None = None
        at = start
        while (hit := self._next(before, text, at)) is not None:
            begin, end = hit
            if not self.blocks:
                return end, begin
            if _says_nothing(before, text[:end]):
                at = begin + 1
                continue
            spans = _blocks(before + text) if spans is None else spans
            if _inside(spans, len(before) + end):
                at = begin + 1
            elif _is_row(before + text[:end]):
                rest = text[end:].lstrip()
                if not rest:
                    return -1, begin
                if not rest.startswith("|"):
                    return end, begin
                at = begin + 1
            else:
                return end, begin
        longest = max(map(len, self.texts), default=1)
        return -1, max(at, len(text) - longest + 1)

    def last(self, text: str) -> str:
        """The last step of *text*, or as much of it as there is."""
        ends = [0, *self.places("", text)]
        return text[ends[-2] if ends[-1] == len(text) and len(ends) > 1 else ends[-1] :]

    def places(self, before: str, text: str) -> Iterator[int]:
        """Where the steps of *text* end, which follows *before*; a last one without a delimiter is left out."""
        spans = _blocks(before + text) if self.blocks else []
        at = began = 0
        while (hit := self._next(before, text, at)) is not None:
            begin, end = hit
            rows = self.blocks and text[end:].lstrip().startswith("|") and _is_row(before + text[:end])
            nothing = self.blocks and _says_nothing(before + text[:began], text[began:end])
            if rows or nothing or _inside(spans, len(before) + end):
                at = begin + 1
            else:
                yield end
                at = began = end

    def at_end(self, text: str) -> bool:
        """Whether *text* ends in a delimiter."""
        found = text.endswith(self.texts) if self.texts else False
        if not found and text.endswith("\n"):
            found = self._matches(text[text.rfind("\n", 0, -1) + 1 : -1])
        return found and not (self.blocks and self.in_block(text))

    def in_block(self, text: str) -> bool:
        """Whether what follows *text* is in a block."""
        return _inside(_blocks(text), len(text))

    def _next(self, before: str, text: str, start: int) -> Span | None:
        """The first delimiter in *text* that begins at *start* or later, and where it ends, blocks or not."""
        hits = [(at, at + len(each)) for each in self.texts if (at := text.find(each, start)) >= 0]
        if self.patterns:
            hits += next(self._lines(before, text, start), ())
        return min(hits, key=lambda hit: hit[1], default=None)

    def _lines(self, before: str, text: str, start: int) -> Iterator[tuple[Span]]:
        """The line breaks in *text* from *start* on after lines that match."""
        at = start - 1
        while (at := text.find("\n", at + 1)) >= 0:
            begins = text.rfind("\n", 0, at) + 1
            line = text[begins:at] if begins else before[before.rfind("\n") + 1 :] + text[:at]
            if self._matches(line):
                yield ((at, at + 1),)

    def _matches(self, line: str) -> bool:
        return any(_compiled(pattern).search(line) for pattern in self.patterns)


BLANK_LINES = StepEnds()


def _checked(pattern: str) -> None:
    try:
        _compiled(pattern)
    except re.error as exc:
        raise ValueError(f"{REGEX}{pattern} is no regular expression as Python has them: {exc}") from exc


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)


def _says_nothing(before: str, text: str) -> bool:
    """
    Whether *text*, which a delimiter ends, is nothing but an empty line.

    A blank line is not: whoever writes that again and again has to be noticed.
    """
    return not text.strip() and BLANK_LINE not in text and (not before or before.endswith("\n"))


def _inside(spans: Sequence[Span], place: int) -> bool:
    return any(start < place < end for start, end in spans)


def _blocks(text: str) -> list[Span]:
    """
    Where the blocks of *text* begin and end; one that is open at the end ends behind it.

    What follows a place never changes whether it is in a block: hence a fence counts from the end of its line.
    """
    spans: list[Span] = []
    opened: list[tuple[str, int]] = []

    def give_up(at: int) -> None:
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

    for found in _MARKS.finditer(text):
        give_up(found.start())
        mark, fence = found[0], _fence(text, found)
        if mark == "</think>":
            spans += [(start, found.start() + 1) for _, start in opened[:1]]
            opened.clear()
        elif opened and opened[-1][0][0] in "`~":
            if fence.startswith(opened[-1][0]) and fence == mark.strip():
                close(opened[-1][0], found.end())
        elif mark[0] in "`~":
            if fence and "`" not in mark[len(fence) :]:
                opened.append((fence, found.end() - 1))
        elif found["bracket"] and found.end() - found.start() == 3:
            continue  # a line break of LaTeX, with its height
        else:
            name = _name(found)
            if _closes(found) or (name == "$$" and any(each == "$$" for each, _ in opened)):
                close(name, found.end())
            else:
                opened.append((name, found.start()))
    give_up(len(text))
    return [*spans, *[(start, len(text) + 1) for _, start in opened[:1]]]


def _name(found: re.Match[str]) -> str:
    """What the beginning and the end of a block, other than code, have in common."""
    if found["begin"]:
        return f"\\{found['name']}"
    return "[" if found["bracket"] else "<table" if found["table"] else found[0]


def _closes(found: re.Match[str]) -> bool:
    return found["begin"] == "end" or found["bracket"] == "]" or found["table"] == "/table"


def _fence(text: str, found: re.Match[str]) -> str:
    """The backticks or tildes that *found* begins with, if nothing but white space stands before them in the line."""
    begins = text.rfind("\n", 0, found.start()) + 1
    fence = _FENCE.match(found[0])
    return fence[0] if fence and not text[begins : found.start()].strip() else ""


def _is_row(text: str) -> bool:
    """Whether *text* ends in a row of a Markdown table, which has a rule, and white space."""
    lines = text[-_ROWS * 256 :].rstrip().splitlines()[-_ROWS:]
    if not lines or not (lines[-1].lstrip().startswith("|") and lines[-1].rstrip().endswith("|")):
        return False
    for line in reversed(lines):
        row = line.strip()
        if row and not row.startswith("|"):
            return False
        if _RULE.fullmatch(row):
            return True
    return False
