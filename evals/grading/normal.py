r"""
Rewrite answers so that equal answers look alike.

Spaces, fractions, mixed numbers, decimals and units get one notation. The algebra library gets
answers only in this notation, because it misreads others: it takes ``5 6`` for 56.
"""

# ruff: noqa: RUF001 (the characters that models write)

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

MAX_NUMBER_CHARACTERS = 300
"""No problem has a longer number as its answer. Python refuses to parse very long numbers."""


def _lines_of(name: str) -> list[str]:
    """Return the lines of a data file beside this module, without comments."""
    text = Path(__file__).with_name(name).read_text("utf-8")
    return [line for line in text.splitlines() if line and not line.startswith("# ")]


_SYMBOLS = str.maketrans({"º": "°", "˚": "°", "ℝ": r"\R ", "µ": None})  # which NFKC makes letters
_SPELLINGS = [
    (re.compile(pattern), replacement.replace("␣", " "))
    for pattern, _, replacement in (line.partition("\t") for line in _lines_of("spellings.txt"))
]
_MARGIN = re.compile(r"^(?:\\[,;:! ]|\s)+|(?:\\[,;:!]|\s){1,9}$")
# Braces with at most three levels of braces inside.
_BRACED = (
    r"\{((?:[^{}\\]|\\.|\{(?:[^{}\\]|\\.|\{(?:[^{}\\]|\\.|\{(?:[^{}\\]|\\.)*+\})*+\})*+\})*+)\}"
)
# A whole answer in a style, in braces, or in marks of a formula.
_WRAPPED = re.compile(
    r"(?s)(?:\\(?:math(?:bf|it|rm|sf)|boldsymbol|bm|underline|boxed|fbox|displaystyle|[lL]arge|"
    rf"(?:text)?color\s*\{{[^{{}}]*\}})\s*)?{_BRACED}"
    r"|(?P<mark>\$\$?|\*\*?|`|__)((?:(?!(?P=mark)).)+)(?<!\\)(?P=mark)"
    r"|\\\(((?:(?!\\\().)+)(?<!\\)\\\)|\\\[((?:(?!\\\[).)+)(?<!\\)\\\]"
)
_CURRENCIES = {"$": "dollar", "€": "euro", "£": "pound", "¥": "yen", "₹": "rupee"}
_CURRENCY = re.compile(r"^([+-]?)\s*\\?([$€£¥₹])\s*(?=[+-]?[\d.])|(?<=\d)\s*\\?([$€£¥₹])$")
_THOUSANDS = re.compile(
    r"(?<![\d,.(\[])(?<![(\[]-)(?<![(\[][ ])(?<!\\\{)\d{1,3}(?:(?:,\d{3})+|(?:"
    r" \d{3})+|(?:'\d{3})+)(?!,? ?\d)"
)
_POINTS = re.compile(r"(?<![\d.,])\d{1,3}(?:\.\d{3}){2,}(?:,\d{1,2})?(?![\d.,])")
_LAKHS = re.compile(r"(?<![\d,.(\[])\d{1,2}(?:,\d\d)+,\d{3}(?!,?\d)")
_REPEATING = re.compile(r"(?<!\d)(\d*)\.(\d*)(?:\\(?:overline|bar|dot)\s*\{?(\d+)\}?|\((\d+)\))")
_AND = re.compile(
    r"(?<![\d.])(\d{1,9})\s{0,3}(?:(?<=\s)(?:and|&)(?=\s)|\\text\s?\{\s{0,3}and\s{0,3}\})\s{0,3}"
    r"(?=\d{1,9}/\d|\\[dtc]?frac(?![a-zA-Z]))"
)
_OVERLINED = re.compile(r"(?:\d[\u0304\u0305\u0307])+")
_LETTERED = re.compile(r"(\d)(?:\s|\\[,;: ])?([kKM]|bn|mn)(\W*)$")

MAGNITUDES = {
    "dozen": 12,
    "hundred": 100,
    "thousand": 10**3,
    "lakh": 10**5,
    "million": 10**6,
    "crore": 10**7,
    "billion": 10**9,
    "trillion": 10**12,
}
"""The numbers of words that always mean a number."""
_MULTIPLES = MAGNITUDES | {"score": 20, "gross": 144}
_UNITS = frozenset(word for line in _lines_of("units.txt") for word in line.split())
_SMALL_WORDS = frozenset({"a", "an", "per", "each", "the", "in", "of"})
POWERS = frozenset({"2", "3"})
_PREFIXES = (["square"], ["cubic"], ["cube"])  # of units; alone, they may be powers
_ALIASES = {
    alias: unit
    for unit, *aliases in map(str.split, _lines_of("unit_aliases.txt"))
    for alias in aliases
}
_BARE = (  # shorter units; other short words may be a product of variables
    r"(?:[cmk]?m/s|km/h|[cmk]m|ft|yd|mi|[km]g|lbs?|oz|m[lL]|hrs?|secs?|mins?|mph|USD|EUR|GBP|deg"
    r"|in|day|men|pie|car|dog|cat|egg"
    r"|sq|cup|box|bag|jar|can|pen|kid|boy|bus|set|row|job|ton|yen|lap|key|pan|pot|way)"
)
_WORD = (
    rf"(?:\\text\{{[^{{}}]*\}}|(?<![a-zA-Z])(?:[A-Za-z][a-z]{{3,}}|{_BARE}(?![a-zA-Z])))"
    rf"(?:\^\{{?-?[123]\}}?)?"
)
_UNIT = re.compile(
    rf"(?<=[\d)}}\]a-z.])(?![\s\S]{{61}})\s*"
    rf"(%|(?:/ ?|-|per )?{_WORD}(?:(?: ?/ ?| per | an? | of | the |[ .*-]|\\times"
    rf" ){{0,3}}{_WORD}){{0,8}})\.?$"
)


def normal(text: str) -> str:
    r"""Return an answer in one notation: ``\dfrac12`` and ``½`` become ``\frac{1}{2}``."""
    text = re.sub("[⁻⁰¹²³⁴-⁹]+", lambda match: f"^{{{_plain(match)}}}", text)
    text = re.sub("[₀-₉]+", lambda match: f"_{{{_plain(match)}}}", text)
    text = re.sub(
        "[¼-¾⅐-⅞]",
        lambda match: rf"\frac{{{_plain(match).replace('⁄', '}{')}}}",
        text,
    )
    text = _OVERLINED.sub(lambda match: rf"\overline{{{match[0][::2]}}}", text)
    text = _undelimited(unicodedata.normalize("NFKC", text.translate(_SYMBOLS)).strip())
    for pattern, replacement in _SPELLINGS:
        text = pattern.sub(replacement, text)
    text = _undelimited(text.strip())
    text = _POINTS.sub(lambda match: match[0].replace(".", "").replace(",", "."), text)
    text = _THOUSANDS.sub(lambda match: re.sub(r"[, ']", "", match[0]), text)
    text = _LAKHS.sub(lambda match: match[0].replace(",", ""), text)
    text = _REPEATING.sub(_repeating, text)
    return text.strip(" ").rstrip("., ;").removeprefix("+")


def _plain(match: re.Match[str]) -> str:
    return unicodedata.normalize("NFKC", match[0])


def with_mixed_numbers(text: str) -> str:
    r"""
    Spell ``1 and 1/2`` as ``1 1/2``, and ``6k`` as ``6\text{k}``, in an answer that is one number.

    In a list, ``1 and 1/2`` would be two numbers. In an expression, ``6k`` would be a product.
    """
    return _LETTERED.sub(r"\1\\text{\2}\3", _AND.sub(r"\1 ", text))


def _undelimited(text: str) -> str:
    """Take off a style, braces or marks of a formula, if the whole answer stands in them."""
    text = _MARGIN.sub("", text)
    match = _WRAPPED.fullmatch(text)
    if match is None:
        return text
    return _undelimited(match[match.lastindex or 0])


def _repeating(match: re.Match[str]) -> str:
    """Spell a repeating decimal as a fraction."""
    if len(match[0]) > MAX_NUMBER_CHARACTERS:
        return match[0]
    whole = match[1] or "0"
    fixed = match[2]
    period = match[3] or match[4]
    scale = 10 ** len(fixed) * (10 ** len(period) - 1)
    return _fraction(Fraction(int(whole + fixed + period) - int(whole + fixed), scale))


def _fraction(value: Fraction) -> str:
    return rf"\frac{{{value.numerator}}}{{{value.denominator}}}"


@dataclass(frozen=True, slots=True)
class Quantity:
    """An expression and its unit."""

    expression: str
    """The expression without its unit."""
    unit: frozenset[str] = frozenset()
    """The words of the unit and its powers, such as "meter" and "2"."""


def quantity(text: str) -> Quantity:
    """Divide *text*, in its normal form, into an expression and a unit."""
    unit: set[str] = set()
    currency = _CURRENCY.search(text)
    if currency:
        unit.add(_CURRENCIES[currency[2] or currency[3]])
        text = _CURRENCY.sub(r"\1", text)
    factor = 1
    found = _UNIT.search(text)
    if found:
        words = _words_of(found[1])
        multiple = _multiple(words)
        if multiple is not None:
            del words[0]
        if words not in _PREFIXES and all(map(_is_unit, words)):
            text = text[: found.start()]
            factor = multiple or 1
            unit.update(_canonical(word) for word in words if word not in _SMALL_WORDS)
    if factor != 1:
        text = rf"{factor}\times({text})"
    return Quantity(text, frozenset(unit))


def _words_of(unit: str) -> list[str]:
    if unit == "%":
        return ["percent"]
    spelled = re.sub(r"\\(?:text|times)", " ", unit).lower()
    return re.findall(r"[a-z']+|(?<=\^)[23]|(?<=\^\{)[23]", spelled)


def _multiple(words: Sequence[str]) -> int | None:
    """Return the number that the first of *words* stands for, such as 12 for "dozen"."""
    if not words:
        return None
    return _MULTIPLES.get(words[0]) or _MULTIPLES.get(words[0].removesuffix("s"))


def _is_unit(word: str) -> bool:
    return word in _UNITS or word.removesuffix("s") in _UNITS or word in POWERS


def _canonical(word: str) -> str:
    single = word
    if word.endswith("s") and not word.endswith("ss") and len(word) > 2:
        single = word[:-1]
    return _ALIASES.get(single, _ALIASES.get(word, single))
