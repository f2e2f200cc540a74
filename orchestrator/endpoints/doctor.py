"""Diagnose a pair of endpoints: the capabilities of each, those that are missing, and what that costs."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from random import randrange

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ..chain import Chain, Role, Step
from ..errors import StepspecError
from ..events import Called, Event
from ..stats import Acceptance
from .chat_template import Source, disagreement
from .metrics import CHECKPOINTS, FINE, MATCH_UNIT, RETENTION, CacheConfig
from .probe import LONG, Capabilities, Ordering, ordering
from .settings import Endpoint
from .tokenizer import PROBE
from .vllm import VllmEndpoint

QUESTION = "Grade the last step from 0, wrong, to 9, right. Reply with one digit."
OPENING = "The grade is "
PROBLEM = Chain.of("What is 2 + 2?")
STEP = Step("2 + 2 is 4.\n\n", "small")
SPEED = 32  # tokens to time the writing by
VERDICTS = 3  # asked after a growing chain; the last one is what any further one costs

COSTS = {
    "token_ids": "no step can be written: vLLM 0.10.2 or later is needed",
    "stop_included": "steps lose their delimiters: vLLM is needed",
    "forced": "judges may answer with other words",
    "chosen_logprobs": "judges read the 20 likeliest tokens only, so rare grades count as impossible "
    "(vLLM's V1 runner cannot do it while it speculates)",
    "prompt_logprobs": "policies that score drafts (BiLD, reflective) cannot use it",
    "prefix_cache": "every verdict reads the whole chain again: start with --enable-prefix-caching",
    "cached_tokens": "the ledger counts cached prompt tokens as read: start with --enable-prompt-tokens-details",
    "metrics": "the server's queue and its cache hits stay unknown",
}
"""What each capability costs where it is missing, in the order of the table."""

ROWS = (
    *("server", "model", "vLLM", "context", "thinks", "speculative decoding", "drafted tokens accepted"),
    *(name.replace("_", " ") for name in COSTS),
    *("probability of digits", "first token", "each further token"),
    *("a verdict reads", "a verdict takes", "order by priority"),
    *("suffix scoring", f"scoring a step after {LONG} tokens"),
)
CURE = "start vLLM with --enable-scale-out --enable-prompt-tokens-details and set suffix_scoring = true"


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
    One endpoint. If it cannot be used, *problem* says why, and the other fields have their defaults.

    *faithful*: the chat template's text gives the template's ids. *digits* is the probability of a digit as the model's
    grade of a step. *first* and *between* are the seconds to a first token and from token to token; *scoring* the
    seconds to score a step after `LONG` cached tokens, 0 if the server cannot. *acceptance* holds the counters of its
    own speculative decoding since its start, None without it. *thinks_by* is the source of *thinks*; *block* is the
    mark that opens the thinking block, "" without one. *reading* is the cost of a verdict. *ordering* is whether the
    server orders requests by priority.
    """

    role: Role
    url: str
    problem: str = ""
    model: str = ""
    room: int = 0
    vocabulary: str = ""
    thinks: bool = False
    faithful: bool = False
    digits: float = 0.0
    first: float = 0.0
    between: float = 0.0
    can: Capabilities | None = None
    scoring: float = 0.0
    acceptance: Acceptance | None = None
    thinks_by: Source = "template"
    block: str = ""
    reading: Reading | None = None
    ordering: Ordering | None = None


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """
    The reports of both endpoints, whether they share their token ids, and *notes* for the user.

    For an endpoint with replicas, the report is of the first usable one; *others* are the reports of the rest.
    """

    small: EndpointReport
    large: EndpointReport
    same_vocabulary: bool
    notes: tuple[str, ...]
    others: tuple[EndpointReport, ...] = ()


async def diagnose(small: Endpoint, large: Endpoint, *, question: str = QUESTION, opening: str = OPENING) -> Diagnosis:
    """Examine all servers of both endpoints at once. A server that cannot be used is reported, not raised."""
    servers = [server for endpoint in (small, large) for server in endpoint.each]
    reports = await asyncio.gather(*(_examine(server, question, opening) for server in servers))
    first = [
        min((report for report in reports if report.role == endpoint.role), key=lambda report: bool(report.problem))
        for endpoint in (small, large)
    ]
    return conclude(*first, *(report for report in reports if not any(report is other for other in first)))


def conclude(small: EndpointReport, large: EndpointReport, *others: EndpointReport) -> Diagnosis:
    """Make the diagnosis from the reports of both endpoints and of the *others*, their replicas."""
    same = bool(small.vocabulary) and small.vocabulary == large.vocabulary
    notes = [*_notes(small), *_notes(large), *_notes_on_pair(small, large, same)]
    for other in others:
        notes += _notes_on_replica(other, small if other.role == "small" else large)
    return Diagnosis(small, large, same, tuple(notes), others)


def render(diagnosis: Diagnosis) -> RenderableType:
    """Lay out a diagnosis for a terminal."""
    reports = (diagnosis.small, diagnosis.large, *diagnosis.others)
    table = Table("", *(report.role for report in reports), box=None, pad_edge=False)
    for name, *cells in zip(ROWS, *map(_cells, reports), strict=True):
        table.add_row(name, *cells)
    table.add_row("one vocabulary", _mark(diagnosis.same_vocabulary), "")
    return Group(table, "", *(f"- {note}" for note in diagnosis.notes or ("Nothing is missing.",)))


def _cells(report: EndpointReport) -> list[RenderableType]:
    can = report.can
    if can is None:
        return [report.url, Text("cannot be used", "red"), *["-"] * (len(ROWS) - 2)]
    return [
        report.url,
        report.model,
        can.version or "?",
        f"{report.room} tokens",
        _mark(report.thinks).append(f" ({report.thinks_by})"),
        _mark(can.speculation),
        str(report.acceptance or "-"),
        *(_mark(getattr(can, name)) for name in COSTS),
        f"{report.digits:.1%}",
        f"{report.first * 1000:.0f} ms",
        f"{report.between * 1000:.1f} ms",
        _read(report.reading),
        f"{report.reading.seconds * 1000:.0f} ms" if report.reading else "-",
        Text(report.ordering or "-", "green" if report.ordering == "kept" else "yellow"),
        {True: Text("on", "green"), False: Text("refused", "red"), None: Text("off", "yellow")}[can.suffix_scoring],
        f"{report.scoring * 1000:.0f} ms" if report.scoring else "-",
    ]


def _read(reading: Reading | None) -> str:
    if reading is None or reading.read is None:
        return "?"
    return f"{reading.read} of {reading.chain} tokens"


def _mark(value: bool | None) -> Text:
    return {True: Text("yes", "green"), False: Text("no", "red"), None: Text("?", "yellow")}[value]


async def _examine(settings: Endpoint, question: str, opening: str) -> EndpointReport:
    try:
        async with VllmEndpoint(settings) as endpoint:
            can = await endpoint.capabilities()
            grades = await endpoint.model().ask(PROBLEM.extend(STEP), question, "0123456789", opening=opening)
            first, between = await _speed(endpoint)  # last, when the server is warm
            scores = can.prompt_logprobs and can.suffix_scoring is not False
            return EndpointReport(
                role=settings.role,
                url=settings.url,
                model=endpoint.name,
                room=endpoint.encoder.room,
                vocabulary=endpoint.vocabulary,
                thinks=endpoint.template.thinks,
                faithful=endpoint.encoder.faithful,
                digits=sum(grades.values()),
                first=first,
                between=between,
                can=can,
                scoring=await _scoring(endpoint) if scores else 0.0,
                acceptance=await endpoint.acceptance(),
                thinks_by=endpoint.template.source,
                block=endpoint.template.block,
                reading=await _reading(endpoint, can, question, opening),
                ordering=await _ordering(endpoint),
            )
    except StepspecError as exc:
        return EndpointReport(settings.role, settings.url, problem=str(exc))


async def _ordering(endpoint: VllmEndpoint) -> Ordering:
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


def _notes(report: EndpointReport) -> list[str]:
    if report.problem or report.can is None:
        return [f"{report.role}: {report.problem}"]
    notes = [
        f"{report.role}: no {name.replace('_', ' ')}: {cost}"
        for name, cost in COSTS.items()
        if _lacks(report, name) and not (name == "prefix_cache" and _switched_on(report.can))
    ]
    notes += _notes_on_cache(report, report.can)
    if not report.faithful:
        notes.append(f"{report.role}: its chat template does not survive encoding; judge prompts may differ a little")
    if report.model in ("small", "large"):
        notes.append(
            f"{report.role}: it is served as {report.model!r}: a calibration cannot tell when another model takes "
            "its place, and the service lists it with its role before the name: serve it under its own name"
        )
    return [*notes, *_notes_on_ordering(report), *_notes_on_thinking(report)]


def _notes_on_ordering(report: EndpointReport) -> list[str]:
    cure = "start vLLM with --scheduling-policy priority, as `stepspec up` does"
    match report.ordering:
        case "refused":
            why = "it refuses priorities, and is sent none"
        case "not seen":
            why = "it was not seen to order requests by priority"
        case _:
            return []
    return [f"{report.role}: {why}: while it is busy, verdicts wait behind bets: {cure}"]


def _notes_on_thinking(report: EndpointReport) -> list[str]:
    """Note every case but the usual one, in which the template shows a thinking block."""
    role, block, answers = report.role, report.block, "it reasons in its answer"
    match report.thinks_by, report.thinks:
        case "effect", True:
            note = (
                f"its chat template shows no thinking block, but it opens one by itself, {block}: stepspec opens it in "
                f"the model's place; set thinks = false in [{role}] to have the block skipped"
            )
        case "effect", False:
            note = (
                f"its chat template shows no thinking block, and asked a plain question it opened none: {answers}; if "
                f"it does think, set thinks = true in [{role}]"
            )
        case "setting", True:
            note = f"thinks = true is set: stepspec opens the block {block}, which nothing else shows"
        case "setting", False:
            note = f"thinks = false is set: its block {block} is skipped, and {answers}"
        case _, False:
            note = f"its chat template switches thinking off: {answers}"
        case _:
            return []
    return [f"{role}: {note}"]


def _switched_on(can: Capabilities) -> bool:
    return can.cache is not None and can.cache.enabled is True


def _notes_on_cache(report: EndpointReport, can: Capabilities) -> list[str]:
    """Note a prefix cache that is on but of little use to a growing chain, with the cost and the cure."""
    cache, takes = can.cache, f"; a verdict takes {report.reading}" if report.reading else ""
    if can.prefix_cache is False and cache is not None and cache.enabled:
        nothing = (
            f"{report.role}: the prefix cache is on, but nothing of a prompt of {can.tried} tokens was read from it"
        )
        if can.speculation:
            return [
                f"{nothing}, as is known of hybrid models under MTP and other speculative decoding (vllm#54360, "
                f"vllm#53504){takes}: {_cure_of_speculation(cache, can)}"
            ]
        return [f"{nothing}: it is cached in blocks of {cache.block}{takes}: {_cure(cache, can)}"]
    if can.prefix_cache and _coarse(can):
        read = report.reading.read if report.reading else None
        block = (
            f"in blocks of {cache.block} tokens" if cache and cache.block else f"for long prompts only ({can.tried})"
        )
        again = f": a verdict reads {_read(report.reading)} again" if read is not None else ""
        return [f"{report.role}: the prefix cache is on, but works {block}{again}{takes}: {_cure(cache, can)}"]
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


def _notes_on_scoring(large: EndpointReport, suffix_scoring: bool | None) -> list[str]:
    if suffix_scoring is None:
        scoring, first = f"{large.scoring * 1000:.0f} ms", f"{large.first * 1000:.0f} ms"
        return [
            f"large: suffix scoring is off: to score a step it reads the whole chain again, {scoring} after {LONG} "
            f"tokens (a first token takes {first}): {CURE}"
        ]
    if not suffix_scoring:
        return [f"large: suffix scoring is set, but the server does not do it, or wrongly: {CURE}, or set it to false"]
    return []


def _lacks(report: EndpointReport, name: str) -> bool:
    return getattr(report.can, name) is False


def _notes_on_replica(other: EndpointReport, first: EndpointReport) -> list[str]:
    """Note the problems of a replica that the *first* one does not have."""
    named = f"{other.role} at {other.url}"
    if other.problem:
        return [f"{named}: {other.problem}"]
    if (other.model, other.vocabulary) != (first.model, first.vocabulary):
        return [f"{named}: it does not serve what {first.url} does, and is refused"]
    known = _notes(first)
    return [note.replace(other.role, named, 1) for note in _notes(other) if note not in known]


def _notes_on_pair(small: EndpointReport, large: EndpointReport, same: bool) -> list[str]:
    notes: list[str] = []
    if small.problem or large.problem:
        return notes
    if why := disagreement(small.thinks, large.thinks):
        notes.append(f"this pair is refused: {why}")
    elif large.thinks and not small.thinks:
        notes.append("only the large model thinks: the small one drafts the steps of its thinking as if it answered")
    if large.can and large.can.prompt_logprobs:
        notes += _notes_on_scoring(large, large.can.suffix_scoring)
    if not same:
        notes.append("the vocabularies differ: every step is encoded anew for the other model, one request each")
    if large.digits < 0.5:
        notes.append(
            f"large: asked for a grade, it puts {large.digits:.0%} on digits; as a judge it does not understand"
        )
    if small.between > 0.7 * large.between:
        notes.append("the small model is hardly faster than the large one: speculation cannot pay")
    return notes
