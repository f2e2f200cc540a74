"""
What the doctor reports: findings, and what is known of each server and critic.

A report can be written as JSON and as lines for a terminal. Each `Finding` has one of four
outcomes: "works", "costs" (it works, but slower, or less exactly), "cannot work", and "unknown".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias

from rich.text import Text

from stepspec.orchestrator.chain import Role
from stepspec.orchestrator.endpoints.capabilities import Capabilities
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
"""What each capability means where it is missing, in the order of the findings."""


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
    can: Capabilities | None = None
    """Its capabilities."""
    acceptance: Acceptance | None = None
    """Counters of its own speculative decoding since its start; None without it."""
    thinks_by: Source = "unknown"
    """How it is known whether the model thinks."""
    block: str = ""
    """The mark that opens the thinking block; "" without one."""
    failures: Mapping[str, str] = field(default_factory=dict[str, str])
    """Why a request failed, by name: "writing" or "judging"."""


@dataclass(frozen=True, slots=True)
class CriticReport:
    """What is known of a reward model."""

    url: str
    """The base URL."""
    problem: str = ""
    """Why it cannot be used; "": it can be used."""
    model: str | None = None
    """Its name; None: unknown."""
    right: float | None = None
    """Its rating, 0 to 1, of a right step; None: unknown."""
    wrong: float | None = None
    """Its rating, 0 to 1, of an obviously wrong step; None: unknown."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What `stepspec doctor` found."""

    ok: bool
    """Whether everything that was checked can work."""
    summary: str
    """How many findings there are of each kind, in words."""
    small: EndpointReport
    """The small endpoint, or the first of its replicas that can be used."""
    large: EndpointReport
    """The large endpoint, or the first of its replicas that can be used."""
    others: tuple[EndpointReport, ...]
    """The other replicas."""
    same_vocabulary: bool | None
    """Whether both models have the same token ids; None: unknown."""
    critic: CriticReport | None
    """The reward model; None without one."""
    findings: tuple[Finding, ...]
    """What was found at the servers and between both models."""


def summary(counts: Counter[FindingOutcome]) -> str:
    """Say how many findings there are of each outcome."""
    phrases = [
        f"{counts[outcome]} {one if counts[outcome] == 1 else several}"
        for outcome, (one, several) in PHRASES.items()
        if counts[outcome]
    ]
    if not phrases:
        return "It works. Nothing is missing."
    works = "cannot work like this" if counts["cannot work"] else "works"
    return f"It {works}: {', '.join(phrases)}."


def render(report: Diagnosis) -> Iterator[Text]:
    """Yield the lines of *report* for a terminal. The last line is its summary."""
    for server in (report.small, report.large, *report.others):
        yield Text(_server_line(server))
    if report.critic:
        yield Text(_critic_line(report.critic))
    yield from _lines(report.findings)
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


def _server_line(report: EndpointReport) -> str:
    """Describe a server in one line. The findings say what it lacks."""
    can = report.can
    if can is None:
        return f"{report.role}  {report.url}: cannot be used"
    words = [f"{report.role}  {report.url}: {report.model}"]
    if can.version:
        words.append(f"vLLM {can.version}")
    words.append(f"context of {report.context} tokens")
    words.append(f"{'thinks' if report.thinks else 'does not think'} ({report.thinks_by})")
    if report.digits is not None:
        words.append(f"{report.digits:.1%} of a grade's probability on digits")
    if report.acceptance:
        words.append(f"drafted tokens accepted: {report.acceptance}")
    return ", ".join(words)


def _critic_line(critic: CriticReport) -> str:
    server = f"critic  {critic.url}"
    if critic.right is None or critic.wrong is None:
        return f"{server}: cannot be used"
    rates = f"rates a right one {critic.right:.2f}, a wrong one {critic.wrong:.2f}"
    return f"{server}: {critic.model}, {rates}"
