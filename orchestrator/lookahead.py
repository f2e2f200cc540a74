"""
Draft, judge and repair ahead of the committed chain, as if every draft were going to be accepted.

A draft or a verdict is a bet if it becomes useless when an earlier draft is rejected. When this
happens, the bet is lost: its requests are cancelled, and the loop starts anew from the repaired
chain. A hedge is a repair that starts before the verdict on its draft. It is a bet, too: it becomes
useless when its draft is accepted.
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
    OPEN_REQUESTS,
    REQUEST,
    Policy,
    RequestContext,
    loop_guard,
    repair_may_start_early,
    start_preparing,
    verdict_of,
)
from .repetition import UNJUDGED_REASONS

T = TypeVar("T")
SECONDS_TO_CANCEL_AGAIN = 0.125
"""How long to wait for cancelled tasks. Then tasks without a pending cancel are cancelled."""
NO_DRAFT = Step("", "small", "delimiter")
"""Takes the place of the draft in a hedge, which must not depend on the draft."""


@dataclass(frozen=True, slots=True)
class PendingDraft:
    """A draft that is being judged."""

    index: int
    """The index that the draft has as a step of the chain."""
    draft: Step
    """The draft."""
    judging: asyncio.Task[Verdict]
    """The task that returns the verdict on the draft."""


@dataclass(frozen=True, slots=True)
class LookaheadControl:
    """How many drafts one run makes ahead, and which repairs start early (hedges)."""

    ahead: int = 0
    """
    The number of drafts that may be made after the draft that the run waits for.

    With 0 the run is sequential: one draft, then its verdict. Even with 0, a policy that writes its
    own version of each step (`Preparing`) writes it at the same time as the draft.
    """
    hedge: float = 0.0
    """
    A draft is hedged if its `confidence` is at most this. 0 hedges no draft.

    1 hedges every draft: the repair starts together with the draft.
    """
    auto: AutoRun | None = None
    """
    Replaces `ahead` at every step, and may forbid hedges. None: `ahead` and `hedge` hold.
    """

    @classmethod
    def of(cls, ahead: int | LookaheadControl) -> LookaheadControl:
        """Return the control *ahead*. A number becomes a control without hedges."""
        if isinstance(ahead, int):
            return cls(ahead)
        return ahead

    def depth(self) -> int:
        """Return how many drafts may be made ahead now."""
        if self.auto is None:
            return self.ahead
        return self.auto.ahead

    @property
    def hedge_limit(self) -> float:
        """The highest confidence of a draft that is hedged now."""
        if self.auto is not None and not self.auto.may_hedge:
            return 0.0
        return self.hedge

    def should_hedge(self, draft: Step) -> bool:
        """Whether the repair of *draft* starts before the verdict on the draft."""
        if draft.author != "small":
            return False
        # A confidence of 0 means that the server reported no probabilities.
        return 0 < confidence(draft) <= self.hedge_limit


def confidence(step: Step) -> float:
    """
    Return how sure the author of *step* was of the text, from 0 to 1.

    The confidence is the geometric mean of the probabilities of the tokens. It is 0 for a step
    without tokens.
    """
    if not step.tokens:
        return 0.0
    return exp(sum(token.logprob for token in step.tokens) / len(step.tokens))


class Lookahead:
    """
    Drafts consecutive steps, judges them at the same time, and repairs a rejected draft.

    The constructor starts a task that makes the drafts. If no draft may be made ahead, the task
    waits for the first call of `next`. *over* and *spent* get one argument: the chain,
    extended by all drafts. Drafting ends as soon as one of them returns true, a draft fails, or
    `repair` or `aclose` is called.
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
        """The drafts that `next` has not returned. The last entry says why the drafting ended."""
        self._first = len(chain.steps)
        """The index of the first draft."""
        self._awaited = 0
        """How often `next` was called: each call awaits one draft."""
        self._wanted = asyncio.Event()
        """Wakes the drafting when `next` is called."""
        self._caller_context = copy_context()
        """The context variables of the run. Every task starts with a copy of them."""
        self._open_requests = AsyncExitStack()
        """The requests that models leave open between two writes (`OPEN_REQUESTS`)."""
        self._tasks: dict[asyncio.Task[Any], None] = {}
        """
        The tasks that have not ended, in the order of their start.

        They are cancelled in this order. In a set, the order of the events would depend on memory
        addresses.
        """
        self._early_repairs: dict[int, asyncio.Task[Step]] = {}
        """Hedges, and steps that the policy prepared (`Preparing`), by the index of the draft."""
        self._closing: asyncio.Task[None] | None = None
        """The task that closes `_open_requests` after a rollback. None: there was no rollback."""
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

        All later drafts and their verdicts are cancelled while the repair is written.
        """
        index = len(chain.steps)
        repair: asyncio.Task[Step] | None = None
        # An early repair replaces the whole draft. It is useless if a beginning of the draft stays
        # (`keep`), or if the policy has already written the repair (`instead`).
        if not (rollback.keep or rollback.instead):
            repair = self._early_repairs.pop(index, None)
        if repair is None:
            # The run waits for this repair, so the repair is no bet.
            request = RequestContext("repair", index, new_seed=rollback.reason in UNJUDGED_REASONS)
            repair = self._start(self._policy.repair(chain, draft, rollback), request)
        self._cancel(but=repair)
        self._closing = asyncio.create_task(self._open_requests.aclose())
        return await repair

    async def aclose(self) -> None:
        """Cancel all tasks, close all requests, and report drafts that `next` has not returned."""
        await to_the_end(self._close())

    async def _close(self) -> None:
        while self._tasks:
            # A task whose own timeout has just fired counts as cancelled, so `_cancel` skips it.
            # The task gets only a `TimeoutError`, and may go on. `_cancel` of the next round
            # cancels it.
            self._cancel()
            await asyncio.wait(self._tasks, timeout=SECONDS_TO_CANCEL_AGAIN)
        await (self._closing or self._open_requests.aclose())
        while not self._pending.empty():
            pending = self._pending.get_nowait()
            if isinstance(pending, PendingDraft):
                self._observe(Lost(pending.index, pending.draft))

    def _cancel(self, but: asyncio.Task[Step] | None = None) -> None:
        """
        Cancel all tasks except *but*. Skip a task that has a pending cancellation.

        A second cancellation would interrupt the task while it closes its request.
        """
        for task in self._tasks:
            if task is not but and not task.cancelling():
                task.cancel()

    def _context(self, purpose: Purpose, index: int) -> RequestContext:
        """
        Return the context of a request about step *index*.

        The request is a bet until `next` is called for this step.
        """
        is_awaited = index < self._first + self._awaited
        return RequestContext(purpose, index, bet=not is_awaited)

    def _start(self, work: Coroutine[Any, Any, T], request: RequestContext) -> asyncio.Task[T]:
        """Start a task that does *work*. Its requests have the context *request*."""
        context = self._caller_context.copy()
        context.run(REQUEST.set, request)
        task = asyncio.create_task(work, context=context)
        self._tasks[task] = None
        task.add_done_callback(self._forget)
        return task

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled():
            # The error of a lost bet does not matter. Reading the error silences asyncio's warning.
            task.exception()

    async def _draft_ahead(self, chain: Chain) -> None:
        """Make one draft after the other, and start the verdict on each."""
        try:
            while not (self._over(chain) or self._spent(chain)):
                index = len(chain.steps)
                # Requests stay open only if drafts are made ahead, because only then the next draft
                # comes soon.
                OPEN_REQUESTS.set(self._open_requests if self._control.depth() else None)
                await self._wait_for_turn(index - self._first)
                prepared = self._prepare(index, chain)
                if prepared is None and self._control.hedge_limit >= 1:
                    self._start_hedge(index, chain)
                REQUEST.set(self._context("draft", index))
                draft = await self._policy.draft(chain)
                self._observe(Drafted(index, draft))
                judging = self._start(
                    self._verify(index, chain, draft, prepared),
                    self._context("verify", index),
                )
                self._pending.put_nowait(PendingDraft(index, draft, judging))
                chain = chain.extend(draft)
        except (Exception, asyncio.CancelledError) as exc:
            # `next` may be waiting, so this task must not end without an entry. `next` raises the
            # error after it has returned all earlier drafts.
            self._pending.put_nowait(exc)
        else:
            self._pending.put_nowait(
                EOFError("nothing is left to draft: the chain is over or its budget spent")
            )

    async def _wait_for_turn(self, number: int) -> None:
        """Wait until draft *number* can be made. The first draft has the number 0."""
        while number >= self._awaited + self._control.depth():
            self._wanted.clear()
            await self._wanted.wait()

    def _prepare(self, index: int, chain: Chain) -> asyncio.Task[Step] | None:
        """
        Start the policy's own version of step *index*, for the comparison with the draft.

        Return None if the policy writes no own version.
        """
        preparing = start_preparing(self._policy, chain)
        if preparing is None:
            return None
        prepared = self._start(preparing, self._context("verify", index))
        self._early_repairs[index] = prepared
        return prepared

    def _start_hedge(self, index: int, chain: Chain) -> None:
        """Start the repair of step *index* early, with the draft or during its verdict."""
        if index not in self._early_repairs and repair_may_start_early(self._policy, chain):
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
        """Judge the *draft* of step *index*, and report the verdict. Start a hedge if needed."""
        should_hedge = prepared is None and self._control.should_hedge(draft)
        if should_hedge and not _obstacle(self._policy, chain, draft):
            self._start_hedge(index, chain)
        verdict = await judge(self._policy, chain, draft, prepared)
        # An accepted draft needs no repair. An empty or looping draft needs a repair with a new
        # seed (`RequestContext.new_seed`), which its hedge does not have. If the policy prepared
        # its own version of the step, this version is the repair.
        drops_early_repair = isinstance(verdict, Accept) or (
            prepared is None and verdict.reason in UNJUDGED_REASONS
        )
        if drops_early_repair and index in self._early_repairs:
            self._early_repairs.pop(index).cancel()
        self._observe(Judged(index, draft, verdict))
        return verdict


def _obstacle(policy: Policy, chain: Chain, draft: Step) -> str:
    """Return why *draft* is rejected without asking *policy*. "": the policy has to judge it."""
    guard = loop_guard(policy)
    if guard is None:
        return ""
    return guard.obstacle(chain, draft)


async def judge(
    policy: Policy,
    chain: Chain,
    draft: Step,
    prepared: asyncio.Task[Step] | None,
) -> Verdict:
    """
    Return the verdict of *policy* on *draft*.

    If the judge is unavailable, or the chain is too long for its context, the draft is rejected.
    Raise `VerifierFailed` if a verifier failed and the settings name no substitute for it. Some
    policies write text during `verify`. If the writing fails, raise its error, because the repair
    would fail as well.
    """
    if reason := _obstacle(policy, chain, draft):
        return Rollback(reason=reason)
    if draft.stop == "delimiter" and not draft.text.strip():
        return Accept(judged=False)  # White space only: there is nothing to judge.
    try:
        return await verdict_of(policy, chain, draft, prepared)
    except (EndpointUnavailable, ContextTooLong) as exc:
        writing_failed = exc.verb == "write"
        if writing_failed or isinstance(exc, VerifierFailed):
            raise
        return Rollback(reason="no verdict")
