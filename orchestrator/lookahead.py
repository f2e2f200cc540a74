"""
Draft, judge and repair ahead of the committed chain, as if every draft were going to be accepted.

A draft or a verdict that needs an earlier draft to be accepted is a bet. A rollback loses every bet
on the rejected draft: the requests of these bets are cancelled, and the loop starts anew from the
repaired chain.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from contextvars import copy_context
from dataclasses import dataclass, replace
from math import exp
from typing import Any, TypeVar

from .auto import AutoRun
from .chain import Accept, Chain, Rollback, Step, Verdict
from .concurrency import to_the_end
from .errors import ContextTooLong, EndpointUnavailable, VerifierFailed
from .events import Drafted, Judged, Lost, Observer, Purpose
from .interfaces import (
    KEPT_OPEN,
    REQUEST,
    Policy,
    RequestContext,
    foreseeable,
    guarded,
    prepare,
    verify,
)
from .repetition import OBSTACLES, obstacle

T = TypeVar("T")
SECONDS_TO_CANCEL_AGAIN = 0.125
"""How long tasks may go on after they were cancelled."""
NO_DRAFT = Step("", "small", "delimiter")
"""What a repair replaces that starts before the draft is known."""


@dataclass(frozen=True, slots=True)
class PendingDraft:
    """A draft that is being judged."""

    index: int
    """The index of its step in the chain."""
    draft: Step
    """The draft."""
    judging: asyncio.Task[Verdict]
    """The task that returns its verdict."""


@dataclass(frozen=True, slots=True)
class LookaheadControl:
    """
    How far one run works ahead, and which repairs start early.

    A hedge is a repair that starts before the verdict on its draft.
    """

    ahead: int = 0
    """
    The number of drafts that may be made beyond the next one to be committed.

    With 0 the run is sequential: one draft, then its verdict. What a policy can `prepare` for a
    verdict starts together with the draft all the same.
    """
    hedge: float = 0.0
    """
    The `confidence` up to which a draft is hedged; 0 hedges none.

    1 hedges every draft, and the repair starts together with the draft.
    """
    auto: AutoRun | None = None
    """What decides the depth and whether to hedge, step by step. None: the values above hold."""

    @classmethod
    def of(cls, ahead: int | LookaheadControl) -> LookaheadControl:
        """Turn a number of drafts into a control without hedges."""
        if isinstance(ahead, int):
            return cls(ahead)
        return ahead

    def depth(self) -> int:
        """Return how many drafts may be made ahead at the moment."""
        if self.auto is None:
            return self.ahead
        return self.auto.ahead

    @property
    def hedging(self) -> float:
        """The confidence up to which drafts are hedged at the moment."""
        if self.auto is not None and not self.auto.may_hedge:
            return 0.0
        return self.hedge

    def hedges(self, draft: Step) -> bool:
        """Whether the repair of *draft* starts before its verdict."""
        if draft.author != "small" or self.hedging <= 0:
            return False
        return 0 < confidence(draft) <= self.hedging


def confidence(step: Step) -> float:
    """
    Return how sure the author of *step* was of it, from 0 to 1.

    It is the geometric mean of the probabilities of the tokens; 0 without tokens.
    """
    if not step.tokens:
        return 0.0
    return exp(sum(token.logprob for token in step.tokens) / len(step.tokens))


class Lookahead:
    """
    Consecutive drafts, which are judged at the same time, and the repair of a rejected one.

    Drafting begins at once. It ends when the drafted chain is *over*, when its budget is *spent*,
    and when the lookahead is closed.
    """

    def __init__(
        self,
        policy: Policy,
        chain: Chain,
        *,
        control: LookaheadControl,
        spent: Callable[[Chain], bool],
        observe: Observer,
        over: Callable[[Chain], bool],
    ) -> None:
        self._policy = policy
        self._control = control
        self._observe = observe
        self._spent = spent
        self._over = over
        self._pending: asyncio.Queue[PendingDraft | BaseException] = asyncio.Queue()
        """The drafts that `next` has not returned, then what ended the drafting."""
        self._first = len(chain.steps)
        """The index of the first draft."""
        self._awaited = 0
        """The number of calls of `next`."""
        self._wanted = asyncio.Event()
        self._caller_context = copy_context()
        self._kept_open = AsyncExitStack()
        """The requests that models leave open between two writes."""
        self._tasks: set[asyncio.Task[Any]] = set()
        """The tasks that have not ended."""
        self._early_repairs: dict[int, asyncio.Task[Step]] = {}
        """Hedges and prepared steps, by the index of the draft."""
        self._closing: asyncio.Task[None] | None = None
        """The task that closes the requests that were left open."""
        self._start(self._draft_ahead(chain), self._context("draft", self._first))

    async def next(self) -> tuple[Step, Verdict]:
        """Return the next draft and its verdict."""
        self._awaited += 1
        self._wanted.set()
        pending = await self._pending.get()
        if isinstance(pending, BaseException):
            raise pending
        return pending.draft, await pending.judging

    async def repair(self, chain: Chain, draft: Step, rollback: Rollback) -> Step:
        """
        Return the repair of *draft*.

        Every bet on the draft is cancelled while the repair is written.
        """
        index = len(chain.steps)
        repair: asyncio.Task[Step] | None = None
        if not (rollback.keep or rollback.instead):
            repair = self._early_repairs.pop(index, None)
        if repair is None:
            request = RequestContext("repair", index, again=rollback.reason in OBSTACLES)
            repair = self._start(self._policy.repair(chain, draft, rollback), request)
        self._cancel(but=repair)
        self._closing = asyncio.create_task(self._kept_open.aclose())
        return await repair

    async def aclose(self) -> None:
        """Cancel what was not taken, and wait until all requests are gone."""
        await to_the_end(self._close())

    async def _close(self) -> None:
        while self._tasks:
            # A task whose own timeout fired during a cancellation may have survived.
            self._cancel()
            await asyncio.wait(self._tasks, timeout=SECONDS_TO_CANCEL_AGAIN)
        await (self._closing or self._kept_open.aclose())
        while not self._pending.empty():
            pending = self._pending.get_nowait()
            if isinstance(pending, PendingDraft):
                self._observe(Lost(pending.index, pending.draft))

    def _cancel(self, but: asyncio.Task[Step] | None = None) -> None:
        """Cancel every task once. A second time would interrupt the closing of its request."""
        for task in self._tasks:
            if task is not but and not task.cancelling():
                task.cancel()

    def _context(self, purpose: Purpose, index: int) -> RequestContext:
        """Return the context of a request about step *index*: a bet if nobody waits for it."""
        return RequestContext(purpose, index, bet=index - self._first >= self._awaited)

    def _start(self, work: Coroutine[Any, Any, T], request: RequestContext) -> asyncio.Task[T]:
        context = self._caller_context.copy()
        context.run(REQUEST.set, request)
        task = asyncio.create_task(work, context=context)
        self._tasks.add(task)
        task.add_done_callback(self._forget)
        return task

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            # The failure of a lost bet does not matter. Reading it silences asyncio's warning.
            task.exception()

    async def _draft_ahead(self, chain: Chain) -> None:
        """Make one draft after the other, and start the verdict on each."""
        try:
            while not (self._over(chain) or self._spent(chain)):
                index = len(chain.steps)
                await self._turn(index - self._first)
                prepared = self._prepare(index, chain)
                if prepared is None and self._control.hedging >= 1:
                    self._hedge(index, chain)
                REQUEST.set(self._context("draft", index))
                draft = await self._policy.draft(chain)
                self._observe(Drafted(index, draft))
                judging = self._start(
                    self._verify(index, chain, draft, prepared), self._context("verify", index)
                )
                self._pending.put_nowait(PendingDraft(index, draft, judging))
                chain = chain.extend(draft)
            raise EOFError("nothing is left to draft: the chain is over or its budget spent")
        except (Exception, asyncio.CancelledError) as exc:
            # next() raises it if the bet is won. The failure of a lost bet does not matter.
            self._pending.put_nowait(exc)

    async def _turn(self, number: int) -> None:
        """Wait until the lookahead reaches draft *number*."""
        depth = self._control.depth()
        KEPT_OPEN.set(self._kept_open if depth else None)
        while number >= self._awaited + depth:
            self._wanted.clear()
            await self._wanted.wait()
            depth = self._control.depth()

    def _prepare(self, index: int, chain: Chain) -> asyncio.Task[Step] | None:
        """Start the step that the draft of step *index* is compared with; None if there is none."""
        preparing = prepare(self._policy, chain)
        if preparing is None:
            return None
        prepared = self._start(preparing, self._context("verify", index))
        self._early_repairs[index] = prepared
        return prepared

    def _hedge(self, index: int, chain: Chain) -> None:
        """Start the repair of the draft of step *index*, which may not be written yet."""
        if index not in self._early_repairs and foreseeable(self._policy):
            repair = self._policy.repair(chain, NO_DRAFT, Rollback(reason="hedge"))
            request = replace(self._context("hedge", index), bet=True)
            self._early_repairs[index] = self._start(repair, request)

    async def _verify(
        self,
        index: int,
        chain: Chain,
        draft: Step,
        prepared: asyncio.Task[Step] | None,
    ) -> Verdict:
        hedged = prepared is None and self._control.hedges(draft)
        if hedged and not _obstacle(self._policy, chain, draft):
            self._hedge(index, chain)
        verdict = await judge(self._policy, chain, draft, prepared)
        # An empty or looping draft needs a repair with another seed (`RequestContext.again`).
        useless = isinstance(verdict, Accept) or (prepared is None and verdict.reason in OBSTACLES)
        if useless and index in self._early_repairs:
            self._early_repairs.pop(index).cancel()
        self._observe(Judged(index, draft, verdict))
        return verdict


def _obstacle(policy: Policy, chain: Chain, draft: Step) -> str:
    """Return why *draft* is rejected without a verdict; "" if it is not."""
    if guarded(policy):
        return obstacle(chain, draft)
    return ""


async def judge(
    policy: Policy,
    chain: Chain,
    draft: Step,
    prepared: asyncio.Task[Step] | None,
) -> Verdict:
    """
    Return the verdict of *policy* on *draft*.

    A judge that is unavailable or has no room accepts nothing. Raise the failure of a verifier that
    has no fallback, and the failure to write, after which nothing can be repaired.
    """
    if reason := _obstacle(policy, chain, draft):
        return Rollback(reason=reason)
    if draft.stop == "delimiter" and not draft.text.strip():
        return Accept(judged=False)  # There is nothing to judge.
    try:
        return await verify(policy, chain, draft, prepared)
    except (EndpointUnavailable, ContextTooLong) as exc:
        if exc.verb == "write" or isinstance(exc, VerifierFailed):
            raise
        return Rollback(reason="no verdict")
