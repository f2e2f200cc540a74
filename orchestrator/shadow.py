"""
Shadow drafts, which measure a method while the large model writes the chain alone.

The method drafts the step that the large model writes, and judges the draft. The draft is never
committed.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

from .chain import Chain
from .concurrency import background, to_the_end
from .events import Decided, Observer, Shadowed
from .interfaces import REQUEST, Policy, RequestContext, start_preparing
from .lookahead import judge


class ShadowDrafts:
    """The shadow drafts of one run, by the method *policy*."""

    def __init__(self, policy: Policy, observe: Observer) -> None:
        self._policy = policy
        self._observe = observe
        self._tasks = list[asyncio.Task[None]]()
        self._failure: Exception | None = None

    def follow(self, decided: Decided | None, chain: Chain) -> None:
        """
        Report *decided*, the decision about the step after *chain*. None: nothing was decided.

        Start a shadow draft of this step if the decision asks for a draft. If an earlier shadow
        draft failed, raise its error, because the method would fail in the same way.
        """
        if self._failure is not None:
            raise self._failure
        if decided is None:
            return
        self._observe(decided)
        if decided.shadow:
            self._tasks.append(asyncio.create_task(self._draft_and_keep_error(chain)))

    async def aclose(self) -> None:
        """Cancel the shadow drafts, and wait until their requests have ended."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await to_the_end(asyncio.wait(self._tasks))

    async def _draft_and_keep_error(self, chain: Chain) -> None:
        """Draft. Keep an error for the next call of `follow`, because nobody awaits this task."""
        try:
            await self._draft(chain)
        except Exception as exc:
            self._failure = exc

    async def _draft(self, chain: Chain) -> None:
        """Draft and judge the step after *chain*, and report the seconds of both."""
        index = len(chain.steps)
        clock = asyncio.get_running_loop().time
        # The requests are bets, because the run does not wait for them.
        draft_request = RequestContext("draft", index, bet=True)
        verdict_request = replace(draft_request, purpose="verify")
        # Some policies prepare their verdict during the draft. This request belongs to the verdict.
        REQUEST.set(verdict_request)
        preparing = start_preparing(self._policy, chain)
        began = clock()
        async with background(*([preparing] if preparing else [])) as prepared:
            REQUEST.set(draft_request)
            draft = await self._policy.draft(chain)
            drafted = clock()
            REQUEST.set(verdict_request)
            verdict = await judge(self._policy, chain, draft, prepared[0] if prepared else None)
        self._observe(Shadowed(index, draft, verdict, drafted - began, clock() - drafted))
