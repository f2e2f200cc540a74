"""Draft, judge and repair ahead of what is committed, as if every draft were going to be accepted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from contextvars import copy_context
from dataclasses import dataclass, replace
from math import exp
from typing import Any, TypeVar

from .chain import Accept, Chain, Rollback, Step, Verdict
from .concurrency import to_the_end
from .errors import EndpointUnavailable
from .events import Drafted, Judged, Lost, Observer, Purpose
from .interfaces import (
    KEPT_OPEN,
    REQUEST,
    Policy,
    RequestContext,
    foreseeable,
    prepare,
    verify,
)
from .repetition import obstacle

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class LookaheadControl:
    """
    How far to work ahead of what is committed.

    *depth* returns how many drafts may be made beyond the one to be committed next; 0 works on demand: one draft, then
    its verdict. What a policy can `prepare` for a verdict begins with the draft, whatever the depth. A repair is begun
    before the verdict (a hedge) where the draft's tokens had a mean probability of *hedge* at most: 0 never, 1 always.
    *calm* says whether hedges are welcome at the moment. No bet is made beyond a draft that does not *carry* one.
    """

    depth: Callable[[], int] = lambda: 0
    hedge: float = 0.0
    calm: Callable[[], bool] = lambda: True
    carries: Callable[[Step], bool] = lambda draft: True

    @classmethod
    def of(cls, ahead: int | LookaheadControl) -> LookaheadControl:
        """Make a plain number of drafts the constant depth, without hedges."""
        return cls(lambda: ahead) if isinstance(ahead, int) else ahead

    def doubts(self, draft: Step) -> bool:
        """Whether *draft* is worth a hedge."""
        hedged = self.hedge > 0 and draft.author == "small" and bool(draft.tokens)
        return hedged and confidence(draft) <= self.hedge and self.calm()


def confidence(step: Step) -> float:
    """The geometric mean of the probabilities that the author gave to the tokens of *step*, 0 to 1."""
    return exp(sum(token.logprob for token in step.tokens) / len(step.tokens)) if step.tokens else 0.0


def thought(chain: Chain) -> bool:
    """Whether the thinking of *chain* is over, and with it the chain of those that do not answer."""
    return chain.finished


@asynccontextmanager
async def run_ahead(
    policy: Policy,
    chain: Chain,
    *,
    ahead: LookaheadControl,
    spent: Callable[[Chain], bool],
    observe: Observer,
    over: Callable[[Chain], bool] = thought,
) -> AsyncGenerator[Lookahead]:
    """
    Work ahead of *chain*, until one is *over*. Leaving the block cancels everything that was not taken, closes the
    requests that were kept open, and waits until they are gone.
    """
    working = Lookahead(policy, chain, ahead, spent, observe, over)
    try:
        yield working
    finally:
        await to_the_end(working.leave())


class Lookahead:
    """Consecutive drafts, each extending the one before, all judged at the same time, and the repair of the last."""

    def __init__(
        self,
        policy: Policy,
        chain: Chain,
        ahead: LookaheadControl,
        spent: Callable[[Chain], bool],
        observe: Observer,
        over: Callable[[Chain], bool] = thought,
    ) -> None:
        self._policy, self._ahead, self._observe = policy, ahead, observe
        self._spent, self._over = spent, over
        self._pending: asyncio.Queue[tuple[int, Step, asyncio.Task[Verdict]] | BaseException] = asyncio.Queue()
        self._first, self._asked = len(chain.steps), 0
        self._wanted = asyncio.Event()
        self._outside, self._outer = copy_context(), REQUEST.get()
        self._kept_open = AsyncExitStack()
        self._tasks: list[asyncio.Task[Any]] = []
        self._hedged: dict[int, asyncio.Task[Step]] = {}
        self._closing: asyncio.Task[None] | None = None
        self._betting = self._start(self._bet(chain), self._context("draft", self._first))

    async def next(self) -> tuple[Step, Verdict]:
        """Return the next draft and its verdict."""
        self._asked += 1
        self._outer = REQUEST.get()
        self._wanted.set()
        item = await self._pending.get()
        if isinstance(item, BaseException):
            raise item
        _, draft, judge = item
        return draft, await judge

    async def repair(self, chain: Chain, draft: Step, rollback: Rollback) -> Step:
        """Return the repair of *draft*; every bet on it is cancelled while the repair is written."""
        hedge = None if rollback.keep or rollback.instead else self._hedged.pop(len(chain.steps), None)
        self._outer = REQUEST.get()
        request = replace(self._context("repair", len(chain.steps)), bet=self._outer.bet)
        repair = hedge or self._start(self._policy.repair(chain, draft, rollback), request)
        self._cancel(but=repair)
        self._closing = asyncio.create_task(self._kept_open.aclose())
        return await repair

    async def leave(self) -> None:
        """Cancel what is still going on, and wait until it is gone."""
        self._cancel()
        await asyncio.wait(self._tasks)
        await (self._closing or self._kept_open.aclose())
        for task in self._tasks:
            if not task.cancelled():
                task.exception()  # A lost bet's failure is nobody's: read it, so that nobody warns of it.
        while not self._pending.empty():
            item = self._pending.get_nowait()
            if not isinstance(item, BaseException):
                self._observe(Lost(item[0], item[1]))

    def _cancel(self, but: asyncio.Task[Step] | None = None) -> None:
        """Cancel every task once: a second time would interrupt the closing of its request."""
        for task in self._tasks:
            if task is not but and not task.cancelling():
                task.cancel()

    def _context(self, purpose: Purpose, index: int) -> RequestContext:
        """Why a model is called about step *index*: a bet, unless the loop waits for that step and is in no bet."""
        bet = self._outer.bet or index - self._first >= self._asked
        return RequestContext(purpose, self._outer.step if self._outer.purpose else index, bet)

    def _start(self, work: Coroutine[Any, Any, T], request: RequestContext) -> asyncio.Task[T]:
        context = self._outside.copy()
        context.run(REQUEST.set, request)
        task = asyncio.create_task(work, context=context)
        self._tasks.append(task)
        return task

    async def _bet(self, chain: Chain) -> None:
        carried = True
        try:
            while not (self._over(chain) or self._spent(chain)):
                index = len(chain.steps)
                await self._turn(index - self._first, carried=carried)
                if (preparing := prepare(self._policy, chain)) is not None:
                    self._hedged[index] = self._start(preparing, self._context("verify", index))
                REQUEST.set(self._context("draft", index))
                draft = await self._policy.draft(chain)
                self._observe(Drafted(index, draft))
                verifying = self._verify(index, chain, draft, self._hedged.get(index))
                judge = self._start(verifying, self._context("verify", index))
                self._pending.put_nowait((index, draft, judge))
                chain, carried = chain.extend(draft), self._ahead.carries(draft)
            raise EOFError("nothing is left to draft: the chain is over or its budget spent")
        except (Exception, asyncio.CancelledError) as exc:
            self._pending.put_nowait(exc)  # A lost bet's failure is nobody's; a won one's raises in next().

    async def _turn(self, number: int, *, carried: bool) -> None:
        """Wait until draft *number* may be made; if the one before does not carry it, until that one is committed."""
        depth = self._ahead.depth()
        KEPT_OPEN.set(self._kept_open if depth else None)
        while number >= self._asked + depth * carried:
            self._wanted.clear()
            await self._wanted.wait()
            depth = self._ahead.depth()

    async def _judge(self, chain: Chain, draft: Step, prepared: asyncio.Task[Step] | None) -> Verdict:
        """Ask the policy; a judge that fails for good approves of nothing."""
        try:
            return await verify(self._policy, chain, draft, prepared)
        except EndpointUnavailable as exc:
            if exc.verb == "write":
                raise
            return Rollback(reason="no verdict")

    async def _verify(self, index: int, chain: Chain, draft: Step, prepared: asyncio.Task[Step] | None) -> Verdict:
        reason = obstacle(chain, draft)
        if not (reason or prepared) and foreseeable(self._policy) and self._ahead.doubts(draft):
            hedge = replace(self._context("hedge", index), bet=True)
            self._hedged[index] = self._start(self._policy.repair(chain, draft, Rollback(reason="hedge")), hedge)
        if chain.finished and not draft.text.strip() and draft.stop == "delimiter":
            verdict: Verdict = Accept()  # the blank line before an answer
        else:
            verdict = Rollback(reason=reason) if reason else await self._judge(chain, draft, prepared)
        if isinstance(verdict, Accept) and index in self._hedged:
            self._hedged.pop(index).cancel()
        self._observe(Judged(index, draft, verdict))
        return verdict
