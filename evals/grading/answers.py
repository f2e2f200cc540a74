"""Extract the answer of a text, and compare it with the true one where that takes no algebra. Pure; no I/O."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Literal, TypeAlias

from stepspec.orchestrator.answer import boxed

Metric: TypeAlias = Literal["math", "number", "choice", "exact"]

LETTERS = "ABCD"
HASHES = "####"  # GSM8K's own, before the answer
LONGEST = 300  # characters of a number; no problem has a longer answer, and Python refuses to parse very long ones

_NUMBER = re.compile(r"-?\$?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?|-?\$?\.\d+")
_WORDS = re.compile(r"\\(?:text|textbf|mathrm|mbox)\s*\{([^{}]*)\}")
_NOISE = re.compile(r"\\[!,;: ]|\\left|\\right|\\displaystyle|\^\s*\{?\\circ\}?|\\%|\\\$|[%$]|\s+")
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
_PLAIN = re.compile(r"([+-]?)(\d+(?:\.\d*)?|\.\d+)(?:/(\d+))?")
_FRACTION = re.compile(r"\\[dt]?frac\{(\d+)\}\{(\d+)\}")
_LETTER = re.compile(rf"\W*([{LETTERS}])(?:\W*|\s*[).:].*)", re.DOTALL)
_STATED = re.compile(rf"(?i:answer|choice|option)\W+(?:(?:is|are|must|be|would|therefore|thus)\W+)*\(?([{LETTERS}])\b")


def extract_answer(text: str, metric: Metric) -> str:
    r"""
    Return the answer in *text*: the content of its last complete ``\boxed{}``, or else what looks like an answer.

    *text* is the text after the thinking, without the problem and without drafts. Empty if it has no answer.
    """
    inside = boxed(text)
    if inside is not None:
        return inside
    last = text.rpartition(HASHES)[2].strip()
    match metric:
        case "number":
            numbers = _NUMBER.findall(last)
            return numbers[-1] if numbers else ""
        case "choice":
            stated = _STATED.findall(text)
            alone = _LETTER.fullmatch(last.splitlines()[-1]) if last else None
            return stated[-1] if stated else alone[1] if alone else ""
        case "exact":
            return last.splitlines()[-1].strip() if last else ""
        case "math":
            return last


def compare_plainly(answer: str, gold: str, metric: Metric) -> bool | None:
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
    Parse *text* as one number: ``1,234.50``, ``\$18``, ``50\%``, ``18\text{ eggs}``, ``\frac{1}{2}``.

    Currency and per cent signs are dropped, as GSM8K's answers have neither. None for other or too long texts.
    """
    bare = _NOISE.sub("", _WORDS.sub("", text)).rstrip(".")
    bare = _FRACTION.sub(r"\1/\2", _THOUSANDS.sub("", bare))
    match = _PLAIN.fullmatch(bare) if len(bare) <= LONGEST else None
    if match is None or (match[3] is not None and not int(match[3])):
        return None
    size = Fraction(match[2]) / int(match[3] or 1)
    return -size if match[1] == "-" else size


def _words(text: str) -> str:
    """Take the words out of their LaTeX commands."""
    return _WORDS.sub(r"\1", text).strip()
