"""Shadow drafts: a method drafts and judges what the large model writes anyway, is measured, and never used."""

from __future__ import annotations

import asyncio

from .auto import AutoRun
from .chain import Chain
from .concurrency import background, to_the_end
from .events import Observer, Shadowed
from .interfaces import REQUEST, Policy, RequestContext, prepare
from .lookahead import judge


class ShadowDrafts:
    """The shadow drafts of *policy* in one run, while the large model writes the chain."""

    def __init__(self, policy: Policy, observe: Observer) -> None:
        self._policy, self._observe = policy, observe
        self._tasks: list[asyncio.Task[None]] = []
        self._failure: Exception | None = None

    def start(self, chain: Chain, auto: AutoRun) -> None:
        """Draft the step after *chain*, and judge the draft. Raise what ended an earlier one: the method fails so."""
        if self._failure is not None:
            raise self._failure
        self._tasks.append(asyncio.create_task(self._guarded(chain, auto)))

    async def aclose(self) -> None:
        """Cancel those that are under way, and wait until their requests are gone."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await to_the_end(asyncio.wait(self._tasks))

    async def _guarded(self, chain: Chain, auto: AutoRun) -> None:
        try:
            await self._try(chain, auto)
        except Exception as exc:
            self._failure = exc

    async def _try(self, chain: Chain, auto: AutoRun) -> None:
        index, clock = len(chain.steps), asyncio.get_running_loop().time
        draft_request, verdict_request = (
            RequestContext(purpose, index, bet=True, shadow=True) for purpose in ("draft", "verify")
        )
        REQUEST.set(verdict_request)
        preparing, began = prepare(self._policy, chain), clock()
        async with background(*([preparing] if preparing else [])) as prepared:
            REQUEST.set(draft_request)
            draft = await self._policy.draft(chain)
            drafted = clock()
            if index in auto.given_up:
                return self._observe(Shadowed(index, draft, None, drafted - began))
            REQUEST.set(verdict_request)
            verdict = await judge(self._policy, chain, draft, *prepared or [None])
        self._observe(Shadowed(index, draft, verdict, drafted - began, clock() - drafted))
