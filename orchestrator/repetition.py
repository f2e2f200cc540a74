"""
Detect a text that ends in a loop: the same span again and again, character by character. Pure.

A unit is about a token: a word, a digit, a character of a script without spaces, or a sign with its
repetitions. A span consists of whole periods, and has `SPAN_UNITS` at least. So equal rows of a
matrix, two lines in turn or a paragraph that comes back are no loop before they fill some hundred
tokens several times.

The steps in which the text was written do not matter. The cost is bounded, whatever the length of
the chain.
"""

from __future__ import annotations

import re

from .chain import Chain, Step

SPAN_UNITS = 128
ROUNDS_TO_REJECT = 3
"""A draft is rejected that ends with the same span this many times in a row."""
ROUNDS_TO_END = 4
"""The run ends if the repair ends with the same span this many times in a row."""
CHARACTERS_PER_UNIT = 8
"""How many characters count as a unit where there are fewer units, as in white space."""
TAIL_CHARACTERS = 8192
"""The end of the text in which a loop is searched: enough for four rounds of 2048 characters."""
MARK_CHARACTERS = 32
"""The end of the text that is searched for in the text before it, to find possible periods."""

_UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"  # Thai, Lao, Burmese, Khmer
    # kana and Chinese characters
    "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
)
_UNIT = re.compile(rf"\d|[{_UNSPACED}]|[^\W\d{_UNSPACED}]+|([^\w\s])\1*")


EMPTY = "empty"
REPETITION = "repetition"
OBSTACLES = (EMPTY, REPETITION)
"""The reasons to reject a draft without a judge."""


def obstacle(chain: Chain, draft: Step) -> str:
    """Return which of `OBSTACLES` is in the way of *draft*; "" if a judge has to decide."""
    if draft.stop == "end":
        answering = draft.author == "small" and (chain.closed or not chain.thinks)
        if answering and not draft.text.strip():
            return EMPTY
        return ""
    if not draft.text:
        if draft.stop == "until":
            return ""  # The policy asked for no text.
        return EMPTY
    if draft.stop == "repetition" or loops(chain, draft, ROUNDS_TO_REJECT):
        return REPETITION
    return ""


def stuck(chain: Chain, repair: Step) -> bool:
    """Whether *chain* is in a loop that its *repair* does not leave."""
    return repair.stop != "end" and loops(chain, repair, ROUNDS_TO_END)


def loops(chain: Chain, step: Step, rounds: int) -> bool:
    """
    Whether the text of *chain* and *step* ends with the same span *rounds* times.

    White space may follow.
    """
    text = (chain.text[-TAIL_CHARACTERS:] + step.text)[-TAIL_CHARACTERS:]
    return any(_loops(end, rounds) for end in {text, text.rstrip()})


def _loops(text: str, rounds: int) -> bool:
    too_short = 0  # characters
    while period := _shortest(text, rounds, beyond=too_short):
        looping = text[-_times(text, period) * period :]
        if _units(looping) >= rounds * SPAN_UNITS:
            return True
        too_short = len(looping)
    return False


def _shortest(text: str, rounds: int, *, beyond: int) -> int:
    """
    Return the length of the shortest period that *text* ends with *rounds* times; 0 if none.

    The rounds have more than *beyond* characters together.
    """
    mark = text[-MARK_CHARACTERS:]
    place = len(text) - MARK_CHARACTERS
    while place > 0:
        place = text.rfind(mark, 0, place + MARK_CHARACTERS - 1)
        period = len(text) - MARK_CHARACTERS - place
        if place < 0 or rounds * period > len(text):
            return 0
        last_rounds = text[(1 - rounds) * period :]
        if rounds * period > beyond and text[-rounds * period : -period] == last_rounds:
            return period
    return 0


def _times(text: str, period: int) -> int:
    """Return how many times in a row *text* ends with its last *period* characters."""
    last = text[-period:]
    times = 1
    while text.endswith(last, 0, len(text) - times * period):
        times += 1
    return times


def _units(text: str) -> int:
    """Return the number of units in *text*, at least one for `CHARACTERS_PER_UNIT`."""
    return max(sum(1 for _ in _UNIT.finditer(text)), len(text) // CHARACTERS_PER_UNIT)
