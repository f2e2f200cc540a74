"""
What the doctor reports: findings, and the measurements of each server and critic.

A report can be written as JSON and as tables for a terminal. Each `Finding` has one of four
outcomes: "works", "costs" (it works, but slower, or less exactly), "cannot work", and "unknown".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias

from rich.console import RenderableType
from rich.table import Column, Table
from rich.text import Text

from stepspec.orchestrator.chain import Role
from stepspec.orchestrator.endpoints.capabilities import LONG_PROMPT_TOKENS, Capabilities
from stepspec.orchestrator.endpoints.chat_template import Source
from stepspec.orchestrator.endpoints.metrics import Acceptance

FindingOutcome: TypeAlias = Literal["works", "costs", "cannot work", "unknown"]
PHRASES: Mapping[FindingOutcome, tuple[str, str]] = {
    "cannot work": ("thing cannot work", "things cannot work"),
    "costs": ("costs speed or accuracy", "cost speed or accuracy"),
    "unknown": ("is unknown", "are unknown"),
}
"""The words of the summary for one finding with an outcome, and for several."""
COLOURS: Mapping[FindingOutcome, str] = {
    "cannot work": "red",
    "costs": "yellow",
    "unknown": "magenta",
    "works": "green",
}
"""The colours of the outcomes, in the order in which findings are printed."""


class Lack(NamedTuple):
    """What it means that a capability is missing."""

    outcome: FindingOutcome
    """Whether anything works without it."""
    cost: str
    """What is slower, or does not work."""
    cure: str
    """What to do."""


LACKS: Mapping[str, Lack] = {
    "token_ids": Lack(
        "cannot work",
        "no step can be written",
        "serve the model with vLLM 0.32 or later",
    ),
    "chosen_logprobs": Lack(
        "costs",
        "judges read the 20 likeliest tokens only, so rare grades count as impossible",
        "update vLLM, or start it without --speculative-config: its V1 runner cannot do it while it"
        " speculates",
    ),
    "prompt_logprobs": Lack(
        "costs",
        "policies that score drafts (BiLD, reading, reflective) cannot use it",
        "choose a policy that scores nothing (`stepspec policies` lists what each needs), or update"
        " vLLM",
    ),
    "prefix_cache": Lack(
        "costs",
        "every verdict reads the whole chain again",
        "start vLLM with --enable-prefix-caching",
    ),
    "cached_tokens": Lack(
        "costs",
        "the ledger counts cached prompt tokens as read",
        "start vLLM with --enable-prompt-tokens-details",
    ),
    "metrics": Lack(
        "costs",
        "the server's queue and its cache hits stay unknown",
        "let the proxy forward /metrics, and start vLLM without --disable-log-stats",
    ),
}
"""What each capability means where it is missing, in the order of the table."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the diagnosis."""

    outcome: FindingOutcome
    """Whether it works, costs, or cannot work."""
    check: str
    """A stable name of what was checked."""
    message: str
    """What was found, and what it costs."""
    cure: str = ""
    """What to do; "" if there is nothing to do, or the message says it."""
    subject: str = ""
    """Where: a role, "pair", "critic", or a replica as "large at URL"."""

    def __str__(self) -> str:
        return ": ".join(filter(None, (self.subject, self.message, self.cure)))


@dataclass(frozen=True, slots=True)
class WritePace:
    """How fast a server writes: the median of several writes."""

    first: float
    """Seconds to the first token."""
    between: float
    """Seconds between two tokens."""
    noise: float = 0.0
    """The range of the seconds between tokens over the writes, as a share of the median."""


@dataclass(frozen=True, slots=True)
class Reading:
    """The measured cost of one more verdict about a long chain."""

    chain: int
    """Tokens of the chain."""
    read: int | None
    """Prompt tokens that were not in the server's cache; None if the server does not tell."""
    seconds: float
    """Seconds of the verdict."""
    first: float
    """Seconds of the first verdict about the chain, which reads all of it."""

    def __str__(self) -> str:
        first = milliseconds(self.first)
        return f"{milliseconds(self.seconds)} (the first one, which reads all: {first})"


@dataclass(frozen=True, slots=True)
class EndpointReport:
    """What is known of one endpoint. None stands for unknown."""

    role: Role
    """The role of the model."""
    url: str
    """The base URL."""
    problem: str = ""
    """Why the endpoint cannot be used; then nothing else is known. "": it can be used."""
    model: str | None = None
    """The name by which it serves its model."""
    context: int | None = None
    """The length of the context, in tokens."""
    vocabulary: str | None = None
    """A fingerprint of its token ids."""
    thinks: bool | None = None
    """Whether the model thinks in a block before it answers."""
    faithful: bool | None = None
    """Whether the encoded text of the chat template has the template's ids."""
    digits: float | None = None
    """The probability that the model's grade of a step is a digit."""
    pace: WritePace | None = None
    """How fast it writes."""
    can: Capabilities | None = None
    """Its capabilities."""
    scoring: float | None = None
    """Seconds to score a step after `LONG_PROMPT_TOKENS` cached tokens."""
    acceptance: Acceptance | None = None
    """Counters of its own speculative decoding since its start; None without it."""
    thinks_by: Source = "unknown"
    """How it is known whether the model thinks."""
    block: str = ""
    """The mark that opens the thinking block; "" without one."""
    reading: Reading | None = None
    """The cost of a verdict."""
    failures: Mapping[str, str] = field(default_factory=dict[str, str])
    """Why a measurement failed, by name: "writing", "judging", "scoring", "verdicts"."""


@dataclass(frozen=True, slots=True)
class PairReport:
    """What is known of a pair."""

    small: EndpointReport
    """The small endpoint, or the first of its replicas that can be used."""
    large: EndpointReport
    """The large endpoint, or the first of its replicas that can be used."""
    same_vocabulary: bool | None
    """Whether both have the same token ids; None: unknown."""
    findings: tuple[Finding, ...]
    """What was found at the servers and between both models."""
    others: tuple[EndpointReport, ...] = ()
    """The other replicas."""


@dataclass(frozen=True, slots=True)
class CriticReport:
    """What is known of a reward model or a verifier."""

    url: str
    """The base URL; "" for a function."""
    problem: str = ""
    """Why it cannot be used; "": it can be used."""
    model: str | None = None
    """Its name; None: unknown."""
    right: float | None = None
    """Its rating, 0 to 1, of a right step or answer; None: unknown."""
    wrong: float | None = None
    """Its rating, 0 to 1, of an obviously wrong step or answer; None: unknown."""
    findings: tuple[Finding, ...] = ()
    """What was found: at most one finding."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What `stepspec doctor` found."""

    ok: bool
    """Whether everything that was checked can work."""
    summary: str
    """How many findings there are of each kind, in words."""
    pair: PairReport
    """Both models."""
    critic: CriticReport | None = None
    """The reward model or verifier; None without one."""

    @classmethod
    def of(cls, pair: PairReport, critic: CriticReport | None = None) -> Diagnosis:
        findings = [*pair.findings, *(critic.findings if critic else ())]
        counts: Counter[FindingOutcome] = Counter(finding.outcome for finding in findings)
        return cls(
            ok=not counts["cannot work"],
            summary=_summary(counts),
            pair=pair,
            critic=critic,
        )


def _summary(counts: Counter[FindingOutcome]) -> str:
    phrases = [
        f"{counts[outcome]} {one if counts[outcome] == 1 else several}"
        for outcome, (one, several) in PHRASES.items()
        if counts[outcome]
    ]
    if not phrases:
        return "It works. Nothing is missing."
    works = "cannot work like this" if counts["cannot work"] else "works"
    return f"It {works}: {', '.join(phrases)}."


def report_json(report: Diagnosis) -> dict[str, Any]:
    return asdict(report)


def render(report: Diagnosis) -> Iterator[RenderableType]:
    """Yield the tables and lines of *report* for a terminal. The last line is its summary."""
    yield _table(report.pair)
    yield from _lines(report.pair.findings)
    if report.critic:
        yield _critic_table(report.critic)
        yield from _lines(report.critic.findings)
    yield Text(report.summary, "bold green" if report.ok else "bold red")


def _lines(findings: Sequence[Finding]) -> Iterator[Text]:
    """Yield a line for each finding between empty lines, with what cannot work first."""
    yield Text()
    for outcome, colour in COLOURS.items():
        for finding in findings:
            if finding.outcome == outcome:
                yield Text.assemble((f"{outcome}  ", colour), str(finding))
    if findings:
        yield Text()


def _table(pair: PairReport) -> Table:
    reports = (pair.small, pair.large, *pair.others)
    table = _columns(*(report.role for report in reports))
    cells = [table_cells(report) for report in reports]
    for name in max(cells, key=len):
        table.add_row(name, *(column.get(name, _mark(None)) for column in cells))
    if any(report.can for report in reports):
        table.add_row("one vocabulary", _mark(pair.same_vocabulary, missing="costs"))
    return table


def _columns(*names: str) -> Table:
    columns = [Column(name, overflow="fold") for name in ("", *names)]
    return Table(*columns, box=None, pad_edge=False)


def _critic_table(critic: CriticReport) -> Table:
    table = _columns("critic")
    table.add_row("server", critic.url or "a function")
    table.add_row("model", UNUSABLE_MARK if critic.problem else critic.model or _mark(None))
    table.add_row("rates a right one", _figure(critic.right, "{:.2f}"))
    table.add_row("rates a wrong one", _figure(critic.wrong, "{:.2f}"))
    return table


def table_cells(report: EndpointReport) -> dict[str, RenderableType]:
    """Return the cells of a server by the names of their rows."""
    can = report.can
    unknown = _mark(None)
    if can is None:
        return {"server": report.url, "model": UNUSABLE_MARK}
    pace = report.pace
    reading = report.reading
    return {
        "server": report.url,
        "model": report.model or unknown,
        "vLLM": can.version or unknown,
        "context": _figure(report.context, "{} tokens"),
        "thinks": _mark(report.thinks, missing="works").append(f" ({report.thinks_by})"),
        "speculative decoding": _mark(can.speculation, missing="works"),
        "drafted tokens accepted": str(
            report.acceptance or ("none" if can.speculation is False else unknown),
        ),
        **{
            name.replace("_", " "): _mark(getattr(can, name), missing=lack.outcome)
            for name, lack in LACKS.items()
        },
        "probability of digits": _figure(report.digits, "{:.1%}"),
        "first token": milliseconds(pace.first if pace else None),
        "each further token": milliseconds(pace.between if pace else None, "{:.1f} ms"),
        "a verdict reads": tokens_read(reading),
        "a verdict takes": milliseconds(reading.seconds if reading else None),
        "suffix scoring": SUFFIX_SCORING_WORDS[can.suffix_scoring],
        f"scoring a step after {LONG_PROMPT_TOKENS} tokens": milliseconds(report.scoring),
    }


UNUSABLE_MARK = Text("cannot be used", COLOURS["cannot work"])
SUFFIX_SCORING_WORDS: Mapping[bool | None, str] = {True: "on", False: "refused", None: "off"}


def _mark(value: bool | None, *, missing: FindingOutcome = "unknown") -> Text:
    """Return yes, no or unknown in the colour of its outcome. *missing* is the outcome of a no."""
    if value is None:
        return Text("unknown", COLOURS["unknown"])
    if value:
        return Text("yes", COLOURS["works"])
    return Text("no", COLOURS[missing])


def _figure(value: float | None, layout: str) -> str:
    return "unknown" if value is None else layout.format(value)


def milliseconds(seconds: float | None, layout: str = "{:.0f} ms") -> str:
    return _figure(seconds and seconds * 1000, layout)


def tokens_read(reading: Reading | None) -> str:
    if reading is None or reading.read is None:
        return "unknown"
    return f"{reading.read} of {reading.chain} tokens"
