"""
Find the cues after which a pair's small model may write: where it agrees with the large one more than it usually does.

The large model solves problems alone, and the small one reads what it wrote (RelayGen, arXiv:2602.06454, section 4,
looks at the margin between the large model's first two choices instead; to agree is to rank the token first). A
candidate is how a sentence begins: its first words, up to three, and the comma after them. It is measured as the policy
uses it: where it is found in a sentence, for the first time and within words too, the rest of the sentence counts.

A candidate becomes a cue if the lower end of its 95% interval is above the share over all tokens. Tokens of a sentence
depend on each other; so the interval is that of as many independent trials as there are sentences, which is cautious.
All figures are of the problems that were profiled: those of others will be a little lower.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import orjson
from rich.table import Table

from stepspec.api import Solver
from stepspec.orchestrator import Chain, Model, Token, reason
from stepspec.orchestrator.chain import THINK_END
from stepspec.orchestrator.concurrency import at_once
from stepspec.orchestrator.errors import ConfigurationError
from stepspec.orchestrator.step_ends import StepEnds
from stepspec.policies.relay import CLOSERS, WIDE_MARKS

from ..results import wilson
from ..testbed.problems import generate

AT_ONCE = 8
LEAST = 12  # sentences, below which a share says little
WORDS = 3

_MARKS = rf"[.!?]+[{re.escape(CLOSERS)}]*(?=\s|\Z)|[{WIDE_MARKS}]+[{re.escape(CLOSERS)}]*"
_SENTENCE = re.compile(rf".+?(?:(?:{_MARKS})\n*|\n+|\Z)", re.DOTALL)
_WORD = re.compile(r"\s*[^\W\d_]+(?:['\u2019-][^\W\d_]+)*")


@dataclass(frozen=True, slots=True)
class Sentence:
    """A sentence of the large model, with the small model's reading of it."""

    text: str
    tokens: tuple[Token, ...]

    def after(self, cue: str) -> tuple[Token, ...] | None:
        """The tokens that begin after *cue* is complete; None if it is not in the sentence."""
        at = self.text.find(cue)
        if at < 0:
            return None
        end, begin = at + len(cue), 0
        rest: list[Token] = []
        for token in self.tokens:
            if begin >= end:
                rest.append(token)
            begin += len(token.text)
        return tuple(rest)


@dataclass(frozen=True, slots=True)
class Cue:
    """
    Words after which the small model would write the rest of the sentence.

    *n* sentences have it. *agreement* is the share of the tokens after it that the small model ranks first, from *low*
    to *high*; *share* is that of all tokens which would go to the small model.
    """

    text: str
    n: int
    agreement: float
    low: float
    high: float
    share: float


@dataclass(frozen=True, slots=True)
class PairProfile:
    """What was found: the *agreement* over all tokens, the *cues*, and both with all cues in use (*share*, *after*)."""

    problems: int
    sentences: int
    tokens: int
    agreement: float
    cues: tuple[Cue, ...]
    share: float
    after: float


def sentences(text: str) -> list[str]:
    """Divide *text* after the marks that end sentences, and after line breaks; the parts join to it."""
    return _SENTENCE.findall(text)


def openings(sentence: str) -> list[str]:
    """How *sentence* begins: its first words, up to three, and with the comma that may follow. Numbers are no words."""
    found: list[str] = []
    at = 0
    for _ in range(WORDS):
        word = _WORD.match(sentence, at)
        if word is None:
            break
        at = word.end()
        found.append(sentence[:at].strip())
        if sentence[at : at + 1] == ",":
            found.append(sentence[: at + 1].strip())
            break
    return found


def find_cues(read: Sequence[Sentence], *, least: int = LEAST) -> tuple[Cue, ...]:
    """The cues in *read*, those that send most tokens to the small model first; none begins with or holds another."""
    counts = Counter(opening for sentence in read for opening in openings(sentence.text))
    usual, total = _agreement(token for sentence in read for token in sentence.tokens), _count(read)
    measured = (_measure(text, read, total) for text, n in counts.items() if n >= least)
    good = [cue for cue in measured if cue is not None and cue.n >= least and cue.low > usual]
    chosen: list[Cue] = []
    for cue in sorted(good, key=lambda cue: (len(cue.text), cue.text)):
        if not any(shorter.text in cue.text for shorter in chosen):  # It would never be reached.
            chosen.append(cue)
    return tuple(sorted(chosen, key=lambda cue: (-cue.share, cue.text)))


def _measure(text: str, read: Sequence[Sentence], total: int) -> Cue | None:
    rests = [rest for sentence in read if (rest := sentence.after(text))]
    tokens = [token for rest in rests for token in rest]
    if not tokens:
        return None
    interval = wilson(_agreement(tokens) * len(rests), len(rests))
    return Cue(text, len(rests), interval.value, interval.low, interval.high, len(tokens) / total)


def summarise(problems: int, read: Sequence[Sentence], cues: tuple[Cue, ...]) -> PairProfile:
    """Put together what was found in the *read* sentences of so many *problems*."""
    total = _count(read)
    relayed = [token for sentence in read for token in _relayed(sentence, cues)]
    return PairProfile(
        problems=problems,
        sentences=len(read),
        tokens=total,
        agreement=_agreement(token for sentence in read for token in sentence.tokens),
        cues=cues,
        share=len(relayed) / total if total else 0.0,
        after=_agreement(relayed),
    )


def _relayed(sentence: Sentence, cues: Sequence[Cue]) -> tuple[Token, ...]:
    """The tokens of *sentence* that would go to the small model: those after the first cue."""
    return max((rest for cue in cues if (rest := sentence.after(cue.text))), key=len, default=())


def _count(read: Sequence[Sentence]) -> int:
    return sum(len(sentence.tokens) for sentence in read)


def _agreement(tokens: Iterable[Token]) -> float:
    ranks = [token.rank for token in tokens]
    return ranks.count(1) / len(ranks) if ranks else 0.0


async def read_reasoning(small: Model, chain: Chain) -> list[Sentence]:
    """Let *small* read the reasoning of *chain* in one go."""
    spans = sentences(chain.text.removesuffix(THINK_END))
    tokens = await small.score(Chain(chain.messages), *spans) if spans else []
    return [Sentence(text, read) for text, read in zip(spans, tokens, strict=True)]


async def profile(
    solver: Solver, problems: Sequence[str], *, least: int = LEAST, on_problem: Callable[[], object] = lambda: None
) -> PairProfile:
    """Let the pair of *solver* solve and read *problems*, several at a time, and find its cues."""
    slots = asyncio.Semaphore(AT_ONCE)

    async def one(problem: str) -> list[Sentence]:
        async with slots:
            budget = solver.settings.budget.budget()
            ends = StepEnds.of(solver.settings.delimiter)
            thinking = solver.policy("large", {}, budget=budget)
            begun = Chain.of(problem, ends, system=solver.settings.system)
            chain, _ = await reason(thinking, begun, spent=budget.spent)
            found = await read_reasoning(solver.small.model(), chain)
        on_problem()
        return found

    read = [sentence for found in await at_once(map(one, problems)) for sentence in found]
    return summarise(len(problems), read, find_cues(read, least=least))


def load_problems(path: Path, count: int) -> list[str]:
    """
    Read up to *count* problems, one for each line: plain text, or a JSON object with its "problem" or "question".

    Raise `ConfigurationError` for a file that has none, or a line that is neither.
    """
    try:
        lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigurationError(f"no problems in {path}: {exc}") from exc
    found = [_problem(path, number, line) for number, line in enumerate(lines[:count], 1)]
    if not found:
        raise ConfigurationError(f"no problems in {path}: the file is empty")
    return found


def _problem(path: Path, number: int, line: str) -> str:
    if not line.lstrip().startswith("{"):
        return line.strip()
    try:
        fields = orjson.loads(line)
        return str(fields["problem"] if "problem" in fields else fields["question"])
    except (orjson.JSONDecodeError, KeyError) as exc:
        raise ConfigurationError(
            f'{path}, problem {number}: a line that begins with a brace has to be a JSON object with "problem"'
        ) from exc


def training_problems(count: int, seed: int) -> list[str]:
    """Problems of the miniature pair's training half: cues that were found on test problems would know them."""
    return [problem.text for problem in islice(generate(seed, "train"), count)]


def table(found: PairProfile) -> Table:
    """One row per cue."""
    made = Table(box=None, padding=(0, 2, 0, 0))
    for column in ("cue", "n", "agreement", "share of tokens"):
        made.add_column(column, justify="left" if column == "cue" else "right", no_wrap=True)
    for cue in found.cues:
        agreement = f"{cue.agreement:.1%} [{cue.low:.1%}, {cue.high:.1%}]"
        made.add_row(json.dumps(cue.text, ensure_ascii=False), str(cue.n), agreement, f"{cue.share:.1%}")
    return made


def caption(found: PairProfile) -> str:
    """What the table is about, in a sentence or two."""
    usual = (
        f"{found.problems} problems, {found.sentences} sentences, {found.tokens} tokens; "
        f"the small model agrees on {found.agreement:.1%} of all tokens."
    )
    if not found.cues:
        return f"{usual} No opening of a sentence is clearly above that: profile more problems, or do not relay."
    return f"{usual} With all cues it writes {found.share:.1%} of them, and agrees on {found.after:.1%} of those."


def snippet(found: PairProfile, about: str) -> str:
    """A settings file that relays after the cues; *about* says what they were found on."""
    comments = "".join(f"# {line}\n" for line in (*about.splitlines(), caption(found)))
    cues = "".join(f"  {json.dumps(cue.text, ensure_ascii=False)},\n" for cue in found.cues)
    return f'{comments}policy = "relay"\n\n[options]\ncues = [\n{cues}]\n'
