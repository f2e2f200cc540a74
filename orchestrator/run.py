"""One run, from the problem to the answer: think within the budget, survive a lost small model, answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextvars import copy_context
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from .answer import (
    AnswerStream,
    answered,
    closing,
    extract,
    has_thought,
    said,
    write_answer,
)
from .budget import Budget
from .chain import Chain, Role, Rollback, Step
from .concurrency import to_the_end
from .early_stopping import StopRule
from .errors import ContextTooLong, EndpointUnavailable
from .events import (
    Answered,
    Answering,
    Chosen,
    Committed,
    Degraded,
    Drafted,
    Event,
    Finished,
    Judged,
    Observer,
    Repaired,
)
from .interfaces import REQUEST, Model, Policy, RequestContext, requesting
from .lookahead import LookaheadControl
from .markers import may_open_block
from .reason import End, reason

FinishReason: TypeAlias = Literal["stop", "length", "time", "repetition", "context"]

_REASONS: dict[End, FinishReason] = {
    "finished": "stop",
    "budget": "length",
    "time": "time",
    "repetition": "repetition",
    "enough": "stop",
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
    a draft under it falls. *telling* makes whoever tells one answer in pieces.
    """

    def __init__(
        self,
        write: Callable[[Chain, AnswerStream], Coroutine[Any, Any, Step]],
        telling: Callable[[], AnswerStream],
        bets: Callable[[], bool],
    ) -> None:
        self._write, self._telling, self._bets = write, telling, bets
        self._outside = copy_context()  # events come from the lookahead's tasks, whose streams are not the answer's
        self._drafts: dict[int, Step] = {}
        self._fallen = False
        self._bet: tuple[Chain, asyncio.Task[Step], AnswerStream] | None = None
        self._taken: AnswerStream | None = None
        self._dropped: list[asyncio.Task[Step]] = []

    def see(self, event: Event, committed: Chain) -> None:
        match event:
            case Drafted(index, draft) if not self._fallen:
                self._drafts[index] = draft
                if draft.stop == "end" and self._bets():
                    steps = (self._drafts[place] for place in sorted(self._drafts))
                    chain = replace(committed, steps=(*committed.steps, *steps))
                    self._drop()
                    telling = self._telling()
                    outside = self._outside.copy()
                    outside.run(REQUEST.set, RequestContext("answer", len(chain.steps), bet=True))
                    writing = asyncio.create_task(self._write(chain, telling), context=outside)
                    self._bet = chain, writing, telling
            case Judged(verdict=Rollback()):
                self._fallen = True
                self._drop()
            case Repaired() | Chosen():
                self._fallen = False
                self._drafts.clear()
            case Committed(index):
                self._drafts.pop(index, None)
            case _:
                pass

    async def take(self, chain: Chain) -> Step:
        """Return the answer to *chain*, telling it in pieces: the bet's, or one that is written now."""
        if self._bet is None or self._bet[0] != chain:
            self._taken = telling = self._telling()
            telling.certain()
            with requesting(RequestContext("answer", len(chain.steps))):
                step = await self._write(chain, telling)
        else:
            _, writing, telling = self._bet
            self._taken = telling
            telling.certain()
            step = await writing
        telling.end(step.text)
        return step

    @property
    def partial(self) -> Step | None:
        """What there is of the answer that was taken, should no time be left for the rest."""
        return self._taken.partial if self._taken is not None else None

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
    ahead: LookaheadControl
    observe: Observer
    began: float
    thinks: bool
    stop_rule: StopRule | None
    answerer: Model | None
    stop: Sequence[str]
    by_method: bool
    early: _EarlyAnswer | None = None

    def __post_init__(self) -> None:
        self.aloud = self.telling()  # of a chain that is the answer, or holds it
        self.aloud.certain()

    def telling(self) -> AnswerStream:
        return AnswerStream(lambda text: self(Answering(text)), self.stop)

    def __call__(self, event: Event) -> None:
        if isinstance(event, Committed):
            self.chain = self.chain.extend(event.step)
        if self.early is not None:
            self.early.see(event, self.chain)
        self.observe(event)
        if isinstance(event, Committed) and not self.thinks and not may_open_block(self.chain.text):
            self.aloud.grown(self.chain.text)
        if isinstance(event, Committed) and self.by_method and self.chain.closed:
            self.aloud.grown(self.chain.parts()[1].text)

    async def close(self) -> None:
        if self.early is not None:
            await self.early.close()

    def without(self, role: Role) -> None:
        """Go on without the model in its *role*."""
        if self.answerer is not None and self.answerer.role == role:
            self.answerer = None

    async def think(self, policy: Policy) -> FinishReason:
        if self.early is not None:
            await self.early.close()

        author = self.answerer or policy.answerer

        async def write(chain: Chain, telling: AnswerStream) -> Step:
            limit = self.budget.left_to_answer(chain)
            return await write_answer(author, chain, limit=limit, stop=self.stop, telling=telling)

        self.early = _EarlyAnswer(
            write, self.telling, lambda: self.thinks and self.ahead.depth() > 0 and not self.by_method
        )
        return await self._reason(policy, self.budget.thinking_seconds, self.stop_rule)

    async def _reason(self, policy: Policy, seconds: float | None, stop_rule: StopRule | None) -> FinishReason:
        """Let *policy* go on until *seconds* of the run are over, to the end of what is its part: see `_over`."""
        try:
            _, end = await reason(
                policy,
                self.chain,
                ahead=self.ahead,
                spent=self.budget.spent,
                deadline=None if seconds is None else self.began + seconds,
                stop_rule=stop_rule,
                observe=self,
                over=self._over,
            )
        except ContextTooLong:
            return "context"
        return _REASONS[end]

    def _over(self, chain: Chain) -> bool:
        return answered(chain, self.stop) if self.by_method and chain.closed else chain.finished

    async def work(self, policy: Policy) -> FinishReason:
        """Let *policy* think and, if that is its part, answer, also where the thinking was cut short."""
        why, closed = await self.think(policy), self.chain.closed
        if not self.by_method or answered(self.chain, self.stop) or (closed and why != "time"):
            return why
        if not closed:
            self(Committed(len(self.chain.steps), closing(self.chain, policy.answerer)))
        cut = await self._reason(policy, self.budget.seconds, None)
        return cut if closed or why == "stop" else why

    async def answer(self) -> tuple[Step | None, FinishReason]:
        """Write the answer; say what cut it short, if anything did."""
        deadline = None if self.budget.seconds is None else self.began + self.budget.seconds
        timeout = asyncio.timeout_at(deadline)
        try:
            async with timeout:
                assert self.early is not None
                step = await self.early.take(self.chain)
        except TimeoutError:
            if not timeout.expired():
                raise
            partial = self.early.partial if self.early is not None else None
            if partial is not None:
                self(Answered(partial))
            return partial, "time"
        except ContextTooLong:
            return None, "context"
        self(Answered(step))
        return step, "length" if step.stop == "length" else "stop"


async def run(
    policy: Policy,
    chain: Chain,
    *,
    budget: Budget,
    ahead: int | LookaheadControl,
    observe: Observer,
    fallback: Policy | None = None,
    thinks: bool = True,
    stop_rule: StopRule | None = None,
    answerer: Model | None = None,
    stop: Sequence[str] = (),
    by_method: bool = False,
) -> Outcome:
    """
    Think with *policy* and let its answerer answer, or *answerer*; models that do not *think* (no thinking block)
    answer as they reason. If their chain shows a thinking block all the same, an answer is written after it. With
    *by_method* the drafts and verdicts of *policy* go on through the answer, whose steps are the chain's last ones.

    The answer is told in pieces and ends before the first of the *stop* strings; what there is of it when the time is
    up counts. *stop_rule* may end the thinking early. If the small model fails for good, *fallback* goes on from what
    is committed. Any other failure passes through.
    """
    began = asyncio.get_running_loop().time()
    by_method = by_method and thinks
    going = _Run(
        chain, budget, LookaheadControl.of(ahead), observe, began, thinks, stop_rule, answerer, stop, by_method
    )
    try:
        try:
            why = await going.work(policy)
        except EndpointUnavailable as exc:
            if fallback is None or exc.role != "small":
                raise
            observe(Degraded("small", str(exc)))
            going.without("small")
            why = await going.work(fallback)
        if not by_method and (thinks or has_thought(going.chain)):
            written, cut = await going.answer()
            text = written.text if written is not None else ""
            why = cut if why == "stop" else why
        else:
            text = (going.chain.parts()[1] if by_method else going.chain).text
            going.aloud.end(text)
    finally:
        await to_the_end(going.close())
    outcome = Outcome(going.chain, said(text, stop), why)
    observe(Finished(why, outcome.answer, asyncio.get_running_loop().time() - began))
    return outcome
