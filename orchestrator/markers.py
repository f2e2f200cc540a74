"""
The markers of the thinking block. Pure.

Chains, traces, events and policies mark the end of the thinking with `THINK_END`, whichever model
wrote it. Only an endpoint knows the markers of its own model. It translates the end of the thinking
when it arrives and when it is encoded. So two models with different markers can share a chain.
Where no block is open, markers are text.

Some families are `KNOWN`. For another opening marker that speaks of thinking, such as
``<longcat_think>`` or ``<|START_THINKING|>``, `pairs_in` makes the closing marker.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

THINK_END = "</think>"


@dataclass(frozen=True, slots=True)
class ThinkingMarkers:
    """The markers of one model family."""

    opening: str
    """Opens the thinking block."""
    closing: str
    """Ends the thinking block."""
    skipped: str
    """An empty block with the handover. After it a model answers at once."""
    handover: str = ""
    """What follows the closing marker before the answer, and is neither thinking nor answer."""

    @property
    def marks(self) -> tuple[str, str]:
        """The markers of the block, without white space around them."""
        return self.opening.strip(), self.closing.strip()

    @property
    def opens_message(self) -> bool:
        """Whether the answer is a message of its own, whose role the *handover* names."""
        return "assistant" in self.handover

    def replying(self, handover: str) -> ThinkingMarkers:
        """Return the same markers with *handover* before the answer."""
        if not handover or handover == self.handover:
            return self
        return replace(self, skipped=self.skipped.rstrip() + handover, handover=handover)

    def open_at(self, text: str) -> int:
        """Return where the block that *text* ends in was opened; -1 if it ends in none."""
        mark = self.opening.rstrip()
        place = text.rfind(mark)
        if place < 0 or _ONE.search(text, place + len(mark)):
            return -1
        return place

    def skips(self, text: str) -> bool:
        """Whether *text* is an empty block and the handover. The opening marker may be missing."""
        if text.strip() == self.skipped.strip():
            return True
        unopened = text.replace(self.opening.rstrip(), "")
        return _bare(unopened) == _bare(self.closing + self.handover)

    def closed_in(self, text: str) -> bool:
        """Whether the generation prompt *text* ends with a closed block, so that nobody thinks."""
        end = text.rstrip()
        if not self.handover:
            return end.endswith(self.closing)
        if end.endswith((self.skipped.strip(), self.handover.strip())):
            return True
        block = end[: len(end) - begun_marks(end, self.handover.strip())]
        return _bare(block).endswith(_bare(self.opening + self.closing))

    def opened(self, skipped: str) -> str:
        """Return the opening of the *skipped* block, with half of the white space inside."""
        before, mark, rest = skipped.partition(self.opening.rstrip())
        if not mark:
            return self.opening
        inside = rest.partition(self.closing)[0]
        return before + mark + inside[: (len(inside) + 1) // 2]

    def begun(self, written: str) -> str:
        """
        Return the opening marker at the start of *written*, with the line breaks around it.

        Return "" if there is none.
        """
        match = re.match(rf"\s*{re.escape(self.opening.rstrip())}\n*", written)
        if not match:
            return ""
        begun = match[0]
        empty = written.startswith(self.closing, match.end())
        if empty and begun.endswith("\n"):
            return begun.rstrip("\n") + "\n"
        return begun


def paired(opening: str, closing: str) -> ThinkingMarkers:
    """Return the markers of a family that has only *opening* and *closing*."""
    return ThinkingMarkers(opening, closing, f"{opening}\n\n{closing}\n\n")


THINK = paired("<think>", THINK_END)
"""Qwen, DeepSeek, GLM, SmolLM, LFM, MiMo, Phi-4-reasoning and most others."""

BRACKETS = ThinkingMarkers("[THINK]", "[/THINK]", "[THINK][/THINK]")
"""Mistral's reasoning models since Magistral 2507."""

SEED = ThinkingMarkers("<seed:think>", "</seed:think>", "<seed:think>\n</seed:think>\n")
"""Seed-OSS."""

CHANNEL = ThinkingMarkers(
    "<|channel>thought\n",
    "<channel|>",
    "<|channel>thought\n<channel|>",
)
"""Gemma 4."""

HARMONY = ThinkingMarkers(
    "<|channel|>analysis<|message|>",
    "<|end|>",
    "<|channel|>final<|message|>",
    "<|start|>assistant<|channel|>final<|message|>",
)
"""gpt-oss. Its thinking is a message of its own. The answer's message is opened after it."""

RECIPIENT = ThinkingMarkers(
    " to=self<|message|>",
    "<|eom|>",
    " to=user<|message|>",
    "<|start|>assistant to=user<|message|>",
)
"""Muse Glimmer. Messages name their recipient. The thinking is a message to the model itself."""

KNOWN = (THINK, BRACKETS, SEED, CHANNEL, HARMONY, RECIPIENT)

_NAME = r"[^\s<>|\[\]/\u25c1\u25b7]+"  # between Kimi's triangles, too
_ONE = re.compile(rf"<\|?/?{_NAME}\|?>|\[/?{_NAME}\]|\u25c1/?{_NAME}\u25b7")
_SHAPE = rf"(?:<\|\w+\|>(?!assistant)\w+<\|\w+\|>|{_ONE.pattern})"  # or a name between two tokens
_PIECE = re.compile(rf"{_ONE.pattern}|\w+|\s+|.")  # of a text of marks and words
_LAST = re.compile(rf"{_SHAPE}\Z")
_FIRST = re.compile(_SHAPE)
_THINKING = re.compile("think|thought|reason", re.IGNORECASE)
_NOT_THINKING = re.compile(r"/|(?:\b|_)(?:no|end)_?", re.IGNORECASE)
_BEGIN = re.compile(r"start(?:ing)?|begin(?:ning)?|(?<=<\|)open(?=\|>)", re.IGNORECASE)
_WORD = re.compile(r"\w")
_OPENINGS = tuple(markers.opening.strip() for markers in KNOWN)
_OPENED = re.compile(rf"\s*({'|'.join(map(re.escape, _OPENINGS))})")
_CLOSINGS = tuple(markers.closing for markers in KNOWN if _THINKING.search(markers.closing))
_REPEATS = re.compile(rf"(?:\s*(?:{'|'.join(map(re.escape, _CLOSINGS))}))+")


def pairs_in(text: str) -> list[ThinkingMarkers]:
    """Return the markers of each opening marker in *text* that speaks of thinking."""
    return [
        paired(mark, closing_of(mark))
        for mark in _FIRST.findall(text)
        if _THINKING.search(mark) and not _NOT_THINKING.search(mark)
    ]


def closing_of(opening: str) -> str:
    """Return the mark that closes what the mark *opening* opens."""
    begin = _BEGIN.search(opening)
    if begin is None:
        return _WORD.sub(r"/\g<0>", opening, count=1)
    end = "end"
    if begin[0] == "open":
        end = "close"
    elif begin[0].isupper():
        end = "END"
    return _BEGIN.sub(end, opening, count=1)


def mark_after(text: str, opening: str = "") -> str:
    """
    Return the marker that *text* begins with, after white space; "" if it begins with none.

    A marker that closes *opening* has a name between two of its tokens only if *opening* has one,
    too.
    """
    shape = _FIRST
    if opening and _ONE.fullmatch(opening):
        shape = _ONE
    found = shape.match(text.lstrip())
    return found[0] if found else ""


def mark_before(text: str) -> str:
    """Return the marker that *text* ends with, before white space; "" if it ends with none."""
    found = _LAST.search(text.rstrip())
    return found[0] if found else ""


def opened_by(text: str) -> ThinkingMarkers | None:
    """Return the markers of the known family whose block *text* begins with; None if none."""
    found = _OPENED.match(text)
    if found is None:
        return None
    return KNOWN[_OPENINGS.index(found[1])]


def opens_block(text: str) -> bool:
    """Whether *text* begins with the thinking block of a known family."""
    return _OPENED.match(text) is not None


def may_open_block(text: str) -> bool:
    """Whether *text* begins with a thinking block, or is too short to know."""
    begun = text.lstrip()
    return opens_block(text) or any(opening.startswith(begun) for opening in _OPENINGS)


def without_repeats(answer: str) -> str:
    """
    Leave out the end of the thinking that *answer*, which follows a thinking block, begins with.

    A model that writes about the marker may begin with it, too. The text does not tell which.
    """
    repeats = _REPEATS.match(answer)
    return answer[repeats.end() :] if repeats else answer


def partial_match(text: str, mark: str) -> int:
    """Return how many characters at the end of *text* may be the beginning of *mark*."""
    for size in range(min(len(mark) - 1, len(text)), 0, -1):
        if text.endswith(mark[:size]):
            return size
    return 0


def begun_marks(text: str, marks: str) -> int:
    """
    Return how many characters at the end of *text* begin *marks*, a text of marks and words.

    Only whole marks and words count.
    """
    ends = [piece.end() for piece in _PIECE.finditer(marks)][:-1]
    for end in reversed(ends):
        place = len(text) - end
        within = place > 0 and text[place - 1].isalnum() and marks[0].isalnum()
        if text.endswith(marks[:end]) and not within:
            return end
    return 0


def _bare(text: str) -> str:
    """Return *text* without white space."""
    return "".join(text.split())


def may_repeat(answer: str) -> bool:
    """Whether all of *answer* may be the beginning of a repeated end of the thinking."""
    begun = without_repeats(answer).lstrip()
    return any(closing.startswith(begun) for closing in _CLOSINGS)
