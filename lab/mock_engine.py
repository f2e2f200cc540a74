"""An engine whose models answer at once, so that a request's time is that of the library and the service."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from stepspec import policies
from stepspec.orchestrator.budget import Budget
from stepspec.orchestrator.chain import (
    DELIMITER,
    THINK_END,
    Chain,
    Message,
    Role,
    Step,
    Stop,
    Token,
)
from stepspec.orchestrator.endpoints import Endpoint, ModelEndpoint, Template
from stepspec.orchestrator.events import Event, Observer, Started
from stepspec.orchestrator.run import run as run_policy
from stepspec.orchestrator.run_options import RunOptions
from stepspec.orchestrator.service.offer import Offer, ServedMethod
from stepspec.orchestrator.solution import Solution
from stepspec.orchestrator.trace import Recorder, Stopwatch

WORDS = 20  # in a step, each of them a token
NOWHERE = "http://127.0.0.1:9"


@dataclass(frozen=True)
class InstantModel:
    """Writes *steps* steps and an answer, and approves of everything, without waiting for anything."""

    role: Role
    steps: int

    async def write(
        self,
        chain: Chain,
        *,
        stop: Sequence[str] | None = None,
        limit: int = 512,
        until: Callable[[Step], bool] | None = None,
        opening: str = "",
        top: int = 0,
    ) -> Step:
        await asyncio.sleep(0)  # Even what answers at once lets others have their turn.
        place = len(chain.steps)
        last = place + 1 >= self.steps
        words = "".join(f" {place}-{number}" for number in range(WORDS))  # Steps alike would be taken for a loop.
        text = opening + words + ("" if chain.finished else THINK_END if last else DELIMITER)
        ended: Stop = "end" if last or chain.finished else "delimiter"
        return Step(text, self.role, ended, tuple([Token(word, -0.1) for word in text.split()]), "words")

    async def branch(
        self, chain: Chain, begun: Sequence[Step], *, stop: Sequence[str] | None = None, limit: int = 512
    ) -> tuple[Step, ...]:
        raise NotImplementedError("nobody has rivals here")

    async def score(self, chain: Chain, *spans: str, top: int = 0) -> list[tuple[Token, ...]]:
        raise NotImplementedError("nobody is scored here")

    async def ask(
        self, chain: Chain, question: str, choices: Sequence[str], *, opening: str = ""
    ) -> Mapping[str, float]:
        await asyncio.sleep(0)
        return {choice: float(choice == choices[-1]) for choice in choices}


@dataclass(frozen=True)
class InstantEndpoint:
    """What the service wants to know of an endpoint."""

    role: Role
    room: int = 4096
    template: Template = Template("", "", thinks=True)  # noqa: RUF009  # frozen
    usable: bool = True

    @property
    def name(self) -> str:
        return f"instant-{self.role}"

    @property
    def settings(self) -> Endpoint:
        return Endpoint(role=self.role, url=NOWHERE)

    async def thinks(self, messages: tuple[Message, ...], tools: tuple[object, ...] = ()) -> bool:
        return True

    async def count(self, messages: tuple[Message, ...]) -> int:
        return sum(len(message.content.split()) for message in messages)


class InstantEngine:
    """Runs SpecReason, as a solver does, over models that answer at once."""

    def __init__(self, steps: int, ahead: int = 2) -> None:
        self._ahead = ahead
        self._small, self._large = InstantModel("small", steps), InstantModel("large", steps)
        self.small = cast("ModelEndpoint", InstantEndpoint("small"))
        self.large = cast("ModelEndpoint", InstantEndpoint("large"))

    async def solve(
        self,
        problem: str | Sequence[Message],
        run: RunOptions | None = None,
        *,
        observe: Observer = lambda event: None,
        clock: Stopwatch | None = None,
        **_: Any,
    ) -> Solution:
        recorder, chain = Recorder(clock or Stopwatch()), Chain.of(problem)

        def watch(event: Event) -> None:
            recorder(event)
            observe(event)

        watch(Started(chain.messages, "specreason"))
        policy = policies.SpecReason(self._small, self._large)
        budget = run.budget.budget() if run else Budget()
        outcome = await run_policy(policy, chain, budget=budget, ahead=self._ahead, observe=watch)
        return Solution.of(outcome, recorder.moments)

    def offer(self) -> Offer:
        """What a service over this engine serves."""
        return Offer(self, {"specreason": ServedMethod("", {})})
