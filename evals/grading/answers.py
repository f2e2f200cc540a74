"""Find the answer in a text, and grade choices and texts. Pure; no I/O."""

# ruff: noqa: RUF001 (the characters that models write)

from __future__ import annotations

import re
from typing import Literal, TypeAlias

from stepspec.orchestrator.answer import EMPTY_BOX, boxed

from .normal import MAGNITUDES

Metric: TypeAlias = Literal["math", "number", "choice", "exact"]

LETTERS = "ABCD"
HASHES = "####"  # GSM8K's own, before the answer

_OPEN_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")
_SIZE = r"(?:\d{1,3}(?:(?:,|\{,\}|\\,|[~'\u2009\u202f\xa0 ])\d{3}(?!\d))+|\d+)(?:\.\d+)?|\.\d+"
_SIGN = r"(?:(?<![\w)}])[-−–]|(?:(?<=is )|(?<=[=:] )|(?<=^ ))[-−–] )?"
_NUMBER = re.compile(
    rf"{_SIGN}(?:\\?[$€£])?{_SIGN}"
    rf"(?:\d*\s?\\[dt]?frac\{{\d+\}}\{{\d+\}}|\d*[½⅓⅔¼¾]|\d+ (?:and )?\d+/\d+|(?:{_SIZE})(?:/\d+)?)"
    rf"(?:[\s$*~-]{{0,4}}(?:\\text\{{\s?)?(?:{'|'.join(MAGNITUDES)})s?\b\}}?|(?:[kKM]|\s?(?:mn|bn))\b)?"
)
_MATH = re.compile(
    r"\$\$(.+?)\$\$|(?<![\\\d])\$([^$\n]+?)(?<!\\)\$|\\\(((?:(?!\\\().)+?)\\\)|\\\[((?:(?!\\\[).)+?)\\\]", re.DOTALL
)
_ANSWER_IS = re.compile(r"\banswer\b[^.\n\d$\\]{0,40}?(?:\bis\b|[:=])(?!\W*not\b)([^\n]*)", re.IGNORECASE)
_PLAIN = r"(?:[^()\\$]|\$[^$()]{0,80}\$)"  # no LaTeX but in formulas of its own; bounded, so that no text takes long
_ASIDE = re.compile(rf"(?<=[\w$}}*]) \((?:\s*=[^()]*|{_PLAIN}{{0,80}}?[a-z]{{2}}{_PLAIN}{{0,200}})\)")
_AFTERTHOUGHT = re.compile(
    r",? (?:not|rather than|instead of) .*|, (?:where|when|because|since|as|with|while|but) .*"
    r"|, which is (?:more|less|greater|smaller|larger) .*"
    r"|,? (?:and|or) (?:[^,]{0,60}\b(?:is|are|was|were)\b|about|approximately|roughly).*"
)
_RELATION = re.compile(r"[=<>]|\\(?:[lg]e|ne|in|leq|geq|neq)(?![a-z])")
_BOTH = re.compile(r"[$*]{0,4},?\s(?:and|or)\s[\s$*]{0,4}")
_SENTENCE_END = re.compile(r"\.(?:\s|$)")

_WORDS = re.compile(r"\\(?:text|textbf|textrm|mathrm|mathbf|mbox|boldsymbol)\s*\{([^{}]*)\}")
_MARKUP = re.compile(r"\\[()\[\],;! ]|[*$~_`]")
_LETTER = rf"\(?([{LETTERS}])\)?(?![\w'])"
# The article "A" is no letter of a choice, and of two letters neither is the answer.
_SURE = (
    rf"(?!\s+(?!(?:because|since|as|and|is|for|by|due|which|with|or|are|does|will)\b)[a-z])"
    rf"(?!\s*(?:,|/|or|and|nor)\s*\(?[{LETTERS}]\b)"
)
_DENIED = (
    r"(?!\s*(?:is|are|was|would be|seems|ca|can|does|has)?\s*(?:not\b|n't|cannot|never|wrong|incorrect|false|invalid))"
)
_STATEMENTS = tuple(
    re.compile(pattern)
    for pattern in (
        rf"(?i:\b(?:answers?|(?:choice|option|pick|statement)s?\W+(?:is|are|must|would|should)))\W+(?:(?i:is|are|must|be|would"
        rf"|should|therefore|thus|clearly|option|choice|letter|the|correct|one)\W+)*{_LETTER}{_SURE}{_DENIED}",
        rf"\b(?i:I|we|I'll|I'd|I'm|am|let's|me|us|would|will|to)\W+"
        rf"(?i:pick|choose|select|say|go with|going with|take)\W+(?:(?i:the|option|choice|answer|letter)\W+)*"
        rf"{_LETTER}{_SURE}{_DENIED}",
        rf"\b(?i:thus|so|therefore|hence|it is|it's|it must be|conclude)\W+{_LETTER}(?=[\s.]*$)",
        rf"(?i:\banswer)\W+(?:(?i:is)\W+)?\(?([{LETTERS.lower()}])\)?[\s.]*$",
        rf"(?:答案|选|選)[是为為择擇]?\W*{_LETTER}",
        rf"(?<![\w(]){_LETTER}\W+(?i:is|must be)\W+(?:(?i:the)\W+)?(?i:correct|right|true|answer|best)",
        rf"(?<![\w(]){_LETTER} (?i:it is|it must be)(?=[\s.!]*$)",
    )
)
_MENTIONED = re.compile(
    rf"(?i:\b(?:choice|option)s?|\bcorresponds to|\bmatches|\bleav(?:es|ing))\W+"
    rf"(?:(?i:the|letter)\W+)*{_LETTER}{_SURE}{_DENIED}"
)
_DOUBTED = re.compile(r"(?:n't|\b(?:not|never|doubt))\b(?:(?!\b(?:but|so|and)\b)[^.,;:\n]){0,60}$")
_ONLY_LETTER = re.compile(rf"\W*(?:(?i:the|final|correct|answer|option|choice|is)\W+)*\(?([{LETTERS}])\)?\W*")
_LETTER_FIRST = re.compile(
    rf"\W*(?:(?i:option|choice|answer)\W+)?\(?([{LETTERS}])(?:\s*[).:]|,? (?:since|because)\b)(.*)", re.DOTALL
)
_OTHER_LETTER = re.compile(rf"(?<!\w)\(?[{LETTERS}][).:]|\b(?:or|and)\s+\(?[{LETTERS}]\b")


def extract_answer(text: str, metric: Metric) -> str:
    r"""
    Return the answer in *text*: the content of its last boxes, or else what looks like an answer.

    *text* is the text after the thinking, without the problem and without drafts. Empty if it has no answer.
    """
    inside = boxed(text)
    if inside is not None:
        return inside
    text = _OPEN_BOX.split(EMPTY_BOX.sub("", text))[0]  # A box that was cut off may lack its last digits.
    last = text.rpartition(HASHES)[2].strip()
    match metric:
        case "choice":
            return _stated_letter(last)
        case "exact":
            return last.splitlines()[-1].strip() if last else ""
        case "number" | "math":
            return _stated_value(last, metric)


def _stated_value(text: str, metric: Metric) -> str:
    """Return what *text* states as the answer, or else its last formula or number."""
    for stated in reversed(_ANSWER_IS.findall(text)):
        value = _last_value(" " + _AFTERTHOUGHT.sub("", _SENTENCE_END.split(stated.strip())[0]), metric)
        if value:
            return value
    value = _last_value(text, metric)
    return value or (text.splitlines()[-1].strip() if text and metric == "math" else "")


def _last_value(text: str, metric: Metric) -> str:
    text = _ASIDE.sub("", text)
    formulas = list(_MATH.finditer(text)) if metric == "math" else []
    numbers = list(_NUMBER.finditer(text))
    values = numbers if not formulas or (numbers and numbers[-1].start() >= formulas[-1].end()) else formulas
    found = values[-1:]
    for other in values[-2::-1]:  # Values that "and" or "or" joins are one answer.
        if _RELATION.search(other[0] + found[0][0]) or not _BOTH.fullmatch(text, other.end(), found[0].start()):
            break
        found.insert(0, other)
    return ", ".join(("".join(filter(None, match.groups())) or match[0]).strip() for match in found)


def _stated_letter(text: str) -> str:
    """Return the letter that *text* states as the answer, or which is its last line."""
    plain = _uppercase(_plain(text))
    found = [match for statement in _STATEMENTS for match in statement.finditer(plain)] or [*_MENTIONED.finditer(plain)]
    found = [match for match in found if not _DOUBTED.search(plain, 0, match.start())]
    if found:
        return max(found, key=lambda match: match.end(1))[1].upper()
    alone = _ONLY_LETTER.fullmatch(plain.splitlines()[-1]) if plain else None
    first = _LETTER_FIRST.fullmatch(plain.splitlines()[-1]) if plain else None
    return alone[1] if alone else first[1] if first and not _OTHER_LETTER.search(first[2]) else ""


def same_letter(answer: str, gold: str) -> bool:
    """Whether *answer* names the choice *gold* and no other."""
    plain = _uppercase(_plain(answer))
    alone = _ONLY_LETTER.fullmatch(plain)
    if alone:
        return alone[1] == gold
    first = _LETTER_FIRST.fullmatch(plain)
    return first is not None and first[1] == gold and not _OTHER_LETTER.search(first[2])


def _uppercase(plain: str) -> str:
    return plain.upper() if len(plain.strip("(). ")) == 1 else plain


def _plain(text: str) -> str:
    return _MARKUP.sub("", _WORDS.sub(r"\1", text)).replace("’", "'").strip()
