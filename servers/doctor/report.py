"""
What the doctor reports: findings, the measurements of each server and critic; as JSON, and as
tables for a terminal.

Each `Finding` has one of four outcomes: "works", "costs" (it works, but slower, or less exactly),
"cannot work", and "unknown". A report is fine if nothing in it cannot work.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias

from pydantic import TypeAdapter
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from stepspec.orchestrator.chain import Role
from stepspec.orchestrator.endpoints.capabilities import LONG, Capabilities
from stepspec.orchestrator.endpoints.chat_template import Source
from stepspec.orchestrator.endpoints.metrics import Acceptance

Outcome: TypeAlias = Literal["works", "costs", "cannot work", "unknown"]
ORDER: tuple[Outcome, ...] = ("cannot work", "costs", "unknown", "works")
PHRASES: Mapping[Outcome, tuple[str, str]] = {
    "cannot work": ("thing cannot work", "things cannot work"),
    "costs": ("costs speed or accuracy", "cost speed or accuracy"),
    "unknown": ("is unknown", "are unknown"),
}
"""What the summary says of one such finding, and of several."""
COLOURS: Mapping[Outcome, str] = {
    "works": "green",
    "costs": "yellow",
    "cannot work": "red",
    "unknown": "magenta",
}


class Lack(NamedTuple):
    """What it means that a capability is missing: the *outcome*, the *cost*, and the *cure*."""

    outcome: Outcome
    cost: str
    cure: str


LACKS: Mapping[str, Lack] = {
    "token_ids": Lack(
        "cannot work", "no step can be written", "serve the model with vLLM 0.32 or later"
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
    """
    One line of the diagnosis: *check* is a stable name of what was checked, *subject* where.

    The *subject* is a role, "pair", "critic", or a replica as "large at URL". The *message* is the
    cause, and what it costs; the *cure* is "" where nothing has to be done, and where the message
    contains it.
    """

    check: str
    subject: str
    outcome: Outcome
    message: str
    cure: str = ""

    def __str__(self) -> str:
        return f"{self.subject}: {self.message}{f': {self.cure}' if self.cure else ''}"


@dataclass(frozen=True, slots=True)
class Pace:
    """
    How fast a server writes: the seconds to a *first* token, and *between* two tokens, the middle
    of several writes.

    *noise* is the range of the writes' seconds between tokens, as a share of the middle one.
    """

    first: float
    between: float
    noise: float = 0.0


@dataclass(frozen=True, slots=True)
class Reading:
    """
    The measured cost of one more verdict after a chain of *chain* tokens.

    *read* counts the prompt tokens that were not in the server's cache, None if the server does not
    report them. *seconds* is the time of the verdict, *first* that of the first verdict about the
    chain, which reads all of it.
    """

    chain: int
    read: int | None
    seconds: float
    first: float

    def __str__(self) -> str:
        return (
            f"{self.seconds * 1000:.0f} ms (the first one, which reads all:"
            f" {self.first * 1000:.0f} ms)"
        )


@dataclass(frozen=True, slots=True)
class EndpointReport:
    """
    One endpoint. If it cannot be used, *problem* says why, and nothing else is known. None stands
    for unknown.

    *context* is in tokens. *faithful*: the chat template's text gives the template's ids. *digits*
    is the probability of a digit as the model's grade of a step. *scoring* is the seconds to score
    a step after `probe.LONG` cached tokens. *acceptance* holds the counters of its own speculative
    decoding since its start, None without it. *thinks_by* is the source of *thinks*; *block* is the
    mark that opens the thinking block, "" without one. *reading* is the cost of a verdict.
    *failures* are why measurements failed: "writing", "judging", "scoring", "verdicts".
    """

    role: Role
    url: str
    problem: str = ""
    model: str | None = None
    context: int | None = None
    vocabulary: str | None = None
    thinks: bool | None = None
    faithful: bool | None = None
    digits: float | None = None
    pace: Pace | None = None
    can: Capabilities | None = None
    scoring: float | None = None
    acceptance: Acceptance | None = None
    thinks_by: Source = "unknown"
    block: str = ""
    reading: Reading | None = None
    failures: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """
    The reports of both endpoints, whether they share their token ids (None: unknown), and the
    *findings*.

    For an endpoint with replicas, the report is of the first usable one; *others* are the reports
    of the rest.
    """

    small: EndpointReport
    large: EndpointReport
    same_vocabulary: bool | None
    findings: tuple[Finding, ...]
    others: tuple[EndpointReport, ...] = ()
    name: str = "small with large"


@dataclass(frozen=True, slots=True)
class CriticReport:
    """
    A reward model or a verifier. If it cannot be used, *problem* says why.

    *right* and *wrong* are its ratings, 0 to 1, of a right and an obviously wrong step or answer;
    None: unknown.
    """

    url: str
    problem: str = ""
    model: str | None = None
    right: float | None = None
    wrong: float | None = None
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True, slots=True)
class Report:
    """
    What `stepspec doctor` found. *ok*: nothing that was checked cannot work; *summary* says it in
    words.

    A nested pair has several *pairs*: each model with the next larger one, which judges it.
    *critic* may be None.
    """

    ok: bool
    summary: str
    pairs: tuple[Diagnosis, ...]
    critic: CriticReport | None = None

    @classmethod
    def of(cls, pairs: Sequence[Diagnosis], critic: CriticReport | None = None) -> Report:
        findings = [finding for pair in pairs for finding in pair.findings]
        every = (*findings, *(critic.findings if critic else ()))
        counts: Counter[Outcome] = Counter(finding.outcome for finding in every)
        return cls(not counts["cannot work"], _summary(counts), tuple(pairs), critic)


def _summary(counts: Mapping[Outcome, int]) -> str:
    words = [
        f"{count} {PHRASES[outcome][count > 1]}"
        for outcome in ORDER
        if (count := counts.get(outcome, 0)) and outcome in PHRASES
    ]
    if counts.get("cannot work"):
        return f"It cannot work like this: {', '.join(words)}."
    return f"It works: {', '.join(words)}." if words else "It works. Nothing is missing."


def report_json(report: Report) -> dict[str, Any]:
    values: dict[str, Any] = TypeAdapter(Report).dump_python(report, mode="json")
    return values


ROWS = (
    *(
        "server",
        "model",
        "vLLM",
        "context",
        "thinks",
        "speculative decoding",
        "drafted tokens accepted",
    ),
    *(name.replace("_", " ") for name in LACKS),
    *("probability of digits", "first token", "each further token"),
    *(
        "a verdict reads",
        "a verdict takes",
        "suffix scoring",
        f"scoring a step after {LONG} tokens",
    ),
)


def render(report: Report) -> Iterator[RenderableType]:
    """
    Yield the parts of *report* for a terminal, tables and lines; the last line is its summary.
    """
    for pair in report.pairs:
        if len(report.pairs) > 1:
            yield Text(pair.name, "bold")
        yield _table(pair)
        yield from _lines(pair.findings)
    if report.critic:
        yield _critic_table(report.critic)
        yield from _lines(report.critic.findings)
    yield Text(report.summary, "bold green" if report.ok else "bold red")


def _lines(findings: Sequence[Finding]) -> Iterator[Text]:
    """Yield a line for each finding, what cannot work first, between empty lines."""
    yield Text()
    for finding in sorted(findings, key=lambda finding: ORDER.index(finding.outcome)):
        yield Text.assemble((f"{finding.outcome}  ", COLOURS[finding.outcome]), str(finding))
    if findings:
        yield Text()


def _table(pair: Diagnosis) -> Table:
    reports = (pair.small, pair.large, *pair.others)
    table = _columns(*(report.role for report in reports))
    rows = [*zip(ROWS, *map(_cells, reports), strict=True)]
    unusable = all(report.problem for report in reports)
    for name, *cells in rows[:2] if unusable else rows:
        table.add_row(name, *cells)
    if not unusable:
        table.add_row("one vocabulary", _mark(pair.same_vocabulary, missing="costs"), "")
    return table


def _columns(*names: str) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("", *names):
        table.add_column(name, overflow="fold")
    return table


def _critic_table(critic: CriticReport) -> Table:
    table = _columns("critic")
    if critic.url:
        table.add_row("server", critic.url)
    table.add_row(
        "model", Text("cannot be used", "red") if critic.problem else critic.model or _mark(None)
    )
    table.add_row(
        "rates a right one", _mark(None) if critic.right is None else f"{critic.right:.2f}"
    )
    table.add_row(
        "rates a wrong one", _mark(None) if critic.wrong is None else f"{critic.wrong:.2f}"
    )
    return table


def _cells(report: EndpointReport) -> list[RenderableType]:
    can = report.can
    unknown = _mark(None)
    if can is None:
        return [
            report.url,
            Text("cannot be used", COLOURS["cannot work"]),
            *[unknown] * (len(ROWS) - 2),
        ]
    return [
        report.url,
        report.model or unknown,
        can.version or unknown,
        unknown if report.context is None else f"{report.context} tokens",
        _mark(report.thinks, missing="works").append(f" ({report.thinks_by})"),
        _mark(can.speculation, missing="works"),
        str(report.acceptance or ("none" if can.speculation is False else unknown)),
        *(_mark(getattr(can, name), missing=lack.outcome) for name, lack in LACKS.items()),
        unknown if report.digits is None else f"{report.digits:.1%}",
        milliseconds(report.pace.first if report.pace else None),
        milliseconds(report.pace.between if report.pace else None, digits=1),
        tokens_read(report.reading),
        milliseconds(report.reading.seconds if report.reading else None),
        {True: Text("on", "green"), False: Text("refused", "red"), None: Text("off", "yellow")}[
            can.suffix_scoring
        ],
        milliseconds(report.scoring),
    ]


def _mark(value: bool | None, *, missing: Outcome = "unknown") -> Text:
    """Return yes, no or unknown, in the colour of its outcome; *missing* is the outcome of a no."""
    if value is None:
        return Text("unknown", COLOURS["unknown"])
    return Text("yes", COLOURS["works"]) if value else Text("no", COLOURS[missing])


def milliseconds(seconds: float | None, digits: int = 0) -> str:
    return "unknown" if seconds is None else f"{seconds * 1000:.{digits}f} ms"


def tokens_read(reading: Reading | None) -> str:
    if reading is None or reading.read is None:
        return "unknown"
    return f"{reading.read} of {reading.chain} tokens"
