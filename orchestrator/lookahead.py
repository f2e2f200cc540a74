"""Draft and judge ahead of what is committed, as if every draft were going to be accepted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from contextvars import copy_context

from .chain import Chain, Rollback, Step, Verdict
from .events import Drafted, Judged, Lost, Observer
from .interfaces import KEPT_OPEN, Policy
from .repetition import obstacle

Judgement = tuple[Step, Verdict]


@asynccontextmanager
async def run_ahead(
    policy: Policy, chain: Chain, *, depth: int, spent: Callable[[Chain], bool], observe: Observer
) -> AsyncGenerator[Callable[[], Awaitable[Judgement]]]:
    """
    Yield ``next_judged()``, which returns consecutive drafts with their verdicts, each extending the one before.

    At most *depth* drafts are made beyond the one last asked for; all of them are judged at the same time. 0 works on
    demand: one draft, then its verdict. Leaving the block cancels every bet that was not taken, closes the requests
    that were kept open for them, and waits until they are gone.
    """
    pending: asyncio.Queue[tuple[int, Step, asyncio.Task[Verdict]] | BaseException] = asyncio.Queue()
    permits = asyncio.Semaphore(depth)
    judges: list[asyncio.Task[Verdict]] = []
    outside = copy_context()

    async def verify(index: int, chain: Chain, draft: Step) -> Verdict:
        reason = obstacle(chain, draft)
        verdict = Rollback(reason=reason) if reason else await policy.verify(chain, draft)
        observe(Judged(index, draft, verdict))
        return verdict

    async def bet(chain: Chain, kept_open: AsyncExitStack | None) -> None:
        KEPT_OPEN.set(kept_open)
        try:
            while not (chain.finished or spent(chain)):
                await permits.acquire()
                draft = await policy.draft(chain)
                index = len(chain.steps)
                observe(Drafted(index, draft))
                judges.append(asyncio.create_task(verify(index, chain, draft), context=outside.copy()))
                pending.put_nowait((index, draft, judges[-1]))
                chain = chain.extend(draft)
            raise EOFError("nothing is left to draft: the chain is finished or its budget spent")
        except (Exception, asyncio.CancelledError) as exc:
            pending.put_nowait(exc)  # A lost bet's failure is nobody's; a won one's raises in next_judged().

    async def next_judged() -> Judgement:
        permits.release()
        item = await pending.get()
        if isinstance(item, BaseException):
            raise item
        _, draft, judge = item
        return draft, await judge

    async def leave() -> None:
        await _cancel(betting, *judges)
        await kept_open.aclose()
        while not pending.empty():
            item = pending.get_nowait()
            if not isinstance(item, BaseException):
                observe(Lost(item[0], item[1]))

    kept_open = AsyncExitStack()
    betting = asyncio.create_task(bet(chain, kept_open if depth else None))
    try:
        yield next_judged
    finally:
        await _to_the_end(leave())


async def _to_the_end(work: Coroutine[object, object, None]) -> None:
    """Wait until *work* is done, even if cancelled meanwhile: a deadline may pass while requests are being closed."""
    working, cancelled = asyncio.create_task(work), None
    while not working.done():
        try:
            await asyncio.wait([working])
        except asyncio.CancelledError as exc:
            cancelled = exc
    working.result()
    if cancelled:
        raise cancelled


async def _cancel(*tasks: asyncio.Task[None] | asyncio.Task[Verdict]) -> None:
    """Cancel *tasks*, wait until they are gone, and read the failures of lost bets, so that nobody warns of them."""
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    for task in tasks:
        if not task.cancelled():
            task.exception()
