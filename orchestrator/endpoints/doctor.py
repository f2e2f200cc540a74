"""Examine a pair of endpoints: what each can do, what is missing, and what that costs."""

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
from .acceptance import Acceptance
from .probe import LONG, Capabilities
from .settings import Endpoint
from .template import Source, disagreement
from .vllm import VllmEndpoint

QUESTION = "Grade the last step from 0, wrong, to 9, right. Reply with one digit."
OPENING = "The grade is "
PROBLEM = Chain.of("What is 2 + 2?")
STEP = Step("2 + 2 is 4.\n\n", "small")
SPEED = 32  # tokens to time the writing by

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
    *("suffix scoring", f"scoring a step after {LONG} tokens"),
)
CURE = "start vLLM with --enable-scale-out --enable-prompt-tokens-details and set suffix_scoring = true"


@dataclass(frozen=True, slots=True)
class Examined:
    """
    One endpoint. If it cannot be used, *problem* says why, and there is nothing else.

    *faithful*: the chat template's text gives the template's ids. *digits* is the probability that the model, asked to
    grade a step, puts on digits. *first* and *between* are the seconds to a first token and from token to token;
    *scoring* those to score a step after `LONG` tokens that the server knows, 0 where it cannot. *acceptance* is that
    of its own speculative decoding since it was started; None if it does none. *thinks_by* is how it was found whether
    the model *thinks*; *block* is the mark that opens its thinking block, "" if nothing shows one.
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


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """
    Both endpoints, whether they share their token ids, and in words what to know before using them.

    Of an endpoint with replicas it is the first that can be used; *others* are the further ones.
    """

    small: Examined
    large: Examined
    same_vocabulary: bool
    notes: tuple[str, ...]
    others: tuple[Examined, ...] = ()


async def diagnose(small: Endpoint, large: Endpoint, *, question: str = QUESTION, opening: str = OPENING) -> Diagnosis:
    """Examine all servers of both endpoints at once. One that cannot be used is a finding, not an error."""
    servers = [server for endpoint in (small, large) for server in endpoint.each]
    examined = await asyncio.gather(*(_examine(server, question, opening) for server in servers))
    first = [
        min((one for one in examined if one.role == endpoint.role), key=lambda one: bool(one.problem))
        for endpoint in (small, large)
    ]
    return conclude(*first, *(one for one in examined if not any(one is each for each in first)))


def conclude(small: Examined, large: Examined, *others: Examined) -> Diagnosis:
    """Draw the conclusions from what was found at each endpoint, and at the *others*, their replicas."""
    same = bool(small.vocabulary) and small.vocabulary == large.vocabulary
    notes = [*_notes(small), *_notes(large), *_notes_on_pair(small, large, same)]
    for other in others:
        notes += _notes_on_replica(other, small if other.role == "small" else large)
    return Diagnosis(small, large, same, tuple(notes), others)


def render(diagnosis: Diagnosis) -> RenderableType:
    """Lay out a diagnosis for a terminal."""
    shown = (diagnosis.small, diagnosis.large, *diagnosis.others)
    table = Table("", *(one.role for one in shown), box=None, pad_edge=False)
    for name, *cells in zip(ROWS, *map(_cells, shown), strict=True):
        table.add_row(name, *cells)
    table.add_row("one vocabulary", _mark(diagnosis.same_vocabulary), "")
    return Group(table, "", *(f"- {note}" for note in diagnosis.notes or ("Nothing is missing.",)))


def _cells(examined: Examined) -> list[RenderableType]:
    can = examined.can
    if can is None:
        return [examined.url, Text("cannot be used", "red"), *["-"] * (len(ROWS) - 2)]
    return [
        examined.url,
        examined.model,
        can.version or "?",
        f"{examined.room} tokens",
        _mark(examined.thinks).append(f" ({examined.thinks_by})"),
        _mark(can.speculation),
        str(examined.acceptance or "-"),
        *(_mark(getattr(can, name)) for name in COSTS),
        f"{examined.digits:.1%}",
        f"{examined.first * 1000:.0f} ms",
        f"{examined.between * 1000:.1f} ms",
        {True: Text("on", "green"), False: Text("refused", "red"), None: Text("off", "yellow")}[can.suffix_scoring],
        f"{examined.scoring * 1000:.0f} ms" if examined.scoring else "-",
    ]


def _mark(value: bool | None) -> Text:
    return {True: Text("yes", "green"), False: Text("no", "red"), None: Text("?", "yellow")}[value]


async def _examine(settings: Endpoint, question: str, opening: str) -> Examined:
    try:
        async with VllmEndpoint(settings) as endpoint:
            can = await endpoint.capabilities()
            grades = await endpoint.model().ask(PROBLEM.extend(STEP), question, "0123456789", opening=opening)
            first, between = await _speed(endpoint)  # last, when the server is warm
            scores = can.prompt_logprobs and can.suffix_scoring is not False
            return Examined(
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
            )
    except StepspecError as exc:
        return Examined(settings.role, settings.url, problem=str(exc))


async def _speed(endpoint: VllmEndpoint) -> tuple[float, float]:
    """Write a few tokens; return the seconds to the first and between the others."""
    events: list[Event] = []
    await endpoint.model(observe=events.append).write(PROBLEM, stop=(), limit=SPEED)
    called = next(event for event in events if isinstance(event, Called))
    first = called.first or 0.0
    return first, (called.seconds - first) / max(1, called.written - 1)


async def _scoring(endpoint: VllmEndpoint) -> float:
    """Score a step that the server has never seen, after a chain that it has; return the seconds."""
    events: list[Event] = []
    model = endpoint.model(observe=events.append)
    step = len(await endpoint.encoder.encode(STEP.text))
    chain = PROBLEM.extend(replace(STEP, text=STEP.text * max(1, min(LONG, endpoint.room // 2) // step)))
    await model.score(chain, STEP.text)
    events.clear()
    await model.score(chain, f"{randrange(10**9)} is a number.\n\n")
    return sum(event.seconds for event in events if isinstance(event, Called))


def _notes(examined: Examined) -> list[str]:
    if examined.problem or examined.can is None:
        return [f"{examined.role}: {examined.problem}"]
    notes = [
        f"{examined.role}: no {name.replace('_', ' ')}: {cost}"
        for name, cost in COSTS.items()
        if _lacks(examined, name)
    ]
    if not examined.faithful:
        notes.append(f"{examined.role}: its chat template does not survive encoding; judge prompts may differ a little")
    return [*notes, *_notes_on_thinking(examined)]


def _notes_on_thinking(examined: Examined) -> list[str]:
    """Say what is otherwise than that the template shows a thinking block, and what it means."""
    role, block, answers = examined.role, examined.block, "it reasons in its answer"
    match examined.thinks_by, examined.thinks:
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


def _notes_on_scoring(large: Examined, suffix_scoring: bool | None) -> list[str]:
    if suffix_scoring is None:
        scoring, first = f"{large.scoring * 1000:.0f} ms", f"{large.first * 1000:.0f} ms"
        return [
            f"large: suffix scoring is off: to score a step it reads the whole chain again, {scoring} after {LONG} "
            f"tokens (a first token takes {first}): {CURE}"
        ]
    if not suffix_scoring:
        return [f"large: suffix scoring is set, but the server does not do it, or wrongly: {CURE}, or set it to false"]
    return []


def _lacks(examined: Examined, name: str) -> bool:
    return getattr(examined.can, name) is False


def _notes_on_replica(other: Examined, first: Examined) -> list[str]:
    """Say of a replica what is not said of the *first* one already."""
    named = f"{other.role} at {other.url}"
    if other.problem:
        return [f"{named}: {other.problem}"]
    if (other.model, other.vocabulary) != (first.model, first.vocabulary):
        return [f"{named}: it does not serve what {first.url} does, and is refused"]
    known = _notes(first)
    return [note.replace(other.role, named, 1) for note in _notes(other) if note not in known]


def _notes_on_pair(small: Examined, large: Examined, same: bool) -> list[str]:
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
