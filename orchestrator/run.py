"""One run, from the problem to the answer: think within the budget, survive a lost small model, answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import copy_context
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from .answer import extract, write_answer
from .budget import Budget
from .chain import THINK_END, Chain, Rollback, Step
from .errors import ContextTooLong, EndpointUnavailable
from .events import Answered, Committed, Degraded, Drafted, Event, Finished, Judged, Observer, Repaired
from .hooks import Watch
from .interfaces import Policy
from .lookahead import Ahead
from .reason import End, reason
from .tasks import to_the_end

FinishReason: TypeAlias = Literal["stop", "length", "time", "repetition", "hopeless", "context"]

_REASONS: dict[End, FinishReason] = {
    "finished": "stop",
    "budget": "length",
    "time": "time",
    "repetition": "repetition",
    "enough": "stop",
    "hopeless": "hopeless",
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


class _EarlyAnswer:
    """
    The answer, begun as a bet as soon as a draft ends the thinking, while what it rests on is still being judged.

    It sees the loop's events, each with what is committed by then. There is one bet at a time, and it is cancelled when
    a draft under it falls.
    """

    def __init__(self, write: Callable[[Chain], Coroutine[Any, Any, Step]], bets: Callable[[], bool]) -> None:
        self._write, self._bets = write, bets
        self._outside = copy_context()  # events come from the lookahead's tasks, whose streams are not the answer's
        self._drafts: dict[int, Step] = {}
        self._fallen = False
        self._bet: tuple[Chain, asyncio.Task[Step]] | None = None
        self._dropped: list[asyncio.Task[Step]] = []

    def see(self, event: Event, committed: Chain) -> None:
        match event:
            case Drafted(index, draft) if not self._fallen:
                self._drafts[index] = draft
                if draft.stop == "end" and self._bets():
                    steps = (self._drafts[place] for place in sorted(self._drafts))
                    chain = replace(committed, steps=(*committed.steps, *steps))
                    self._drop()
                    self._bet = chain, asyncio.create_task(self._write(chain), context=self._outside.copy())
            case Judged(verdict=Rollback()):
                self._fallen = True
                self._drop()
            case Repaired():
                self._fallen = False
                self._drafts.clear()
            case Committed(index):
                self._drafts.pop(index, None)
            case _:
                pass

    async def take(self, chain: Chain) -> Step:
        """Return the answer to *chain*: the bet's, or one that is written now."""
        if self._bet is None or self._bet[0] != chain:
            return await self._write(chain)
        return await self._bet[1]

    async def close(self) -> None:
        """Cancel what was not taken, and wait until it is gone."""
        self._drop()
        if self._dropped:
            await asyncio.wait(self._dropped)
        for bet in self._dropped:
            if not bet.cancelled():
                bet.exception()  # A lost bet's failure is nobody's.

    def _drop(self) -> None:
        if self._bet is not None:
            self._bet[1].cancel()  # which does nothing to an answer that is complete
            self._dropped.append(self._bet[1])
            self._bet = None


@dataclass
class _Run:
    """Follows the events of one run, so that what was committed outlives a failure."""

    chain: Chain
    budget: Budget
    ahead: Ahead
    observe: Observer
    began: float
    thinks: bool
    watch: Watch | None
    early: _EarlyAnswer | None = None

    def __call__(self, event: Event) -> None:
        if isinstance(event, Committed):
            self.chain = self.chain.extend(event.step)
        if self.early is not None:
            self.early.see(event, self.chain)
        self.observe(event)

    async def close(self) -> None:
        if self.early is not None:
            await self.early.close()

    async def think(self, policy: Policy) -> FinishReason:
        if self.early is not None:
            await self.early.close()

        async def write(chain: Chain) -> Step:
            return await write_answer(policy.answerer, chain, limit=self.budget.for_answer)

        self.early = _EarlyAnswer(write, lambda: self.thinks and self.ahead.depth() > 0)
        seconds = self.budget.thinking_seconds
        deadline = None if seconds is None else self.began + seconds
        try:
            _, end = await reason(
                policy,
                self.chain,
                ahead=self.ahead,
                spent=self.budget.spent,
                deadline=deadline,
                watch=self.watch,
                observe=self,
            )
        except ContextTooLong:
            return "context"
        return _REASONS[end]

    async def answer(self) -> Step | FinishReason:
        """Write the answer; without time or context left for it, say which."""
        deadline = None if self.budget.seconds is None else self.began + self.budget.seconds
        timeout = asyncio.timeout_at(deadline)
        try:
            async with timeout:
                assert self.early is not None
                step = await self.early.take(self.chain)
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
    ahead: int | Ahead,
    observe: Observer,
    fallback: Policy | None = None,
    thinks: bool = True,
    watch: Watch | None = None,
) -> Outcome:
    """
    Think with *policy* and let its answerer answer; models that do not *think* (no thinking block) answer as they
    reason.

    *watch* may end the thinking early. If the small model fails for good, *fallback* goes on from what is committed.
    Any other failure passes through.
    """
    began = asyncio.get_running_loop().time()
    going = _Run(chain, budget, Ahead.of(ahead), observe, began, thinks, watch)
    try:
        try:
            why = await going.think(policy)
        except EndpointUnavailable as exc:
            if fallback is None or exc.role != "small":
                raise
            observe(Degraded("small", str(exc)))
            why = await going.think(fallback)
        if not thinks:
            text = going.chain.text
        else:
            written = await going.answer()
            text, cut = (written.text, written.stop == "length") if isinstance(written, Step) else ("", False)
            if why == "stop":
                why = "length" if cut else "stop" if isinstance(written, Step) else written
    finally:
        await to_the_end(going.close())
    outcome = Outcome(going.chain, text.replace(THINK_END, "").strip(), why)
    observe(Finished(why, outcome.answer, asyncio.get_running_loop().time() - began))
    return outcome
