"""Find the answer in a text, and compare choices."""

# ruff: noqa: RUF001 (the characters that models write)

from __future__ import annotations

import re
import unicodedata
from typing import Literal, TypeAlias

from stepspec.orchestrator.answer import EMPTY_BOX, boxed

from .normal import MAGNITUDES

Metric: TypeAlias = Literal["math", "number", "choice", "exact"]

LETTERS = "ABCDEFGHIJ"  # of choices
MIN_LISTED_CHOICES = 3  # in one line; two in lines of their own
LISTED_MARK = "_"  # No statement runs over it.
HASHES = "####"  # GSM8K's mark before the answer

_OPEN_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")
_SIZE = (
    r"(?:\d{1,3}(?:(?:[,，]|\{,\}|,\\!\s?|\\[,;: ]|[~'’\u2009\u202f\xa0"
    r" ])\d{3}(?!\d))+|\d+)(?:\.\d+)?|\.\d+"
)
_SIGN = r"(?:(?<![\w)}])[-−–]|(?:(?<=is )|(?<=[=:] )|(?<=^ ))[-−–] )?"
# Words after a number that change its value, such as "doubled" and "thirds".
_CHANGE = (
    r"(?:halve[sd]|thirds|quarters|doubled|tripled|quadrupled|squared|cubed|factorial"
    r"|(?:four|fif|six|seven|eigh|ten|eleven|twelf|[a-z]{3,5}teen|[a-z]{3,5}tie|hundred"
    r"|thousand|million)ths|ninths)"
)
_NUMBER = re.compile(
    rf"{_SIGN}(?:\\?[$€£])?{_SIGN}"
    r"(?:\d+ (?:(?:hour|day|week|month|year|minute|dollar|pound|degree)s?|feet|foot),?(?: and)? "
    r"\d+ (?:hour|minute|second|day|week|month|inche|cent|ounce)s?|\d+ to \d+"
    r"|\d*\s?\\[dt]?frac\{\d+\}\{\d+\}|\d*[¼-¾⅐-⅞]|\d+ (?:and"
    rf" )?\d+/\d+|(?:{_SIZE})(?:/\d+|[eE][+-]?\d+)?)"
    rf"(?:[\s$*~-]{{0,4}}(?:\\text\{{\s?)?(?:(?:{'|'.join(MAGNITUDES)})s?|{_CHANGE})\b\}}?"
    r"|(?:[kKM]|\s?(?:mn|bn))\b)?"
)
# Of brackets without words.
_INNER = r"(?:[^()\[\]{}\n\\a-zA-Z]|\\(?:[a-zA-Z]+|[,;:! ])|(?<![a-zA-Z])[a-zA-Z](?![a-zA-Z]))"
_OPERAND = (
    rf"(?:{_NUMBER.pattern}|"
    rf"(?:\\\{{|(?<!\\)[(\[{{⟨])(?:{_INNER}|[({{]{_INNER}{{0,60}}[)}}]){{1,120}}\\?[)\]}}⟩]"
    r"|\\begin\{[^\n]{1,300}?\\end\{\w+\}|\\(?!text|mbox|begin|end)[a-zA-Z]+"
    r" ?|(?<![a-zA-Z\\])[a-zA-Z](?![a-zA-Z'’])"
    r"|(?:sqrt|log|ln|sin|cos|tan|pi)(?![a-zA-Z]) ?|[√π∞θ∅²³⁴-⁹])"
)
_GLUE = (  # between two operands of one expression
    r"(?:[ \t]?(?:[-+−–/^_=<>≤≥≠≈×·⋅÷∪∩±]{1,2}|(?<!\*)\*(?!\*))[ \t]?[-−]?|(?<=\d):(?=\d)"
    r"| (?=\\[a-zA-Z]|[√π∞]|[jknqrtuxyz](?![a-zA-Z.]))| mod |)"
)
_EXPRESSION = re.compile(
    rf"{_SIGN}{_OPERAND}(?:{_GLUE}{_OPERAND})*(?:\s?\\(?:text|mbox"
    rf"|mathrm)\s?\{{[^{{}}]{{0,40}}\}}(?:\^\{{?\d\}}?)?)?(?:\s?\\?%)?"
)
_VALUE = re.compile(r"\d|[\\π∞∅½⅓⅔¼¾]")
_BOLD = re.compile(r"\*\*([^*\n]{1,80})\*\*\W{0,9}$")
_MATH = re.compile(
    r"\$\$(.+?)\$\$|(?<![\\\d])\$([^$\n]+?)(?<!\\)\$|\\\(((?:(?!\\\().)+?)\\\)|\\\[((?:"
    r"(?!\\\[).)+?)\\\]",
    re.DOTALL,
)
_ANSWER_IS = re.compile(
    r"\banswer\b[^.\n\d$\\]{0,40}?(?:\bis\b|[:=])(?!\W*not\b)([^\n]*)", re.IGNORECASE
)
# no LaTeX but in formulas of its own; bounded, so that no text takes long
_PLAIN = r"(?:[^()\\$]|\$[^$()]{0,80}\$)"
_ASIDE = re.compile(
    r"<<[^<>\n]*>>|</?[a-z]{1,9}>|(?<=[\w$}*])"
    rf" \((?:[^()]*=[^()]*|{_PLAIN}{{0,80}}?[a-z]{{2}}{_PLAIN}{{0,200}})\)"
)
_AFTERTHOUGHT = re.compile(
    r",? (?:not|rather than|instead of) .*|, (?:where|when|because|since|as|with|while|but) .*"
    r"|, which is (?:more|less|greater|smaller|larger) .*"
    r"|,? (?:and|or) (?:[^,]{0,60}\b(?:is|are|was|were)\b|about|approximately|roughly).*"
)
_OTHER_NUMBER = re.compile(  # before a number that is not the answer
    r"(?i)(?:(?:n't|\b(?:not|cannot|never))(?: be| equal(?: to)?)?"
    r"|(?<!no )(?<!not )\b(?:more|less|greater|fewer|smaller|larger) than)[\s$*]{1,3}$"
)
_RELATION = re.compile(r"[=<>]|\\(?:[lg]e|ne|in|leq|geq|neq)(?![a-z])")
_INEQUALITY = re.compile(r"\W*[a-z]\s*(?:[<>≤≥]|\\[lg])")
_BOTH = re.compile(r"[$*]{0,4},?\s(?:and|or)\s[\s$*]{0,4}")
# where the answer is stated
_LISTED = re.compile(rf"{_BOTH.pattern}|[$*]{{0,4}},\s{{0,3}}[$*]{{0,4}}")
_SENTENCE_END = re.compile(r"\.(?:\s|$)")

_COLOR = r"(?:text)?color\s*\{\w*\}"
_WORDS = re.compile(
    r"\\(?:text(?!color)\w*|math\w*|mbox|boldsymbol|operatorname|underline"
    rf"|{_COLOR})\s*\{{([^{{}}]*)\}}"
)
_MARKUP = re.compile(
    r"\\(?:[()\[\],;!"
    rf" ]|(?:rm|bf|\w?arge|huge|displaystyle|q?quad|checkmark)(?![a-z])|{_COLOR})|[*$~`_]"
    rf"|</?\w{{2,9}}>"
)
_QUOTES = str.maketrans("‘’“”", "''\"\"")
# "I" is a letter of a choice only in brackets or at the end of a line.
_CHOICE = r"(?:[A-HJ]|(?<=\()I(?=\))|I(?=[.!]?\s*(?:\n|$)))"
_LETTER = rf"\(?({_CHOICE})\)?(?![a-zA-Z0-9'_)])"
# The article "A" is no letter of a choice, and of two letters neither is the answer.
_SURE = (
    r"(?!(?<!\))\s+(?!(?:because|since|as|and|is|for|by|due|which|with|or|are|does|will|rather"
    r"|instead|not|but)\b)[a-z])"
    rf"(?!\s*(?:(?:[,/+&、或和]|or|and|nor|maybe|perhaps|possibly)\s*)+\(?[{LETTERS}](?![a-zA-Z]))"
)
_DENIED = (
    r"(?!(?:\s*[:–-])?\s*(?:is|are|was|were|would be|seems|ca|can|does|has)?\s*"
    r"(?:not\b|n't|cannot|never|wrong|incorrect|false|invalid|是?[不错]))"
    r"(?!\W{1,4}(?i:no[,:]|wait\b))"
)
_STATEMENTS = tuple(
    re.compile(pattern)
    for pattern in (
        r"(?i:\b(?:a(?:ns|nswers?(?:\W+(?:here|(?:to|for)\W+\w+\W+\w+))?)|(?:choice|option|pick"
        r"|statement|letter)s?\W+(?:is|are|must|would|should|has)))\W+"
        rf"(?:(?i:is|are|must|be|would|should|has"
        rf" to|therefore|thus|clearly|actually|indeed|simply|probably"
        rf"|most|likely|definitely|option|choice|letter|the|correct|one)\W+)*"
        rf"{_LETTER}{_SURE}{_DENIED}",
        rf"\b(?i:I|we|I'll|I'd|I'm|am|let's|me|us|would|will|to)\W+"
        rf"(?i:pick|chose|choose|select|say|go with|going"
        rf" with|take)\W+(?:(?i:the|option|choice|answer|letter)\W+)*"
        rf"{_LETTER}{_SURE}{_DENIED}",
        r"\b(?i:thus|so|therefore|hence|it is|it's|it (?:must|has to) be|conclude|i\.e\.|not"
        rf" \(?[{LETTERS}]\)?,? but)"
        rf"\W+{_LETTER}(?=[\s.!]*$)",
        rf"(?i:\b(?:answer|option|choice|letter))\W+(?:(?i:is)\W+)?\(?([{LETTERS.lower()}])(?:\)"
        r"(?=\s)|\)?(?=[\s.!]*$))",
        rf"(?:答案|正确|(?<!不)(?<!不.)[选選])[^\Wa-zA-Z不]{{0,6}}\W*{_LETTER}{_DENIED}",
        rf"(?<![a-zA-Z、和与及]){_LETTER}(?:选?项)?是?(?:正确|符合)",
        rf"(?<![\w(]){_LETTER}\W+(?i:is|(?:must|has to)"
        r" be|seems|looks)\W+(?:(?i:the|only|most)\W+)*"
        rf"(?i:correct|right|true|answer|best|better|accurate|likely)\b(?!,? but)",
        rf"(?i:\bonly)\W+(?:(?i:option|choice|statement)\W+)?{_LETTER}\W+(?i:works|fits|holds"
        r"|remains|matches|applies)",
        rf"(?<![\w(]){_LETTER} (?i:it is|it must be)(?=[\s.!]*$)",
    )
)
_MENTIONED = re.compile(
    rf"(?i:\b(?:choice|option)s?|\bcorresponds"
    rf" to|\bmatches|\bleav(?:es|ing)|\b(?:fits|works|remains|left) is)\W+"
    rf"(?:(?i:the|letter|only|just)\W+)*{_LETTER}{_SURE}{_DENIED}"
)
_DOUBTED = re.compile(
    r"(?i)(?:n't|\b(?:not|never|doubt)\b)(?:(?!\b(?:but|so|and)\b)[^.,;:\n]){0,60}$"
    r"|\b(?:except|(?:rul|eliminat|exclud|reject|avoid)[a-z]*(?: out)?|(?:all|any|every)(?:thing)?"
    r" but|wrong)[ (]+$",
)
_ONLY_LETTER = re.compile(
    r"\W*(?:(?i:the|final|correct|right|best|a(?:nswer|ns)|option|choice|letter|is|it|it's|so"
    r"|thus|hence|then|clearly|definitely"
    r"|choose|select|selected|pick|correction|result|by|elimination|we|get|this|that|that's"
    rf"|gives|which)\W+)*\(?([{LETTERS}])\)?\W*"
)
_LETTER_FIRST = re.compile(
    rf"(?s)\W*(?:(?i:option|choice|answer)\W+)?\(?([{LETTERS}]|[{LETTERS.lower()}](?=\)))"
    rf"(?:\s*[).:]|,? (?:since|because)\b| [–—=-] (?!\(?[{LETTERS}]\b)|"
    rf" {{1,3}}(?=\((?![{LETTERS}]\b)))(.*)",
)
_ITEM = re.compile(
    rf"(?<![\w)])(?<!ption )(?<!hoice )(?<!tatement )\(?([{LETTERS}])(?:\)|[.:](?=\s))"
    r"(?=[^\S\n]*\S)"
)
_OTHER_LETTER = re.compile(rf"(?<!\w)\(?[{LETTERS}][).:]|\b(?:or|and)\s+\(?[{LETTERS}]\b")


def extract_answer(text: str, metric: Metric) -> str:
    r"""
    Return the answer in *text*: the content of its last boxes, or else what looks like an answer.

    *text* is what the model wrote after its thinking. Return "" if it has no answer.
    """
    inside = boxed(text)
    if inside is not None:
        if metric != "choice" or _letter(_plain(inside)):
            return inside
        return _stated_letter(_unboxed(text, inside)) or inside
    # A box that was cut off may lack its last digits.
    text = _OPEN_BOX.split(EMPTY_BOX.sub("", text))[0]
    last = text.rpartition(HASHES)[2].strip()
    match metric:
        case "choice":
            return _stated_letter(last)
        case "exact":
            return last.splitlines()[-1].strip() if last else ""
        case "number" | "math":
            return _stated_value(last, metric)


def _unboxed(text: str, inside: str) -> str:
    """Return *text* without the box around *inside*."""
    return text.replace(rf"\boxed{{{inside}}}", "").replace(rf"\fbox{{{inside}}}", "")


def _stated_value(text: str, metric: Metric) -> str:
    """Return what *text* says is the answer, or else its last formula or number."""
    for stated in reversed(_ANSWER_IS.findall(text)):
        sentence = _AFTERTHOUGHT.sub("", _SENTENCE_END.split(stated.strip())[0])
        value = _last_value(" " + sentence, metric, _LISTED)
        if not value and metric == "math":
            value = sentence.strip(" .*_$:")
        if value:
            return value
    if metric == "number":
        return _last_value(text, metric)
    last = text.rpartition("\n")[2].strip()
    value = ""
    if not re.search("[a-zA-Z]{3}", last):  # A line without words may be a list.
        value = _last_value(" " + last, metric, _LISTED)
    value = value or _last_value(text, metric)
    if value:
        return value
    bold = _BOLD.search(last)
    return bold[1] if bold else last


def _last_value(text: str, metric: Metric, joint: re.Pattern[str] = _BOTH) -> str:
    """
    Return the last formula or number in *text*, with the values that are joined to it.

    Values that "and" or "or" joins are one answer. *joint* is what may stand between the last two
    values.
    """
    text = _ASIDE.sub("", text)
    values = _values(text, metric)
    while values and _OTHER_NUMBER.search(text, 0, values[-1].start()):
        values.pop()
    if not values:
        return ""
    after = values[-1]
    answer = _content(after)
    for value in reversed(values[:-1]):
        between = text[value.end() : after.start()]
        are_inequalities = all(map(_INEQUALITY.match, (value[0], after[0])))
        are_relations = _RELATION.search(value[0] + after[0])
        if not joint.fullmatch(between) or (are_relations and not are_inequalities):
            break
        link = " and " if are_inequalities and "and" in between else ", "
        answer = f"{_content(value)}{link}{answer}"
        joint = _LISTED
        after = value
    return answer


def _values(text: str, metric: Metric) -> list[re.Match[str]]:
    """Return the numbers in *text*, or the formulas if no number follows the last of them."""
    numbers = [found for found in _EXPRESSION.finditer(text) if _VALUE.search(found[0])]
    formulas = list(_MATH.finditer(text)) if metric == "math" else []
    if not formulas:
        return numbers
    if numbers and numbers[-1].start() >= formulas[-1].end():
        return numbers
    return formulas


def _content(value: re.Match[str]) -> str:
    """Return a formula without its marks, or a number."""
    inside = "".join(filter(None, value.groups()))
    return (inside or value[0]).strip()


def _stated_letter(text: str) -> str:
    """
    Return the letter that *text* says is the answer, or else the letter in its last line, or
    else in its first line.
    """
    plain = _marked(_plain(text))
    found = [match for statement in _STATEMENTS for match in statement.finditer(plain)]
    found = found or list(_MENTIONED.finditer(plain))
    found = [match for match in found if not _DOUBTED.search(plain, 0, match.start())]
    if found:
        return max(found, key=lambda match: match.end(1))[1].upper()
    lines = plain.splitlines() or [""]
    for line in (lines[-1], lines[0]):
        letter = _letter(line, *({*lines} - {line}))
        if letter:
            return letter
    return ""


def same_letter(answer: str, gold: str) -> bool:
    """Whether *answer* names the choice *gold* and no other."""
    return _letter(_plain(answer)) == gold


def _letter(plain: str, *others: str) -> str:
    """Return the only letter of a choice in *plain*; "" if it or *others* have a second letter."""
    alone = _ONLY_LETTER.fullmatch(plain)
    if alone:
        return alone[1]
    first = _LETTER_FIRST.fullmatch(plain)
    if first and not any(map(_OTHER_LETTER.search, (first[2], *others))):
        return first[1].upper()
    return ""


def _marked(text: str) -> str:
    """Replace the letters of a list of choices by a mark, because such a list names no answer."""
    runs: list[list[re.Match[str]]] = []
    for item in _ITEM.finditer(text):
        if item[1] == "A":
            runs.append([item])
        elif runs and LETTERS.index(item[1]) == len(runs[-1]):
            runs[-1].append(item)
    for run in reversed(runs):
        if len(run) >= MIN_LISTED_CHOICES or (len(run) == 2 and all(map(_starts_line, run))):
            for item in reversed(run):
                text = f"{text[: item.start()]}{LISTED_MARK} {text[item.end() :]}"
    return text


def _starts_line(item: re.Match[str]) -> bool:
    return not re.search(r"\w", item.string[: item.start()].rpartition("\n")[2])


def _plain(text: str) -> str:
    """Return *text* without markup. A text of one letter gets upper case."""
    text = unicodedata.normalize("NFKC", text)
    for _ in range(3):  # one style within another
        text = _WORDS.sub(r"\1", text)
    text = _MARKUP.sub("", text.translate(_QUOTES))
    text = re.sub(r"(?<!\w)['\"](\w)['\"]", r"\1", text).strip()
    if len(text.strip("(). ")) == 1:
        return text.upper()
    return text
