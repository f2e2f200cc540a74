"""
Diagnose a pair of endpoints and a critic: what each can do, what does not work, and what costs.

Each `Finding` has one of four outcomes: "works", "costs" (it works, but slower, or less exactly), "cannot work", and
"unknown". A report is fine if nothing in it cannot work. `examine` returns a `Report`, which `report_schema` describes.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite
from random import randrange
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar

from pydantic import TypeAdapter
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from ..chain import Chain, Role, Step
from ..errors import EndpointError, EndpointUnreachable, StepspecError
from ..events import Called, Event, Fallback
from ..stats import Acceptance
from ..verifiers import Candidate, ConnectedVerifier
from ..verifiers.verifier import AnyVerifier
from .chat_template import Source, disagreement
from .metrics import CHECKPOINTS, FINE, MATCH_UNIT, RETENTION, CacheConfig
from .probe import LONG, RETRIES, Capabilities, Ordering, ordering
from .reward_model import RewardModelEndpoint
from .settings import Address, CriticEndpoint, Endpoint
from .tokenizer import PROBE
from .vllm import VllmEndpoint

T = TypeVar("T")
A = TypeVar("A", bound=Address)

Outcome: TypeAlias = Literal["works", "costs", "cannot work", "unknown"]
ORDER: tuple[Outcome, ...] = ("cannot work", "costs", "unknown", "works")
PHRASES: Mapping[Outcome, tuple[str, str]] = {
    "cannot work": ("thing cannot work", "things cannot work"),
    "costs": ("costs speed or accuracy", "cost speed or accuracy"),
    "unknown": ("is unknown", "are unknown"),
}
"""What the summary says of one such finding, and of several."""
COLOURS: Mapping[Outcome, str] = {"works": "green", "costs": "yellow", "cannot work": "red", "unknown": "magenta"}

QUESTION = "Grade the last step from 0, wrong, to 9, right. Reply with one digit."
OPENING = "The grade is "
PROBLEM = Chain.of("What is 2 + 2?")
STEP = Step("2 + 2 is 4.\n\n", "small")
WRONG = Step("2 + 2 is 7, as 7 + 7 is 1.\n\n", "small")
SPEED = 32  # tokens to time the writing by
VERDICTS = 3  # asked after a growing chain; the last one is what any further one costs
PATIENCE = 120.0  # seconds for one request, if the settings allow more
LEAST_CONTEXT = 256  # tokens: a short problem, a judge's question and one step
SHORT_CONTEXT = 2048  # tokens; chains of thought are longer


class Lack(NamedTuple):
    """What it means that a capability is missing: the *outcome*, the *cost*, and the *cure*."""

    outcome: Outcome
    cost: str
    cure: str


LACKS: Mapping[str, Lack] = {
    "token_ids": Lack("cannot work", "no step can be written", "serve the model with vLLM 0.10.2 or later"),
    "stop_included": Lack("cannot work", "steps lose their delimiters", "serve the model with vLLM"),
    "forced": Lack("costs", "judges may answer with other words", "serve the model with vLLM 0.10.2 or later"),
    "chosen_logprobs": Lack(
        "costs",
        "judges read the 20 likeliest tokens only, so rare grades count as impossible",
        "update vLLM, or start it without --speculative-config: its V1 runner cannot do it while it speculates",
    ),
    "prompt_logprobs": Lack(
        "costs",
        "policies that score drafts (BiLD, reading, reflective) cannot use it",
        "choose a policy that scores nothing (`stepspec policies` lists what each needs), or update vLLM",
    ),
    "prefix_cache": Lack(
        "costs", "every verdict reads the whole chain again", "start vLLM with --enable-prefix-caching"
    ),
    "cached_tokens": Lack(
        "costs", "the ledger counts cached prompt tokens as read", "start vLLM with --enable-prompt-tokens-details"
    ),
    "metrics": Lack(
        "costs",
        "the server's queue and its cache hits stay unknown",
        "let the proxy forward /metrics, and start vLLM without --disable-log-stats",
    ),
}
"""What each capability means where it is missing, in the order of the table."""

UNKNOWN: Mapping[str, str] = {
    "version": "the server does not report its version: let a proxy forward /version",
    "speculation": "without /metrics it is not known whether the server drafts tokens: let a proxy forward /metrics",
    "prefix_cache": "neither replies nor /metrics tell what is read from the cache: start vLLM with "
    "--enable-prompt-tokens-details, or let a proxy forward /metrics",
}
"""Why each of these may be unknown, and what helps; the others are unknown if their request failed."""

AGAIN = "look into the server's log, and run `stepspec doctor` again"
ROWS = (
    *("server", "model", "vLLM", "context", "thinks", "speculative decoding", "drafted tokens accepted"),
    *(name.replace("_", " ") for name in LACKS),
    *("probability of digits", "first token", "each further token"),
    *("a verdict reads", "a verdict takes", "order by priority"),
    *("suffix scoring", f"scoring a step after {LONG} tokens"),
)
OTHER = "serve a smaller model for small"
CURE = "start vLLM with --enable-scale-out --enable-prompt-tokens-details and set suffix_scoring = true"


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
    of a digit as the model's grade of a step. *first* and *between* are the seconds to a first token and from token to
    token; *scoring* the seconds to score a step after `LONG` cached tokens. *acceptance* holds the counters of its own
    speculative decoding since its start, None without it. *thinks_by* is the source of *thinks*; *block* is the mark
    that opens the thinking block, "" without one. *reading* is the cost of a verdict. *ordering* is whether the server
    orders requests by priority. *failures* are the causes of measurements that failed: "writing", "judging", "scoring",
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
    first: float | None = None
    between: float | None = None
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


# Examining


async def examine(
    pairs: Mapping[str, tuple[Endpoint, Endpoint]],
    critic: CriticEndpoint | AnyVerifier | None = None,
    *,
    question: str = QUESTION,
    opening: str = OPENING,
) -> Report:
    """Examine *pairs* of a small and a large endpoint by name, one after the other, and the *critic*."""
    diagnoses = [
        await diagnose(small, large, question=question, opening=opening, name=name)
        for name, (small, large) in pairs.items()
    ]
    if critic is None:
        return Report.of(diagnoses)
    if isinstance(critic, CriticEndpoint):
        return Report.of(diagnoses, await diagnose_critic(critic))
    return Report.of(diagnoses, await diagnose_verifier(critic))


async def diagnose(
    small: Endpoint,
    large: Endpoint,
    *,
    question: str = QUESTION,
    opening: str = OPENING,
    name: str = "small with large",
) -> Diagnosis:
    """
    Examine all servers of both endpoints at once. A server that cannot be used is reported, not raised.

    *name* consists of the tables of both models in the settings, as those of `neighbours` do.
    """
    tables = dict(zip(("small", "large"), name.split(" with "), strict=True))
    servers = [server for endpoint in (small, large) for server in endpoint.each]
    reports = await asyncio.gather(
        *(_examine(_hasty(server), tables[server.role], question, opening) for server in servers)
    )
    first = [
        min((report for report in reports if report.role == endpoint.role), key=lambda report: bool(report.problem))
        for endpoint in (small, large)
    ]
    others = (report for report in reports if not any(report is other for other in first))
    return replace(conclude(*first, *others), name=name)


async def diagnose_critic(settings: CriticEndpoint) -> CriticReport:
    """Have the reward model rate a right and a wrong step. One that cannot be used is reported, not raised."""
    endpoint = RewardModelEndpoint(_hasty(settings))
    try:
        async with endpoint:
            critic = endpoint.critic()
            right, wrong = [(await critic.rate(PROBLEM.extend(step))).score for step in (STEP, WRONG)]
    except StepspecError as exc:
        return conclude_critic(CriticReport(settings.url, _cause(exc), endpoint.name or None))
    return conclude_critic(CriticReport(settings.url, "", endpoint.name, right, wrong))


async def diagnose_verifier(settings: AnyVerifier) -> CriticReport:
    """Have the verifier rate a right and a wrong step or answer. One that cannot be used is reported, not raised."""
    where = getattr(settings, "url", "")
    steps = (STEP, WRONG)
    rated = (
        [Candidate.step(PROBLEM.extend(step)) for step in steps]
        if settings.judges == "step"
        else [Candidate.final(PROBLEM, step.text.strip()) for step in steps]
    )
    try:
        async with ConnectedVerifier(settings) as verifier:
            right, wrong = [(await verifier.rate(each)).score for each in rated]
    except StepspecError as exc:
        return conclude_verifier(CriticReport(where, _cause(exc), settings.name), settings.fallback)
    return conclude_verifier(CriticReport(where, "", settings.name, right, wrong), settings.fallback)


def _hasty(settings: A) -> A:
    """Return *settings* without retries, and with shorter deadlines: a report need not wait for a server."""
    deadlines = settings.deadlines.model_copy(update={"total": min(settings.deadlines.total, PATIENCE)})
    return settings.model_copy(update={"retries": 0, "deadlines": deadlines})


def _cause(exc: StepspecError) -> str:
    return exc.cause if isinstance(exc, EndpointError) else str(exc)


async def _examine(settings: Endpoint, table: str, question: str, opening: str) -> EndpointReport:
    entered = False
    try:
        async with VllmEndpoint(settings, table) as endpoint:
            entered = True
            # It answers: a connection that is reset once, as vLLM does after some requests, is no finding.
            endpoint.connection.endpoint = settings.model_copy(update={"retries": RETRIES})
            return await _measure(endpoint, question, opening)
    except StepspecError as exc:
        gone = entered and isinstance(exc, EndpointUnreachable)
        during = "it stopped answering while it was examined: " if gone else ""
        return EndpointReport(settings.role, settings.url, problem=f"{during}{_cause(exc)}")


async def _measure(endpoint: VllmEndpoint, question: str, opening: str) -> EndpointReport:
    failures: dict[str, str] = {}
    settings, grader = endpoint.settings, endpoint.model()

    async def attempt(check: str, measurement: Awaitable[T]) -> T | None:
        try:
            return await measurement
        except StepspecError as exc:
            failures[check] = _cause(exc)
            return None

    can = await endpoint.capabilities()
    asking = grader.ask(PROBLEM.extend(STEP), question, "0123456789", opening=opening)
    grades = await attempt("judging", asking)
    speed = await attempt("writing", _speed(endpoint))  # when the server is warm
    scores = can.prompt_logprobs and can.suffix_scoring is not False
    return EndpointReport(
        role=settings.role,
        url=settings.url,
        model=endpoint.name,
        context=endpoint.room,
        vocabulary=endpoint.vocabulary,
        thinks=endpoint.template.thinks,
        faithful=endpoint.encoder.faithful,
        digits=None if grades is None else sum(grades.values()),
        first=speed[0] if speed else None,
        between=speed[1] if speed else None,
        can=can,
        scoring=await attempt("scoring", _scoring(endpoint)) if scores else None,
        acceptance=await endpoint.acceptance(),
        thinks_by=endpoint.template.source,
        block=endpoint.template.block,
        reading=await attempt("verdicts", _reading(endpoint, can, question, opening)) if grades else None,
        ordering=await _ordering(endpoint),
        failures=failures,
    )


async def _ordering(endpoint: VllmEndpoint) -> Ordering | None:
    tokens = await endpoint.encoder.encode(PROBE)
    return await ordering(endpoint.connection, endpoint.name, tokens, endpoint.room)


async def _speed(endpoint: VllmEndpoint) -> tuple[float, float]:
    """Write a few tokens; return the seconds to the first and between the others."""
    events: list[Event] = []
    await endpoint.model(observe=events.append).write(PROBLEM, stop=(), limit=SPEED)
    called = next(event for event in events if isinstance(event, Called))
    first = called.first or 0.0
    return first, (called.seconds - first) / max(1, called.written - 1)


async def _reading(endpoint: VllmEndpoint, can: Capabilities, question: str, opening: str) -> Reading:
    """Measure verdicts on a chain that grows step by step, longer than one and a half blocks of the prefix cache."""
    events: list[Event] = []
    model = endpoint.model(observe=events.append)
    step = len(await endpoint.encoder.encode(STEP.text))
    block = can.cache.block if can.cache and can.cache.block else 0
    length = min(max(LONG, block * 3 // 2), endpoint.room // 2)
    begun = replace(STEP, text=f"{randrange(10**9)} is a number.\n\n" + STEP.text * max(1, length // step))
    chain = PROBLEM.extend(begun)
    for _ in range(VERDICTS):
        chain = chain.extend(STEP)
        await model.ask(chain, question, "0123456789", opening=opening)
    verdicts = [event for event in events if isinstance(event, Called) and event.fate == "done"]
    first, last = verdicts[0], verdicts[-1]
    read = last.prompt - last.cached if can.cached_tokens else None
    return Reading(len(await endpoint.encoder.chain(chain)), read, last.seconds, first.seconds)


async def _scoring(endpoint: VllmEndpoint) -> float:
    """Score a new step after a cached chain; return the seconds."""
    events: list[Event] = []
    model = endpoint.model(observe=events.append)
    step = len(await endpoint.encoder.encode(STEP.text))
    chain = PROBLEM.extend(replace(STEP, text=STEP.text * max(1, min(LONG, endpoint.room // 2) // step)))
    await model.score(chain, STEP.text)
    events.clear()
    await model.score(chain, f"{randrange(10**9)} is a number.\n\n")
    return sum(event.seconds for event in events if isinstance(event, Called))


# Findings


def conclude(small: EndpointReport, large: EndpointReport, *others: EndpointReport) -> Diagnosis:
    """Make the diagnosis from the reports of both endpoints and of the *others*, their replicas."""
    known = small.vocabulary is not None and large.vocabulary is not None
    same = small.vocabulary == large.vocabulary if known else None
    findings = [*_findings(small), *_findings(large), *_about_pair(small, large, same)]
    for other in others:
        findings += _about_replica(other, small if other.role == "small" else large)
    return Diagnosis(small, large, same, tuple(findings), others)


def _findings(report: EndpointReport) -> list[Finding]:
    role, can = report.role, report.can
    if report.problem or can is None:
        return [Finding("connection", role, "cannot work", report.problem)]
    findings = [
        Finding(name, role, lack.outcome, f"no {_spaced(name)}: {lack.cost}", lack.cure)
        for name, lack in LACKS.items()
        if getattr(can, name) is False and not (name == "prefix_cache" and _switched_on(can))
    ]
    findings += _about_unknowns(report, can)
    findings += _about_cache(report, can)
    findings += _about_context(report)
    findings += _about_writing(report)
    if report.faithful is False:
        message = "its chat template does not survive encoding, so that judge prompts may differ a little"
        findings.append(Finding("faithful", role, "costs", message, "start vLLM with another --chat-template"))
    if report.model in ("small", "large"):
        message = (
            f"it is served as {report.model!r}: a calibration cannot tell when another model takes its place, and the "
            "service lists it with its role before the name"
        )
        findings.append(Finding("name", role, "costs", message, "serve it under its own name"))
    findings += _about_scoring(report, can)
    return [*findings, *_about_ordering(report), *_about_thinking(report)]


def _spaced(name: str) -> str:
    return name.replace("_", " ")


def _about_unknowns(report: EndpointReport, can: Capabilities) -> list[Finding]:
    findings: list[Finding] = []
    for name in ("version", "speculation", *LACKS):
        if getattr(can, name) is not None:
            continue
        default = f"it could not be found out whether it has {_spaced(name)}: {AGAIN}"
        message, _, cure = UNKNOWN.get(name, default).partition(": ")
        findings.append(Finding(name, report.role, "unknown", message, cure))
    if why := report.failures.get("verdicts"):
        message = f"the time of a verdict could not be measured ({why})"
        findings.append(Finding("verdicts", report.role, "unknown", message, AGAIN))
    return findings


def _about_context(report: EndpointReport) -> list[Finding]:
    if report.context is None or report.context >= SHORT_CONTEXT:
        return []
    outcome: Outcome = "costs"
    message, cure = f"chains of thought end after {report.context} tokens", "start vLLM with a larger --max-model-len"
    if report.context < LEAST_CONTEXT:
        outcome, message = (
            "cannot work",
            f"its context of {report.context} tokens has no room for a step and its verdict",
        )
    return [Finding("context", report.role, outcome, message, cure)]


def _about_writing(report: EndpointReport) -> list[Finding]:
    """Report a model that cannot write, or cannot judge, which only some policies have the small model do."""
    findings: list[Finding] = []
    if why := report.failures.get("writing"):
        findings.append(Finding("writing", report.role, "cannot work", f"it cannot write a step: {why}", AGAIN))
    if why := report.failures.get("judging"):
        message, cure = f"it cannot judge: {why}", "serve it with vLLM, or choose a policy without a judge"
        if report.role == "large":
            findings.append(Finding("judging", "large", "cannot work", message, cure))
        else:
            message = f"policies in which the small model judges (cascade) cannot use it: {why}"
            findings.append(Finding("judging", "small", "costs", message, "choose another policy"))
    return findings


def _about_scoring(report: EndpointReport, can: Capabilities) -> list[Finding]:
    if can.suffix_scoring is False:
        message = "suffix scoring is set, but the server does not do it, or wrongly"
        return [Finding("suffix_scoring", report.role, "cannot work", message, f"{CURE}, or set it to false")]
    if why := report.failures.get("scoring"):
        message = f"policies that score drafts (BiLD, reading, reflective) cannot use it: {why}"
        return [Finding("scoring", report.role, "costs", message, "choose a policy that scores nothing")]
    return []


def _about_ordering(report: EndpointReport) -> list[Finding]:
    cure = "start vLLM with --scheduling-policy priority, as `stepspec up` does"
    behind = "while it is busy, verdicts wait behind bets"
    match report.ordering:
        case "refused":
            finding = Finding(
                "ordering", report.role, "costs", f"it refuses priorities, and is sent none: {behind}", cure
            )
        case "not seen":
            message = f"it was not seen to order requests by priority: {behind}"
            finding = Finding("ordering", report.role, "costs", message, cure)
        case None:
            message = "it could not be found out whether it orders requests by priority"
            finding = Finding("ordering", report.role, "unknown", message, AGAIN)
        case _:
            return []
    return [finding]


def _about_thinking(report: EndpointReport) -> list[Finding]:
    """Report every case but the usual one, in which the template shows a thinking block."""
    role, block, answers = report.role, report.block, "it reasons in its answer"
    outcome: Outcome = "works"
    match report.thinks_by, report.thinks:
        case "effect", True:
            message = (
                f"its chat template shows no thinking block, but it opens one by itself, {block}, which stepspec opens "
                "in its place"
            )
            cure = f"set thinks = false in [{role}] to have the block skipped"
        case "effect", False:
            outcome = "costs"
            message = (
                f"its chat template shows no thinking block, and asked a plain question it opened none, so {answers}"
            )
            cure = f"if it does think, set thinks = true in [{role}]"
        case "setting", True:
            message, cure = f"thinks = true is set, so stepspec opens the block {block}, which nothing else shows", ""
        case "setting", False:
            message, cure = f"thinks = false is set, so its block {block} is skipped, and {answers}", ""
        case _, False:
            message = f"its chat template switches thinking off, so {answers}"
            cure = f"to have it think, set template = {{ enable_thinking = true }} in [{role}]"
        case _:
            return []
    return [Finding("thinking", role, outcome, message, cure)]


def _switched_on(can: Capabilities) -> bool:
    return can.cache is not None and can.cache.enabled is True


def _about_cache(report: EndpointReport, can: Capabilities) -> list[Finding]:
    """Report a prefix cache that is on but of little use to a growing chain, with the cost and the cure."""
    cache, takes = can.cache, f"; a verdict takes {report.reading}" if report.reading else ""
    if can.prefix_cache is False and cache is not None and cache.enabled:
        message = f"the prefix cache is on, but nothing of a prompt of {can.tried} tokens was read from it"
        if can.speculation:
            known = "as is known of hybrid models under MTP and other speculative decoding (vllm#54360, vllm#53504)"
            message, cure = f"{message}, {known}{takes}", _cure_of_speculation(cache, can)
        else:
            message, cure = f"{message}: it is cached in blocks of {cache.block}{takes}", _cure(cache, can)
        return [Finding("prefix_cache", report.role, "costs", message, cure)]
    if can.prefix_cache and _coarse(can):
        read = report.reading.read if report.reading else None
        block = (
            f"in blocks of {cache.block} tokens" if cache and cache.block else f"for long prompts only ({can.tried})"
        )
        again = f": a verdict reads {_read(report.reading)} again" if read is not None else ""
        message = f"the prefix cache is on, but works {block}{again}{takes}"
        return [Finding("prefix_cache", report.role, "costs", message, _cure(cache, can))]
    return []


def _coarse(can: Capabilities) -> bool:
    cache = can.cache
    if cache is None or cache.block is None:
        return can.tried > LONG
    return (cache.unit or cache.block) > FINE


def _cure(cache: CacheConfig | None, can: Capabilities) -> str:
    """Name the flags that let a hybrid's prefixes end anywhere, among those that the server lists."""
    if cache is None or not cache.known:
        return "start vLLM with --mamba-cache-mode align --prefix-match-unit 16, if it has these flags"
    if MATCH_UNIT in cache.known:
        return f"start vLLM with --mamba-cache-mode align --prefix-match-unit {cache.finest}"
    return f"vLLM {can.version or 'as served'} has no --prefix-match-unit, which later versions have: update it"


def _cure_of_speculation(cache: CacheConfig, can: Capabilities) -> str:
    flags = [f"--prefix-cache-retention-interval {cache.block}"] if RETENTION in cache.known and cache.block else []
    if name := next((name for name in CHECKPOINTS if name in cache.known), ""):
        flags.append(f"--mamba-cache-mode align --prefix-match-unit {cache.finest} --{name.replace('_', '-')}")
    others = f", or try {' or '.join(flags)}, which vLLM has for it" if flags else ""
    return f"start vLLM without --speculative-config{others}"


def _about_replica(other: EndpointReport, first: EndpointReport) -> list[Finding]:
    """Report what a replica has that the *first* one has not: a dead one costs, one with another model is refused."""
    named = f"{other.role} at {other.url}"
    if other.problem:
        outcome: Outcome = "cannot work" if first.problem else "costs"
        return [Finding("connection", named, outcome, other.problem)]
    if (other.model, other.vocabulary) != (first.model, first.vocabulary):
        message = f"it does not serve what {first.url} does, and is refused"
        return [Finding("replica", named, "cannot work", message, "serve the same model at both, or leave one out")]
    known = [(finding.check, finding.message) for finding in _findings(first)]
    return [
        replace(finding, subject=named) for finding in _findings(other) if (finding.check, finding.message) not in known
    ]


def _about_pair(small: EndpointReport, large: EndpointReport, same: bool | None) -> list[Finding]:
    if small.problem or large.problem:
        return []
    findings: list[Finding] = []

    def add(check: str, outcome: Outcome, message: str, cure: str, subject: str = "pair") -> None:
        findings.append(Finding(check, subject, outcome, message, cure))

    if why := disagreement(bool(small.thinks), bool(large.thinks)):
        cause, _, cure = why.partition(". ")
        add("thinking", "cannot work", f"this pair is refused: {cause}", f"{cure[:1].lower()}{cure[1:]}")
    elif large.thinks and not small.thinks:
        message = "only the large model thinks: the small one drafts the steps of its thinking as if it answered"
        add("thinking", "costs", message, "draft with a small model that thinks too")
    if (small.url, small.model) == (large.url, large.model):
        add(
            "distinct", "costs", "small and large are the same server: a model gains nothing from its own drafts", OTHER
        )
    elif (small.model, same) == (large.model, True):
        add("distinct", "costs", f"small and large both serve {small.model!r}: are they one model?", OTHER)
    if large.can and large.can.prompt_logprobs and large.can.suffix_scoring is None and large.scoring is not None:
        message = (
            f"suffix scoring is off: to score a step it reads the whole chain again, {_milliseconds(large.scoring)} "
            f"after {LONG} tokens (a first token takes {_milliseconds(large.first)})"
        )
        add("suffix_scoring", "costs", message, CURE, "large")
    if same is False:
        message = "the vocabularies differ: every step is encoded anew for the other model, one request each"
        add("vocabulary", "costs", message, "choose two models of one family")
    if large.digits is not None and large.digits < 0.5:
        message = f"asked for a grade, it puts {large.digits:.0%} on digits; as a judge it does not understand"
        add("judging", "costs", message, "choose another large model, or a policy without grades", "large")
    if small.between is not None and large.between is not None and small.between > 0.7 * large.between:
        message = "the small model is hardly faster than the large one: speculation cannot pay"
        add("speed", "costs", message, "choose a smaller small model, or give it a faster server")
    return findings


def conclude_critic(report: CriticReport) -> CriticReport:
    """Add the findings to the *report* of a reward model; ratings that are no numbers from 0 to 1 become None."""
    if report.problem:
        return replace(report, findings=(Finding("connection", "critic", "cannot work", report.problem),))
    ratings = {"right": report.right, "wrong": report.wrong}
    invalid = {name: value for name, value in ratings.items() if value is None or not 0 <= value <= 1}
    if invalid:
        values = " and ".join(f"{value:g}" for value in invalid.values() if value is not None)
        message = f"its ratings are not numbers from 0 to 1 but {values}"
        cure = "serve a reward model with one or two labels, with vLLM's --runner pooling"
        finite = [None if value is None or not isfinite(value) else value for value in ratings.values()]
        return replace(
            report,
            right=finite[0],
            wrong=finite[1],
            findings=(Finding("rating", "critic", "cannot work", message, cure),),
        )
    assert report.right is not None
    assert report.wrong is not None
    if report.right <= report.wrong:
        message = f"it rates a right step {report.right:.2f} and an obviously wrong one {report.wrong:.2f}"
        cure = "set delimiter, layout and prefix in [critic] as the model was trained, or choose another reward model"
        return replace(report, findings=(Finding("rating", "critic", "costs", message, cure),))
    return report


def conclude_verifier(report: CriticReport, fallback: Fallback) -> CriticReport:
    """Add the findings to the *report* of a verifier, in whose place the *fallback* decides where it fails."""
    if report.problem:
        outcome: Outcome = "cannot work" if fallback == "fail" else "costs"
        cure = f"repair it: until then its fallback, {fallback}, decides" if outcome == "costs" else ""
        return replace(report, findings=(Finding("connection", "critic", outcome, report.problem, cure),))
    assert report.right is not None
    assert report.wrong is not None
    if report.right > report.wrong:
        return report
    message = f"of a sum, it rates the right result {report.right:.2f} and a wrong one {report.wrong:.2f}"
    if report.right < report.wrong:
        cure = "is the score the other way round? 1 has to mean correct"
        return replace(report, findings=(Finding("rating", "critic", "costs", message, cure),))
    cure = "nothing to cure if it judges other problems, such as programs"
    return replace(report, findings=(Finding("rating", "critic", "unknown", message, cure),))


# Layout


def render(report: Report) -> Iterator[RenderableType]:
    """Yield the parts of *report* for a terminal, tables and lines; the last line is its summary."""
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
        yield _line(finding)
    if findings:
        yield Text()


def _line(finding: Finding) -> Text:
    return Text.assemble((f"{finding.outcome}  ", COLOURS[finding.outcome]), str(finding))


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
    table.add_row("model", Text("cannot be used", "red") if critic.problem else critic.model or _mark(None))
    table.add_row("rates a right one", _mark(None) if critic.right is None else f"{critic.right:.2f}")
    table.add_row("rates a wrong one", _mark(None) if critic.wrong is None else f"{critic.wrong:.2f}")
    return table


def _cells(report: EndpointReport) -> list[RenderableType]:
    can, unknown = report.can, _mark(None)
    if can is None:
        return [report.url, Text("cannot be used", COLOURS["cannot work"]), *[unknown] * (len(ROWS) - 2)]
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
        _milliseconds(report.first),
        _milliseconds(report.between, digits=1),
        _read(report.reading),
        _milliseconds(report.reading.seconds if report.reading else None),
        Text(report.ordering, COLOURS["works" if report.ordering == "kept" else "costs"])
        if report.ordering
        else unknown,
        {True: Text("on", "green"), False: Text("refused", "red"), None: Text("off", "yellow")}[can.suffix_scoring],
        _milliseconds(report.scoring),
    ]


def _milliseconds(seconds: float | None, digits: int = 0) -> str:
    return "unknown" if seconds is None else f"{seconds * 1000:.{digits}f} ms"


def _read(reading: Reading | None) -> str:
    if reading is None or reading.read is None:
        return "unknown"
    return f"{reading.read} of {reading.chain} tokens"


def _mark(value: bool | None, *, missing: Outcome = "unknown") -> Text:
    """Return yes, no or unknown, in the colour of its outcome; *missing* is the outcome of a no."""
    if value is None:
        return Text("unknown", COLOURS["unknown"])
    return Text("yes", COLOURS["works"]) if value else Text("no", COLOURS[missing])
