"""Examine a pair of endpoints: what each can do, what is missing, and what that costs."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ..chain import Chain, Role, Step
from ..errors import StepspecError
from ..events import Called, Event
from .probe import Capabilities
from .settings import Endpoint
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
    "chosen_logprobs": "judges read the 20 likeliest tokens only, so rare grades count as impossible",
    "prompt_logprobs": "policies that score drafts (BiLD, reflective) cannot use it",
    "prefix_cache": "every verdict reads the whole chain again: start with --enable-prefix-caching",
    "cached_tokens": "the ledger counts cached prompt tokens as read: start with --enable-prompt-tokens-details",
    "metrics": "the server's queue and its cache hits stay unknown",
}
"""What each capability costs where it is missing, in the order of the table."""

ROWS = (
    *("server", "model", "vLLM", "context", "thinks", "speculative decoding"),
    *(name.replace("_", " ") for name in COSTS),
    *("probability of digits", "first token", "each further token"),
)


@dataclass(frozen=True, slots=True)
class Examined:
    """
    One endpoint. If it cannot be used, *problem* says why, and there is nothing else.

    *faithful*: the chat template's text gives the template's ids. *digits* is the probability that the model, asked to
    grade a step, puts on digits. *first* and *between* are the seconds to a first token and from token to token.
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


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Both endpoints, whether they share their token ids, and in words what to know before using them."""

    small: Examined
    large: Examined
    same_vocabulary: bool
    notes: tuple[str, ...]


async def diagnose(small: Endpoint, large: Endpoint, *, question: str = QUESTION, opening: str = OPENING) -> Diagnosis:
    """Examine both endpoints at the same time. A server that cannot be used is a finding, not an error."""
    examined = await asyncio.gather(*(_examine(endpoint, question, opening) for endpoint in (small, large)))
    return conclude(*examined)


def conclude(small: Examined, large: Examined) -> Diagnosis:
    """Draw the conclusions from what was found at each endpoint."""
    same = bool(small.vocabulary) and small.vocabulary == large.vocabulary
    return Diagnosis(small, large, same, (*_notes(small), *_notes(large), *_notes_on_pair(small, large, same)))


def render(diagnosis: Diagnosis) -> RenderableType:
    """Lay out a diagnosis for a terminal."""
    table = Table("", "small", "large", box=None, pad_edge=False)
    for name, small, large in zip(ROWS, _cells(diagnosis.small), _cells(diagnosis.large), strict=True):
        table.add_row(name, small, large)
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
        _mark(examined.thinks),
        _mark(can.speculation),
        *(_mark(getattr(can, name)) for name in COSTS),
        f"{examined.digits:.1%}",
        f"{examined.first * 1000:.0f} ms",
        f"{examined.between * 1000:.1f} ms",
    ]


def _mark(value: bool | None) -> Text:
    return {True: Text("yes", "green"), False: Text("no", "red"), None: Text("?", "yellow")}[value]


async def _examine(settings: Endpoint, question: str, opening: str) -> Examined:
    try:
        async with VllmEndpoint(settings) as endpoint:
            can = await endpoint.capabilities()
            grades = await endpoint.model().ask(PROBLEM.extend(STEP), question, "0123456789", opening=opening)
            first, between = await _speed(endpoint)  # last, when the server is warm
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
    if not examined.thinks:
        notes.append(f"{examined.role}: its chat template opens no thinking block; it will reason in its answer")
    return notes


def _lacks(examined: Examined, name: str) -> bool:
    return getattr(examined.can, name) is False


def _notes_on_pair(small: Examined, large: Examined, same: bool) -> list[str]:
    notes: list[str] = []
    if small.problem or large.problem:
        return notes
    if not same:
        notes.append("the vocabularies differ: every step is encoded anew for the other model, one request each")
    if large.digits < 0.5:
        notes.append(
            f"large: asked for a grade, it puts {large.digits:.0%} on digits; as a judge it does not understand"
        )
    if small.between > 0.7 * large.between:
        notes.append("the small model is hardly faster than the large one: speculation cannot pay")
    return notes
