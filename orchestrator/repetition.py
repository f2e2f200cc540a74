"""
Tell a chain that goes round in circles. Pure; only whole steps count, as a policy may also move token by token.

Three kinds of circle, from the strictest to the loosest:

    round    the last step, or the last two in turn, said again word for word;
    echo     `RUN` paragraphs in a row that were all said `TIMES` times before, nearly word for word, among the last
             `WINDOW`. A paragraph echoes another if both have the same numbers in the same order, and the other has
             nearly all of its n-grams (`GRAM` words each; signs are words, case and spaces do not count). So a list
             whose items differ by a number, a derivation, and a check that repeats the steps once are none;
    spin     one step that ends in the same words again and again, for `SPUN` words at least.

Everything is bounded by constants, whatever the length of the chain, and a paragraph is taken apart once.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice

from .chain import Chain, Step

PERIODS = (1, 2)  # one step again and again, or two in turn
STUCK = 3  # times

GRAM = 4  # words
WINDOW = 48  # paragraphs
ALIKE = 0.9  # of the n-grams
TIMES = 2
RUN = 3  # paragraphs; the RUN of a repair that is stuck is twice as long

SPUN = 128  # words
LOOP = 24  # words; the longest part that is looked for again and again

_WORD = re.compile(r"\w+|[^\w\s]")


def obstacle(chain: Chain, draft: Step) -> str:
    """Why *draft* needs no judge to be refused: "empty", "repetition", or "" if it does need one."""
    if _spins(draft):
        return "repetition"
    if _nothing(draft) or (draft.stop == "delimiter" and _empty(chain, draft)):
        return "empty"
    if draft.stop != "delimiter":
        return ""
    return "repetition" if _rounds(chain, draft) >= 2 or _echoes(chain, draft, RUN) else ""


def stuck(chain: Chain, step: Step) -> bool:
    """Whether even the *step* that was to get the chain out of a circle goes round it, or says nothing."""
    if _spins(step):
        return bool(chain.steps) and _spins(chain.steps[-1])
    if step.stop != "delimiter":
        return _nothing(step)
    return _empty(chain, step) or _rounds(chain, step) >= STUCK or _echoes(chain, step, 2 * RUN)


def circles(chain: Chain) -> int:
    """Count the steps that the large model wrote in place of one that went round in circles."""
    return sum(step.note == "repetition" for step in chain.steps)


def _nothing(step: Step) -> bool:
    """Whether *step* was cut before its first character, as half of one at the end of a budget."""
    return not step.text and step.stop == "length"


def _empty(chain: Chain, step: Step) -> bool:
    """Whether *step* says nothing, and does not even end a paragraph that was cut."""
    return not step.text.strip() and (not chain.steps or chain.steps[-1].stop == "delimiter")


def _rounds(chain: Chain, step: Step) -> int:
    """How many times in a row the chain's end, with *step*, says the same."""
    said = [" ".join(s.text.split()) for s in (*chain.steps[-STUCK * max(PERIODS) :], step)]
    return max(_period(said, period) for period in PERIODS)


def _period(said: Sequence[str], period: int) -> int:
    block, rounds = said[-period:], 1
    while said[-(rounds + 1) * period : -rounds * period] == block:
        rounds += 1
    return rounds


@dataclass(frozen=True, slots=True)
class _Said:
    """A paragraph taken apart: its numbers in order, and every sequence of `GRAM` words, or all of fewer."""

    numbers: tuple[str, ...]
    grams: frozenset[tuple[str, ...]]

    def echoes(self, other: _Said) -> bool:
        return self.numbers == other.numbers and len(self.grams & other.grams) >= ALIKE * len(self.grams)


@lru_cache(maxsize=4096)
def _said(paragraph: str) -> _Said:
    words = _words(paragraph)
    starts = range(max(1, len(words) - GRAM + 1))
    return _Said(
        tuple([word for word in words if any(map(str.isdigit, word))]),
        frozenset([tuple(words[at : at + GRAM]) for at in starts]),
    )


def _echoes(chain: Chain, step: Step, run: int) -> bool:
    """Whether the last *run* paragraphs, with that of *step*, have all been said before."""
    said = list(islice(_paragraphs(chain, step), WINDOW + run))
    return all(_worn(said[place], said[place + 1 :]) for place in range(run))  # the last two have too few before them


def _worn(said: _Said, before: Sequence[_Said]) -> bool:
    return sum(said.echoes(other) for other in before) >= TIMES


def _paragraphs(chain: Chain, step: Step) -> Iterator[_Said]:
    """The paragraphs of the chain with *step*, the last one first; a step that was cut is part of the next one's."""
    parts: list[str] = [step.text]
    for before in reversed(chain.steps):
        if before.stop == "delimiter":
            yield _said("".join(reversed(parts)))
            parts.clear()
        parts.append(before.text)
    yield _said("".join(reversed(parts)))


def _spins(step: Step) -> bool:
    """Whether *step*, complete or cut by its limit, ends in the same words again and again."""
    if step.stop not in ("delimiter", "length"):
        return False
    words = _words(step.text)[-SPUN:]
    return len(words) == SPUN and any(words[period:] == words[:-period] for period in range(1, LOOP + 1))


def _words(text: str) -> list[str]:
    return _WORD.findall(text.casefold())
