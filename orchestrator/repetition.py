"""
Detect a chain that repeats itself. Pure: only the text matters, not the steps in which it was written.

An answer may repeat the thinking; it is checked separately. Four kinds, from the strictest to the loosest:

    round    the last step, or the last two in turn, repeated word for word;
    echo     `RUN` paragraphs in a row that all occurred `TIMES` times before, nearly word for word, among the last
             `WINDOW`. A paragraph echoes another if both have the same numbers in the same order, and the other has
             nearly all of its n-grams (`GRAM` words each; signs are words, case and spaces do not count). So a list
             whose items differ by a number, a derivation, or a check that repeats the steps once is no repetition;
    spin     one step that ends with the same units again and again, at least `SPUN` units;
    loop     the chain's text ends with the same characters `ROUNDS` times in a row, at least `SPAN` units. It is
             searched after every step, also one of a single token, and so in the middle of a table or a sum: hence
             the longer span.

A unit is a word, a digit, a character of a script without spaces, or a sign with its repetitions. Text in code fences
is exempt from the first three, and a loop that contains a fence needs `FENCED` times as many rounds: programs repeat.

The cost is bounded by constants, whatever the length of the chain, and every paragraph is parsed once.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice
from math import ceil

from .chain import Chain, Step

PERIODS = (1, 2)  # one step again and again, or two in turn
STUCK = 3  # times

GRAM = 4  # words
WINDOW = 48  # paragraphs
ALIKE = 0.9  # of the n-grams
TIMES = 2
PARSED = 16384  # paragraphs that stay parsed: those of 300 chains
RUN = 3  # paragraphs; the RUN of a repair that is stuck is twice as long

SPUN = 128  # units
LOOP = 24  # units; the longest part that may spin

ROUNDS = 3  # a repair is stuck after one more, and after half as many units again
SPAN = 256  # units
FENCED = 2  # times as many rounds
PER_UNIT = 8  # characters that count as a unit if there are fewer units, as in a row of dashes
TAIL = 8192  # characters in which a loop is searched: enough for four rounds of 2048
MARK = 32  # characters at the end of the text whose earlier places give the lengths that a round may have
NEAR = 16384  # characters in which the last paragraphs are searched

_UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"  # Thai, Lao, Burmese, Khmer
    "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"  # kana and Chinese characters
)
_WORD = re.compile(rf"[{_UNSPACED}]|[^\W{_UNSPACED}]+|[^\w\s]")
_UNIT = re.compile(rf"\d|[{_UNSPACED}]|[^\W\d{_UNSPACED}]+|([^\w\s])\1*")
_NUMBER = re.compile(r"\b\w*\d\w*")  # without \b, the time grows with the square of a long word's length
_BLANK_LINE = re.compile(r"\n[^\S\n]*\n")
_FENCE = re.compile(r"^ {0,3}(?:```|~~~)", re.MULTILINE)
_FENCED = re.compile(r"^ {0,3}(```|~~~).*?(?:^ {0,3}\1[`~]*[^\S\n]*$|\Z)", re.MULTILINE | re.DOTALL)


def obstacle(chain: Chain, draft: Step) -> str:
    """The reason to reject *draft* without a judge: "empty" or "repetition"; "" if it needs a judge."""
    if _spins(draft):
        return "repetition"
    if _nothing(draft) or (draft.stop == "delimiter" and _empty(chain, draft)):
        return "empty"
    part = _part(chain)
    if draft.stop == "end":
        return "empty" if chain.closed and not draft.text.strip() else ""
    if draft.stop == "delimiter" and _rounds(part, draft) >= 2:
        return "repetition"
    return "repetition" if _echoes(part, draft, RUN) or _loops(part, draft, ROUNDS, SPAN) else ""


def stuck(chain: Chain, step: Step) -> bool:
    """Whether *step*, the repair of a repetition, repeats the chain as well, or is empty."""
    if step.stop == "end":
        return False
    part = _part(chain)
    if _nothing(step) or (_loops(part, step, ROUNDS + 1, SPAN * 3 // 2) and _looped(part)):
        return True
    if _spins(step):
        return bool(part.steps) and _spins(part.steps[-1])
    if step.stop == "delimiter" and (_empty(chain, step) or _rounds(part, step) >= STUCK):
        return True
    return _echoes(part, step, 2 * RUN)


def _part(chain: Chain) -> Chain:
    """The part that a step may not repeat: the thinking, or after it the answer, which may repeat the thinking."""
    thinking, answer = chain.parts()
    return answer if chain.closed else thinking


def _nothing(step: Step) -> bool:
    """Whether *step* was cut before its first character, as at the end of a budget."""
    return not step.text and step.stop == "length"


def _empty(chain: Chain, step: Step) -> bool:
    """Whether *step* is blank, and does not end a paragraph that was cut."""
    return not step.text.strip() and (not chain.steps or chain.steps[-1].stop == "delimiter")


def _rounds(chain: Chain, step: Step) -> int:
    """How many times in a row the end of the chain, with *step*, repeats the same text; 0 for code."""
    if _FENCE.search(step.text):
        return 0
    texts = [_spaced(s.text) for s in (*chain.steps[-STUCK * max(PERIODS) :], step)]
    return max(_period(texts, period) for period in PERIODS)


@lru_cache(maxsize=4096)
def _spaced(text: str) -> str:
    """*text* with one space for every run of white space."""
    return " ".join(text.split())


def _period(texts: Sequence[str], period: int) -> int:
    block, rounds = texts[-period:], 1
    while texts[-(rounds + 1) * period : -rounds * period] == block:
        rounds += 1
    return rounds


@dataclass(frozen=True, slots=True)
class _Paragraph:
    """
    A parsed paragraph: its numbers in order, and the *grams*.

    These are the hashes of every sequence of `GRAM` words, or of all words if there are fewer. The *sample* is so large
    a part of them that a paragraph with none of it lacks too many to be an echo: few are compared as a whole.
    """

    numbers: tuple[str, ...]
    grams: frozenset[int]
    sample: frozenset[int]

    def echoes(self, other: _Paragraph) -> bool:
        if self.numbers != other.numbers or self.sample.isdisjoint(other.grams):
            return False
        return len(self.grams & other.grams) >= ALIKE * len(self.grams)


@lru_cache(maxsize=PARSED)
def _parse(paragraph: str) -> _Paragraph:
    words = _words(paragraph)
    starts = range(max(1, len(words) - GRAM + 1))
    grams = frozenset([hash(tuple(words[at : at + GRAM])) for at in starts])
    sample = frozenset(islice(grams, len(grams) - ceil(ALIKE * len(grams)) + 1))
    return _Paragraph(tuple(_NUMBER.findall(paragraph.casefold())), grams, sample)


def _echoes(chain: Chain, step: Step, run: int) -> bool:
    """Whether *step* completes a paragraph, and the last *run* complete paragraphs all occurred before."""
    if not _completes(chain, step):
        return False
    last = list(islice(_paragraphs(chain, step), WINDOW + run))
    return bool(last) and all(_repeats(last[place], last[place + 1 :]) for place in range(min(run, len(last))))


def _completes(chain: Chain, step: Step) -> bool:
    """Whether a paragraph ends with *step*, or within it."""
    if step.stop == "delimiter":
        return True
    before = chain.steps[-1].text[-1:] if chain.steps else ""
    return _BLANK_LINE.search(before + step.text) is not None


def _repeats(paragraph: _Paragraph | None, before: Sequence[_Paragraph | None]) -> bool:
    return paragraph is not None and sum(other is not None and paragraph.echoes(other) for other in before) >= TIMES


def _paragraphs(chain: Chain, step: Step) -> Iterator[_Paragraph | None]:
    """
    The complete paragraphs of the chain with *step*, the last one first; None for a paragraph of code.

    A paragraph ends with a complete step, or at a blank line. A step that was cut is part of the next one. Of a chain
    without complete steps, the last `NEAR` characters are used.
    """
    parts, near, whole = [step.text], len(step.text), step.stop == "delimiter"
    for before in reversed(chain.steps):
        if before.stop == "delimiter":
            yield from reversed(_divide("".join(reversed(parts)), whole=whole))
            parts, near, whole = [], 0, True
        elif near >= NEAR:
            break
        parts.append(before.text)
        near += len(before.text)
    yield from reversed(_divide("".join(reversed(parts)), whole=whole))


@lru_cache(maxsize=PARSED)
def _divide(text: str, *, whole: bool) -> tuple[_Paragraph | None, ...]:
    """Parse the paragraphs of *text*; the last one counts only if the text is *whole*."""
    paragraphs: list[_Paragraph | None] = []
    at, open_end = 0, True
    for fenced in (*_FENCED.finditer(text), None):
        plain = text[at : fenced.start() if fenced else len(text)]
        pieces = _BLANK_LINE.split(plain)
        open_end = bool(pieces[-1].strip())
        paragraphs += [_parse(piece) for piece in pieces if piece.strip()]
        if fenced:
            paragraphs.append(None)
            at, open_end = fenced.end(), True
    if whole and not paragraphs:
        return (_parse(text),)
    return tuple(paragraphs if whole or not open_end else paragraphs[:-1])


def _spins(step: Step) -> bool:
    """Whether *step*, complete or cut by its limit, ends with the same units again and again."""
    if len(step.text) < SPUN or step.stop not in ("delimiter", "length") or _FENCE.search(step.text):
        return False
    units = [unit[0] for unit in _UNIT.finditer(step.text.casefold())][-SPUN:]
    return len(units) == SPUN and any(units[period:] == units[:-period] for period in range(1, LOOP + 1))


def _loops(chain: Chain, step: Step, rounds: int, span: int) -> bool:
    """Whether the text, with *step*, ends with the same characters *rounds* times in a row, at least *span* units."""
    text, light = _tail(chain, step), 0
    while period := _shortest(text, rounds, beyond=light):
        looping = text[-_again(text, period) * period :]
        if _weight(looping) >= span:
            needed = rounds * (FENCED if _FENCE.search(looping) else 1)
            return len(looping) >= needed * period
        light = len(looping)
    return False


def _looped(chain: Chain) -> bool:
    """Whether *chain* ended in a loop already."""
    return bool(chain.steps) and _loops(replace(chain, steps=chain.steps[:-1]), chain.steps[-1], ROUNDS, SPAN)


def _shortest(text: str, rounds: int, *, beyond: int) -> int:
    """The shortest period that *text* ends with *rounds* times, in more than *beyond* characters; 0 if none."""
    mark, at = text[-MARK:], len(text) - MARK
    while at > 0 and (at := text.rfind(mark, 0, at + MARK - 1)) >= 0:
        period = len(text) - MARK - at
        if rounds * period > len(text):
            return 0
        if rounds * period > beyond and text[-rounds * period : -period] == text[(1 - rounds) * period :]:
            return period
    return 0


def _tail(chain: Chain, step: Step) -> str:
    """The last `TAIL` characters of the chain with *step*."""
    return (chain.text[-TAIL:] + step.text)[-TAIL:]


def _again(text: str, period: int) -> int:
    """How many times in a row *text* ends with its last *period* characters."""
    last, times = text[-period:], 1
    while text.endswith(last, 0, len(text) - times * period):
        times += 1
    return times


def _weight(text: str) -> int:
    """The number of units in *text*; at least one per `PER_UNIT` characters."""
    return max(sum(1 for _ in _UNIT.finditer(text)), len(text) // PER_UNIT)


def _words(text: str) -> list[str]:
    return _WORD.findall(text.casefold())
