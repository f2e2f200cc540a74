"""
Shadow drafts: a method drafts and judges what the large model writes anyway, is measured, and never
used.
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
    """The shadow drafts of *policy* in one run."""

    def __init__(self, policy: Policy, observe: Observer) -> None:
        self._policy = policy
        self._observe = observe
        self._tasks = list[asyncio.Task[None]]()
        self._failure: Exception | None = None

    def follow(self, decided: Decided | None, chain: Chain) -> None:
        """
        Report what was decided after *chain*. Start a shadow draft if the decision asks for one.

        Raise what failed an earlier shadow draft: the method would fail in the same way.
        """
        if self._failure is not None:
            raise self._failure
        if decided is not None:
            self._observe(decided)
        if decided is not None and decided.shadow:
            self._tasks.append(asyncio.create_task(self._guarded(chain)))

    async def aclose(self) -> None:
        """Cancel those that are under way, and wait until their requests are gone."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await to_the_end(asyncio.wait(self._tasks))

    async def _guarded(self, chain: Chain) -> None:
        try:
            await self._draft(chain)
        except Exception as exc:
            self._failure = exc

    async def _draft(self, chain: Chain) -> None:
        index = len(chain.steps)
        clock = asyncio.get_running_loop().time
        draft_request = RequestContext("draft", index, bet=True)
        verdict_request = replace(draft_request, purpose="verify")
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
