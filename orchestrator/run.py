"""One run, from the problem to the answer: think within the budget, survive a lost small model, answer."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Literal, TypeAlias

from .answer import extract, write_answer
from .budget import Budget
from .chain import THINK_END, Chain, Step
from .errors import ContextTooLong, EndpointUnavailable
from .events import Answered, Committed, Degraded, Event, Finished, Observer
from .interfaces import Policy
from .reason import End, reason

FinishReason: TypeAlias = Literal["stop", "length", "time", "repetition", "context"]

_REASONS: dict[End, FinishReason] = {
    "finished": "stop",
    "budget": "length",
    "time": "time",
    "repetition": "repetition",
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """Where a run ended: the committed chain, the text after the thinking, and what cut it short, if not "stop"."""

    chain: Chain
    text: str
    reason: FinishReason

    @property
    def answer(self) -> str:
        return extract(self.text)


@dataclass
class _Run:
    """Follows the events of one run, so that what was committed outlives a failure."""

    chain: Chain
    budget: Budget
    ahead: int
    observe: Observer
    began: float

    def __call__(self, event: Event) -> None:
        if isinstance(event, Committed):
            self.chain = self.chain.extend(event.step)
        self.observe(event)

    async def think(self, policy: Policy) -> FinishReason:
        seconds = self.budget.thinking_seconds
        deadline = None if seconds is None else self.began + seconds
        try:
            _, end = await reason(
                policy, self.chain, ahead=self.ahead, spent=self.budget.spent, deadline=deadline, observe=self
            )
        except ContextTooLong:
            return "context"
        return _REASONS[end]

    async def answer(self, policy: Policy) -> Step | FinishReason:
        """Write the answer; without time or context left for it, say which."""
        deadline = None if self.budget.seconds is None else self.began + self.budget.seconds
        timeout = asyncio.timeout_at(deadline)
        try:
            async with timeout:
                step = await write_answer(policy.answerer, self.chain, limit=self.budget.for_answer)
        except TimeoutError:
            if not timeout.expired():
                raise
            return "time"
        except ContextTooLong:
            return "context"
        self(Answered(step))
        return step


async def run(
    policy: Policy,
    chain: Chain,
    *,
    budget: Budget,
    ahead: int,
    observe: Observer,
    fallback: Policy | None = None,
    thinks: bool = True,
) -> Outcome:
    """
    Think with *policy* and let its answerer answer; models that do not *think* (no thinking block) answer as they
    reason.

    If the small model fails for good, *fallback* goes on from what is committed. Any other failure passes through.
    """
    began = asyncio.get_running_loop().time()
    going = _Run(chain, budget, ahead, observe, began)
    try:
        why = await going.think(policy)
    except EndpointUnavailable as exc:
        if fallback is None or exc.role != "small":
            raise
        observe(Degraded("small", str(exc)))
        policy = fallback
        why = await going.think(policy)
    if not thinks:
        text = going.chain.text
    else:
        written = await going.answer(policy)
        text, cut = (written.text, written.stop == "length") if isinstance(written, Step) else ("", False)
        if why == "stop":
            why = "length" if cut else "stop" if isinstance(written, Step) else written
    outcome = Outcome(going.chain, text.replace(THINK_END, "").strip(), why)
    observe(Finished(why, outcome.answer, asyncio.get_running_loop().time() - began))
    return outcome
