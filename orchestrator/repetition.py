"""
Detect a text that ends in a loop: the same span of characters again and again.

A unit is about a token: a word, a digit, a character of a script without spaces, or a sign with its
repetitions. A span has at least `SPAN_UNITS` units, and may contain a shorter period several times.
Equal rows of a matrix, two alternating lines or a repeated paragraph are no loop, until they fill
some hundred tokens several times.

How the text is divided into steps does not matter. The cost is bounded for chains of any length.

The loop of a run asks the policy's `LoopGuard` about every draft and every repair.
`policies/choose.py` asks it about every rival of a draft.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from .chain import Chain, Step

SPAN_UNITS = 128
"""The fewest units of a span."""
CHARACTERS_PER_UNIT = 8
"""The number of characters that count as a unit in a text with few units, as in white space."""
TAIL_CHARACTERS = 8192
"""A loop is searched in this many last characters: enough for four rounds of 2048 characters."""
MARK_CHARACTERS = 32
"""This many last characters are searched for in the text before them, to find periods."""

_UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"  # Thai, Lao, Burmese, Khmer
    # kana and Chinese characters
    "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
)
_UNIT = re.compile(rf"\d|[{_UNSPACED}]|[^\W\d{_UNSPACED}]+|([^\w\s])\1*")


EMPTY = "empty"
REPETITION = "repetition"
UNJUDGED_REASONS = (EMPTY, REPETITION)
"""The reasons to reject a draft without asking the policy."""


@dataclass(frozen=True, slots=True)
class LoopGuard:
    """Rejects drafts that are empty or in a loop, without a judge. Ends a run that stays in it."""

    rounds_to_reject: int = 3
    """A draft is rejected if the text then ends with the same span this many times in a row."""
    rounds_to_end: int = 4
    """
    The run ends if the text with the repair ends with the same span this many times in a row.

    The number is larger than `rounds_to_reject`, so that a draft is rejected first. It is at most 8
    (`TAIL_CHARACTERS` has no more rounds of text with few units).
    """

    def obstacle(self, chain: Chain, draft: Step) -> str:
        """Return why *draft* is rejected: one of `UNJUDGED_REASONS`. "": a judge has to decide."""
        if draft.stop == "end":
            answering = draft.author == "small" and (chain.closed or not chain.thinks)
            if answering and not draft.text.strip():
                return EMPTY
            return ""
        if not draft.text:
            if draft.stop == "until":
                return ""  # The policy's `until` ended the step before any text.
            return EMPTY
        if draft.stop == "repetition" or loops(chain, draft, self.rounds_to_reject):
            return REPETITION
        return ""

    def stuck(self, chain: Chain, repair: Step) -> bool:
        """Whether *chain* is in a loop that its *repair* does not leave."""
        return repair.stop != "end" and loops(chain, repair, self.rounds_to_end)


DEFAULT_GUARD = LoopGuard()
"""The guard of every method that uses two models."""


def loops(chain: Chain, step: Step, rounds: int) -> bool:
    """
    Whether the text of *chain* and *step* ends with the same span *rounds* times.

    White space after the last span is left out if needed.
    """
    text = (chain.text[-TAIL_CHARACTERS:] + step.text)[-TAIL_CHARACTERS:]
    return any(_loops(end, rounds) for end in {text, text.rstrip()})


def _loops(text: str, rounds: int) -> bool:
    """Whether *text* ends with *rounds* spans. Try the shortest period first."""
    too_short = 0  # characters
    for period in _periods(text):
        size = rounds * period
        if size > len(text):
            return False
        if size > too_short and text[-size:-period] == text[period - size :]:
            looping = text[-_times(text, period) * period :]
            if _units(looping) >= rounds * SPAN_UNITS:
                return True
            too_short = len(looping)
    return False


def _periods(text: str) -> Iterator[int]:
    """Yield how far before the end of *text* its last characters stand once more, nearest first."""
    mark = text[-MARK_CHARACTERS:]
    place = len(text) - MARK_CHARACTERS
    while place > 0:
        place = text.rfind(mark, 0, place + MARK_CHARACTERS - 1)
        if place >= 0:
            yield len(text) - MARK_CHARACTERS - place


def _times(text: str, period: int) -> int:
    """Return how many times in a row *text* ends with its last *period* characters."""
    last = text[-period:]
    times = 1
    while text.endswith(last, 0, len(text) - times * period):
        times += 1
    return times


def _units(text: str) -> int:
    """Return the number of units in *text*: at least one for each `CHARACTERS_PER_UNIT`."""
    return max(sum(1 for _ in _UNIT.finditer(text)), len(text) // CHARACTERS_PER_UNIT)
