"""
What the doctor reports: findings, the measurements of each server and critic, and the JSON of all of it.

Each `Finding` has one of four outcomes: "works", "costs" (it works, but slower, or less exactly), "cannot work", and
"unknown". A report is fine if nothing in it cannot work.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from pydantic import TypeAdapter

from ..chain import Role
from ..endpoints.chat_template import Source
from ..endpoints.probe import Capabilities
from ..stats import Acceptance

Outcome: TypeAlias = Literal["works", "costs", "cannot work", "unknown"]
ORDER: tuple[Outcome, ...] = ("cannot work", "costs", "unknown", "works")
PHRASES: Mapping[Outcome, tuple[str, str]] = {
    "cannot work": ("thing cannot work", "things cannot work"),
    "costs": ("costs speed or accuracy", "cost speed or accuracy"),
    "unknown": ("is unknown", "are unknown"),
}
"""What the summary says of one such finding, and of several."""
Ordering: TypeAlias = Literal["kept", "not seen", "could not tell", "refused"]
"""
Whether a server orders requests by priority. "not seen": it answers in the order of arrival. "could not tell": no queue
formed that would show it. "refused": it rejects a priority.
"""


@dataclass(frozen=True, slots=True)
class Finding:
    """
    One line of the diagnosis: *check* is a stable name of what was checked, *subject* where.

    The *subject* is a role, "pair", "critic", or a replica as "large at URL". The *message* is the cause, and what it
    costs; the *cure* is "" where nothing has to be done, and where the message contains it.
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
    How fast a server writes: the seconds to a *first* token, and *between* two tokens, the middle of several writes.

    *noise* is the range of the writes' seconds between tokens, as a share of the middle one.
    """

    first: float
    between: float
    noise: float = 0.0


@dataclass(frozen=True, slots=True)
class Reading:
    """
    The measured cost of one more verdict after a chain of *chain* tokens.

    *read* counts the prompt tokens that were not in the server's cache, None if the server does not report them.
    *seconds* is the time of the verdict, *first* that of the first verdict about the chain, which reads all of it.
    """

    chain: int
    read: int | None
    seconds: float
    first: float

    def __str__(self) -> str:
        return f"{self.seconds * 1000:.0f} ms (the first one, which reads all: {self.first * 1000:.0f} ms)"


@dataclass(frozen=True, slots=True)
class EndpointReport:
    """
    One endpoint. If it cannot be used, *problem* says why, and nothing else is known. None stands for unknown.

    *context* is in tokens. *faithful*: the chat template's text gives the template's ids. *digits* is the probability
    of a digit as the model's grade of a step. *scoring* is the seconds to score a step after `probe.LONG` cached
    tokens. *acceptance* holds the counters of its own speculative decoding since its start, None without it.
    *thinks_by* is the source of *thinks*; *block* is the mark that opens the thinking block, "" without one. *reading*
    is the cost of a verdict. *failures* are the causes of measurements that failed: "writing", "judging", "scoring",
    "verdicts".
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
    ordering: Ordering | None = None
    failures: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """
    The reports of both endpoints, whether they share their token ids (None: unknown), and the *findings*.

    For an endpoint with replicas, the report is of the first usable one; *others* are the reports of the rest.
    """

    small: EndpointReport
    large: EndpointReport
    same_vocabulary: bool | None
    findings: tuple[Finding, ...]
    others: tuple[EndpointReport, ...] = ()
    name: str = "small with large"

    @property
    def notes(self) -> tuple[str, ...]:
        """The findings as text."""
        return tuple(map(str, self.findings))


@dataclass(frozen=True, slots=True)
class CriticReport:
    """
    A reward model or a verifier. If it cannot be used, *problem* says why.

    *right* and *wrong* are its ratings, from 0 to 1, of a right and of an obviously wrong step or answer; None:
    unknown.
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
    What `stepspec doctor` found. *ok*: nothing that was checked cannot work; *summary* says it in words.

    A nested pair has several *pairs*: each model with the next larger one, which judges it. *critic* is None if there
    is none.
    """

    ok: bool
    summary: str
    pairs: tuple[Diagnosis, ...]
    critic: CriticReport | None = None

    @classmethod
    def of(cls, pairs: Sequence[Diagnosis], critic: CriticReport | None = None) -> Report:
        """Sum up the findings."""
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


_REPORT = TypeAdapter(Report)


def report_schema() -> dict[str, Any]:
    """Return the JSON schema of `report_json`."""
    return _REPORT.json_schema(mode="serialization")


def report_json(report: Report) -> dict[str, Any]:
    """Return *report* as JSON values."""
    values: dict[str, Any] = _REPORT.dump_python(report, mode="json")
    return values
