"""
Draft, judge and repair ahead of the committed chain, as if every draft were going to be accepted.

A draft or verdict that assumes the acceptance of an earlier draft is a bet. A rollback loses every
bet that was made on the rejected draft: their requests are cancelled, and the loop starts anew from
the repaired chain.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from contextvars import copy_context
from dataclasses import dataclass, replace
from math import exp
from typing import Any, TypeAlias, TypeVar

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
Pending: TypeAlias = tuple[int, Step, asyncio.Task[Verdict]] | BaseException
"""The index of a draft, the draft, and its verdict; or what ended the drafting."""
AGAIN = 0.125  # seconds after which tasks that go on are cancelled again
# in the place of the draft of which a hedge knows nothing
UNWRITTEN = Step("", "small", "delimiter")


@dataclass(frozen=True, slots=True)
class LookaheadControl:
    """
    Decides how far one run works ahead: how many drafts, past which of them it may go on, which
    repairs start early.

    *ahead* is the number of drafts that may be made beyond the next one to be committed. With 0 the
    run is sequential: one draft, then its verdict; but what a policy can `prepare` for a verdict
    always starts together with the draft. A hedge is a repair that starts before the verdict. A
    draft is hedged if its `confidence` is at most *hedge* (0: none). With a *hedge* of 1 every
    draft is, and the repair starts together with the draft. With *auto* the depth is what it
    decided, and drafts are hedged only where it says so.
    """

    ahead: int = 0
    hedge: float = 0.0
    auto: AutoRun | None = None

    @classmethod
    def of(cls, ahead: int | LookaheadControl) -> LookaheadControl:
        """Turn a number of drafts into a control without hedges."""
        return cls(ahead) if isinstance(ahead, int) else ahead

    def depth(self) -> int:
        """How many drafts may be made ahead at the moment."""
        return self.ahead if self.auto is None else self.auto.ahead

    @property
    def hedging(self) -> float:
        """The confidence up to which drafts are hedged at the moment."""
        return 0.0 if self.auto is not None and not self.auto.hedges else self.hedge

    def hedges(self, draft: Step) -> bool:
        """Whether the repair of *draft* starts before its verdict."""
        if draft.author != "small" or self.hedging <= 0:
            return False
        return 0 < confidence(draft) <= self.hedging


def confidence(step: Step) -> float:
    """
    The geometric mean of the probabilities that the author gave to the tokens of *step*, 0 to 1.
    """
    return (
        exp(sum(token.logprob for token in step.tokens) / len(step.tokens)) if step.tokens else 0.0
    )


class Lookahead:
    """
    Consecutive drafts, each extending the one before, all judged at the same time; the repair of a
    rejected one.

    It works ahead of *chain*, from now on, until that is *over*, its budget *spent*, or it is
    closed.
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
        self._pending: asyncio.Queue[Pending] = asyncio.Queue()
        # index of the first draft; number of calls of next()
        self._first = len(chain.steps)
        self._awaited = 0
        self._wanted = asyncio.Event()
        self._caller_context = copy_context()
        self._caller_request = REQUEST.get()
        self._kept_open = AsyncExitStack()
        self._tasks: set[asyncio.Task[Any]] = set()  # those that have not ended
        # hedges and prepared steps, by the index of the draft
        self._early_repairs: dict[int, asyncio.Task[Step]] = {}
        self._closing: asyncio.Task[None] | None = None
        self._start(self._draft_ahead(chain), self._context("draft", self._first))

    async def next(self) -> tuple[Step, Verdict]:
        """Return the next draft and its verdict."""
        self._awaited += 1
        self._caller_request = REQUEST.get()
        self._wanted.set()
        item = await self._pending.get()
        if isinstance(item, BaseException):
            raise item
        _, draft, judging = item
        return draft, await judging

    async def repair(self, chain: Chain, draft: Step, rollback: Rollback) -> Step:
        """
        Return the repair of *draft*; every bet on it is cancelled while the repair is written.
        """
        started = (
            None
            if rollback.keep or rollback.instead
            else self._early_repairs.pop(len(chain.steps), None)
        )
        self._caller_request = REQUEST.get()
        again = rollback.reason in OBSTACLES
        request = replace(
            self._context("repair", len(chain.steps)), bet=self._caller_request.bet, again=again
        )
        repair = started or self._start(self._policy.repair(chain, draft, rollback), request)
        self._cancel(but=repair)
        self._closing = asyncio.create_task(self._kept_open.aclose())
        return await repair

    async def aclose(self) -> None:
        """
        Cancel every draft and verdict that was not taken, and wait until all their requests are
        gone.
        """
        await to_the_end(self._close())

    async def _close(self) -> None:
        while self._tasks:
            # A task whose own timeout fired during a cancellation may have survived.
            self._cancel()
            await asyncio.wait(self._tasks, timeout=AGAIN)
        await (self._closing or self._kept_open.aclose())
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
        """
        The context of a request about step *index*.

        It is a bet if nobody waits for that step yet, or if this run is a bet of the run around it
        (a nested pair).
        """
        bet = self._caller_request.bet or index - self._first >= self._awaited
        return RequestContext(
            purpose, self._caller_request.step if self._caller_request.purpose else index, bet
        )

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
            # The failure of a lost bet does not matter: reading it silences asyncio's warning.
            task.exception()

    async def _draft_ahead(self, chain: Chain) -> None:
        """
        Make one draft after the other, as far ahead as the control allows, and start the verdict on
        each.
        """
        try:
            while not (self._over(chain) or self._spent(chain)):
                index = len(chain.steps)
                await self._turn(index - self._first)
                prepared: asyncio.Task[Step] | None = None
                if (preparing := prepare(self._policy, chain)) is not None:
                    prepared = self._early_repairs[index] = self._start(
                        preparing, self._context("verify", index)
                    )
                elif self._control.hedging >= 1:
                    self._hedge(index, chain)
                REQUEST.set(self._context("draft", index))
                draft = await self._policy.draft(chain)
                self._observe(Drafted(index, draft))
                judging = self._start(
                    self._verify(index, chain, draft, prepared), self._context("verify", index)
                )
                self._pending.put_nowait((index, draft, judging))
                chain = chain.extend(draft)
            raise EOFError("nothing is left to draft: the chain is over or its budget spent")
        except (Exception, asyncio.CancelledError) as exc:
            # next() raises it if the bet is won; of a lost bet it does not matter.
            self._pending.put_nowait(exc)

    async def _turn(self, number: int) -> None:
        """Wait until the lookahead reaches draft *number*."""
        depth = self._control.depth()
        KEPT_OPEN.set(self._kept_open if depth else None)
        while number >= self._awaited + depth:
            self._wanted.clear()
            await self._wanted.wait()
            depth = self._control.depth()

    def _hedge(self, index: int, chain: Chain) -> None:
        """Start the repair of the draft of step *index*, which may not be written yet."""
        if index not in self._early_repairs and foreseeable(self._policy):
            repair = self._policy.repair(chain, UNWRITTEN, Rollback(reason="hedge"))
            self._early_repairs[index] = self._start(
                repair, replace(self._context("hedge", index), bet=True)
            )

    async def _verify(
        self, index: int, chain: Chain, draft: Step, prepared: asyncio.Task[Step] | None
    ) -> Verdict:
        if (
            prepared is None
            and self._control.hedges(draft)
            and not _flaw(self._policy, chain, draft)
        ):
            self._hedge(index, chain)
        verdict = await judge(self._policy, chain, draft, prepared)
        # see `again`
        useless = isinstance(verdict, Accept) or (prepared is None and verdict.reason in OBSTACLES)
        if useless and index in self._early_repairs:
            self._early_repairs.pop(index).cancel()
        self._observe(Judged(index, draft, verdict))
        return verdict


def _flaw(policy: Policy, chain: Chain, draft: Step) -> str:
    """Why *draft* is rejected without a verdict; "" if it is not."""
    return obstacle(chain, draft) if guarded(policy) else ""


async def judge(
    policy: Policy, chain: Chain, draft: Step, prepared: asyncio.Task[Step] | None
) -> Verdict:
    """
    Return the verdict of *policy* on *draft*. A judge that is unavailable or has no room accepts
    nothing.
    """
    if reason := _flaw(policy, chain, draft):
        return Rollback(reason=reason)
    if draft.stop == "delimiter" and not draft.text.strip():
        return Accept()  # There is nothing to judge.
    try:
        return await verify(policy, chain, draft, prepared)
    except (EndpointUnavailable, ContextTooLong) as exc:
        # where nothing can be written, nothing is repaired
        if exc.verb == "write" or isinstance(exc, VerifierFailed):
            raise
        return Rollback(reason="no verdict")
