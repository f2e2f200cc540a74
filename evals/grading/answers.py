"""What a text answers, and whether that is right where it takes no algebra to see. Pure; no I/O."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Literal, TypeAlias

from stepspec.orchestrator.answer import boxed

Metric: TypeAlias = Literal["math", "number", "choice", "exact"]

LETTERS = "ABCD"
HASHES = "####"  # GSM8K's own, before the answer
LONGEST = 300  # characters of a number; what is longer no problem asks for, and Python would not read for ever

_NUMBER = re.compile(r"-?\$?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?|-?\$?\.\d+")
_WORDS = re.compile(r"\\(?:text|textbf|mathrm|mbox)\s*\{([^{}]*)\}")
_NOISE = re.compile(r"\\[!,;: ]|\\left|\\right|\\displaystyle|\^\s*\{?\\circ\}?|\\%|\\\$|[%$]|\s+")
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
_PLAIN = re.compile(r"([+-]?)(\d+\.?\d*|\.\d+)(?:/(\d+))?")
_FRACTION = re.compile(r"\\[dt]?frac\{(\d+)\}\{(\d+)\}")
_LETTER = re.compile(rf"\W*([{LETTERS}])(?:\W*|\s*[).:].*)", re.DOTALL)
_SAID = re.compile(rf"(?i:answer|choice|option)\W+(?:(?:is|are|must|be|would|therefore|thus)\W+)*\(?([{LETTERS}])\b")


def given(text: str, metric: Metric) -> str:
    r"""
    Return what *text* answers: what its last complete ``\boxed{}`` holds, or else what looks like an answer.

    *text* is what was written after the thinking, and nothing else: neither the problem nor any draft is looked into.
    Empty if there is none.
    """
    inside = boxed(text)
    if inside is not None:
        return inside
    last = text.rpartition(HASHES)[2].strip()
    match metric:
        case "number":
            found = _NUMBER.findall(last)
            return found[-1] if found else ""
        case "choice":
            said = _SAID.findall(text)
            alone = _LETTER.fullmatch(last.splitlines()[-1]) if last else None
            return said[-1] if said else alone[1] if alone else ""
        case "exact":
            return last.splitlines()[-1].strip() if last else ""
        case "math":
            return last


def plainly(answer: str, gold: str, metric: Metric) -> bool | None:
    """Compare *answer* with *gold*; None where that takes algebra."""
    if not answer:
        return False
    if metric == "choice":
        letter = _LETTER.fullmatch(_words(answer))
        return letter is not None and letter[1] == gold
    if answer.strip() == gold.strip():
        return True
    if metric == "exact":
        return False
    ours, theirs = number(answer), number(gold)
    if metric == "number" and ours is not None and theirs is not None:
        return ours == theirs
    return None


def number(text: str) -> Fraction | None:
    r"""
    Read *text* as one number, if it is one: ``1,234.50``, ``\$18``, ``50\%``, ``18\text{ eggs}``, ``\frac{1}{2}``.

    Signs of currency and of per cent are dropped, as GSM8K's answers have neither. None for what is too long as well.
    """
    bare = _NOISE.sub("", _WORDS.sub("", text)).rstrip(".")
    bare = _FRACTION.sub(r"\1/\2", _THOUSANDS.sub("", bare))
    found = _PLAIN.fullmatch(bare) if len(bare) <= LONGEST else None
    if found is None or (found[3] is not None and not int(found[3])):
        return None
    size = Fraction(found[2]) / int(found[3] or 1)
    return -size if found[1] == "-" else size


def _words(text: str) -> str:
    """Take the words out of their LaTeX commands."""
    return _WORDS.sub(r"\1", text).strip()
