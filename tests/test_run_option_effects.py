"""Every option of a run changes what a run does: the requests, the steps or the events."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from aiohttp import web

from stepspec import Sampling, Solver
from stepspec.orchestrator.budget import Budget
from stepspec.orchestrator.endpoints import GREEDY
from stepspec.orchestrator.endpoints.request_context import PRIORITY_SECONDS
from stepspec.orchestrator.events import Answered, Called, Decided, Drafted, Event, Judged, Started
from stepspec.orchestrator.run_options import RunOptions
from stepspec.orchestrator.solution import Solution

from .stand_in import FakeVllm

pytestmark = pytest.mark.usefixtures("nowhere")

SCRIPT = ("So", " one", ".\n\n", "Then", " two", ".\n\n", "Done", "</think>", "\n\n\\boxed{2}")
PARAGRAPH = (*(f" w{number}" for number in range(20)), ".\n\n")
LOOP = (*PARAGRAPH * 60, "Done", "</think>", "\n\n\\boxed{2}")
UNSURE = {"9": -0.5, "8": -0.9}  # the mean grade is below 9
MOST_WAITING = 2.0  # seconds that a verdict waits for drafts ahead of it


@dataclass
class WaitingVllm(FakeVllm):
    """Its verdicts wait until *events* have three drafts, or for `MOST_WAITING`."""

    events: Sequence[Event] | None = None
    """What a run reported so far; None: no verdict waits."""

    async def wait(self, request: web.Request, texts: Sequence[list[int]]) -> None:
        if self.events is None:
            return
        for _ in range(int(MOST_WAITING / 0.01)):
            if sum(isinstance(event, Drafted) for event in self.events) >= 3:
                return
            await asyncio.sleep(0.01)


@dataclass(frozen=True)
class Observed:
    """What one run did."""

    solution: Solution
    """What it returned."""
    events: Sequence[Event]
    """What it reported."""
    bodies: Sequence[Mapping[str, Any]]
    """The completions that it asked for."""

    def drafts_before_a_verdict(self) -> int:
        kinds = [type(event) for event in self.events if isinstance(event, Drafted | Judged)]
        return kinds.index(Judged)

    def repairs(self) -> int:
        """How many steps the large model was asked to write."""
        return sum(
            isinstance(event, Called) and event.role == "large" and event.verb == "write"
            for event in self.events
        )

    def authors(self) -> list[str]:
        return [step.author for step in self.solution.steps]

    def answerers(self) -> list[str]:
        return [event.step.author for event in self.events if isinstance(event, Answered)]

    def messages(self) -> list[Any]:
        return [event.messages for event in self.events if isinstance(event, Started)]

    def priorities(self) -> set[int]:
        """The priorities of the requests, without the time at which the run began."""
        return {body["priority"] // PRIORITY_SECONDS for body in self.bodies if "priority" in body}

    def field(self, name: str) -> set[Any]:
        """The values of a field over all requests."""
        return {body.get(name) for body in self.bodies}


@dataclass(frozen=True)
class Effect:
    """A value of an option, and what it changes."""

    value: object
    """The value; the other run has the default."""
    see: Callable[[Observed], object]
    """What has to differ between both runs."""
    script: Sequence[str] = SCRIPT
    """What both models write."""
    more: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Options of both runs."""
    digits: Mapping[str, float] = field(default_factory=lambda: {"9": -0.1})
    """The log-probabilities of the large model's grades."""
    slow_judge: bool = False
    """Whether the verdicts wait for drafts ahead."""


EFFECTS: Mapping[str, Effect] = {
    "policy": Effect("large", Observed.authors),
    "options": Effect({"threshold": 9}, Observed.authors, digits=UNSURE),
    "ahead": Effect(0, Observed.drafts_before_a_verdict, slow_judge=True),
    "hedge": Effect(1.0, Observed.repairs, more={"answer": "small"}),
    "auto": Effect(
        True,
        lambda run: any(isinstance(event, Decided) for event in run.events),
    ),
    "lead": Effect(2, Observed.authors),
    "ending": Effect("large", Observed.authors, more={"policy": "bild"}),
    "answer": Effect("small", Observed.answerers),
    "stop_loops": Effect(False, lambda run: run.solution.finish_reason, LOOP),
    "delimiter": Effect(" two", lambda run: len(run.solution.steps)),
    "priority": Effect(7, Observed.priorities),
    "system": Effect("Be brief.", Observed.messages),
    "sampling": Effect(Sampling(temperature=0.5), lambda run: run.field("temperature")),
    "budget": Effect(Budget(steps=1), lambda run: len(run.solution.steps)),
}
"""For each option a value and its effect."""


async def observe(effect: Effect, options: Mapping[str, Any]) -> Observed:
    events = list[Event]()
    small = WaitingVllm(effect.script, digits=dict(effect.digits))
    waiting = events if effect.slow_judge else None
    large = replace(small, faults=deque(), requests=[], events=waiting)  # the same token ids
    usual: dict[str, Any] = {"sampling": GREEDY, "auto": False}
    async with (
        small.serve("small") as small_endpoint,
        large.serve("large") as large_endpoint,
        Solver(small_endpoint, large_endpoint, **{**usual, **effect.more, **options}) as solver,
    ):
        solution = await solver.solve("What is 1 + 1?", observe=events.append)
    requests = [*small.requests, *large.requests]
    return Observed(solution, events, [body for path, body in requests if "completions" in path])


@pytest.mark.parametrize("name", RunOptions.model_fields)
async def test_an_option_has_an_effect(name: str) -> None:
    assert name in EFFECTS, "a new option of a run: say here what it changes"
    effect = EFFECTS[name]
    usual = effect.see(await observe(effect, {}))
    again = effect.see(await observe(effect, {}))
    changed = effect.see(await observe(effect, {name: effect.value}))
    assert usual == again
    assert usual != changed
