"""
Detect a text that ends in a loop: the same span again and again, character by character. Pure.

A span is as many whole periods as make up `SPAN` units. So equal rows of a matrix, two lines in
turn or a paragraph that comes back are no loop before they fill some hundred tokens several times.
A unit is a word, a digit, a character of a script without spaces, or a sign with its repetitions:
about a token.

Only the text matters, not the steps in which it was written. The cost is bounded, whatever the
length of the chain.
"""

from __future__ import annotations

import re

from .chain import Chain, Step

SPAN = 128  # units
ROUNDS = 3  # a draft is rejected that ends with the same span that many times in a row
STUCK = 4  # times at which the run ends, if the repair goes on in the loop
PER_UNIT = 8  # characters that count as a unit if there are fewer units, as in white space
TAIL = 8192  # characters in which a loop is searched: enough for four rounds of 2048
# characters at the end of the text whose earlier places give the lengths that a period may have
MARK = 32

_UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"  # Thai, Lao, Burmese, Khmer
    # kana and Chinese characters
    "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
)
_UNIT = re.compile(rf"\d|[{_UNSPACED}]|[^\W\d{_UNSPACED}]+|([^\w\s])\1*")


EMPTY, REPETITION = OBSTACLES = ("empty", "repetition")
"""The reasons to reject a draft without a judge."""


def obstacle(chain: Chain, draft: Step) -> str:
    """Return which of `OBSTACLES` is in the way of *draft*; "" if a judge has to decide."""
    if draft.stop == "end":
        answering = draft.author == "small" and (chain.closed or not chain.thinks)
        return EMPTY if answering and not draft.text.strip() else ""
    if not draft.text:
        # a policy that asked for no text has its own reason
        return "" if draft.stop == "until" else EMPTY
    return REPETITION if draft.stop == "repetition" or loops(chain, draft, ROUNDS) else ""


def stuck(chain: Chain, repair: Step) -> bool:
    """Whether *chain* is in a loop that its *repair* does not leave."""
    return repair.stop != "end" and loops(chain, repair, STUCK)


def loops(chain: Chain, step: Step, rounds: int) -> bool:
    """
    Whether the text of *chain*, with *step*, ends with the same span *rounds* times, and perhaps
    white space.
    """
    text = (chain.text[-TAIL:] + step.text)[-TAIL:]
    return any(_loops(end, rounds) for end in {text, text.rstrip()})


def _loops(text: str, rounds: int) -> bool:
    light = 0
    while period := _shortest(text, rounds, beyond=light):
        looping = text[-_times(text, period) * period :]
        if _weight(looping) >= rounds * SPAN:
            return True
        light = len(looping)
    return False


def _shortest(text: str, rounds: int, *, beyond: int) -> int:
    """
    The shortest period that *text* ends with *rounds* times, in more than *beyond* characters; 0 if
    none.
    """
    mark = text[-MARK:]
    at = len(text) - MARK
    while at > 0 and (at := text.rfind(mark, 0, at + MARK - 1)) >= 0:
        period = len(text) - MARK - at
        if rounds * period > len(text):
            return 0
        if (
            rounds * period > beyond
            and text[-rounds * period : -period] == text[(1 - rounds) * period :]
        ):
            return period
    return 0


def _times(text: str, period: int) -> int:
    """How many times in a row *text* ends with its last *period* characters."""
    last = text[-period:]
    times = 1
    while text.endswith(last, 0, len(text) - times * period):
        times += 1
    return times


def _weight(text: str) -> int:
    """The number of units in *text*; at least one per `PER_UNIT` characters."""
    return max(sum(1 for _ in _UNIT.finditer(text)), len(text) // PER_UNIT)
