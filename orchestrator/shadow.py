"""
Shadow drafts: a method drafts and judges what the large model writes anyway, is measured, and never
used.
"""

from __future__ import annotations

import asyncio
from collections.abc import Container
from dataclasses import replace

from .chain import Chain
from .concurrency import background, to_the_end
from .events import Decided, Observer, Shadowed
from .interfaces import REQUEST, Policy, RequestContext, prepare
from .lookahead import judge


class ShadowDrafts:
    """
    The shadow drafts of *policy* in one run; *given_up* has the steps of those that end early: see
    `AutoRun`.
    """

    def __init__(self, policy: Policy, given_up: Container[int], observe: Observer) -> None:
        self._policy, self._given_up, self._observe = policy, given_up, observe
        self._tasks: list[asyncio.Task[None]] = []
        self._failure: Exception | None = None

    def follow(self, decided: Decided | None, chain: Chain) -> None:
        """
        Emit what was decided after *chain*, and draft there if so. Raise what ended an earlier
        shadow draft.
        """
        if self._failure is not None:
            raise self._failure  # the method would fail so
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
        index, clock = len(chain.steps), asyncio.get_running_loop().time
        draft_request = RequestContext("draft", index, bet=True, shadow=True)
        verdict_request = replace(draft_request, purpose="verify")
        REQUEST.set(verdict_request)
        preparing, began = prepare(self._policy, chain), clock()
        async with background(*([preparing] if preparing else [])) as prepared:
            REQUEST.set(draft_request)
            draft = await self._policy.draft(chain)
            drafted = clock()
            if index in self._given_up:
                return self._observe(Shadowed(index, draft, None, drafted - began))
            REQUEST.set(verdict_request)
            verdict = await judge(self._policy, chain, draft, prepared[0] if prepared else None)
        self._observe(Shadowed(index, draft, verdict, drafted - began, clock() - drafted))
