"""Policies around another policy: who writes the first steps, and who may end the thinking."""

from __future__ import annotations

from collections.abc import Awaitable, Coroutine
from dataclasses import dataclass, replace
from typing import Any

from stepspec.orchestrator import Accept, Chain, Model, Policy, Rollback, Step, Verdict
from stepspec.orchestrator.chain import THINK_END
from stepspec.orchestrator.interfaces import (
    foreseeable,
    guarded,
    start_preparing,
    verdict_of,
    without_open_requests,
)


@dataclass(frozen=True, slots=True)
class _Wrapper:
    """A policy that does what another one does. Subclasses override a part of it."""

    policy: Policy
    """The policy inside."""

    @property
    def answerer(self) -> Model:
        return self.policy.answerer

    @property
    def foreseeable(self) -> bool:
        return foreseeable(self.policy)

    @property
    def guarded(self) -> bool:
        return guarded(self.policy)

    async def draft(self, chain: Chain) -> Step:
        return await self.policy.draft(chain)

    def prepare(self, chain: Chain) -> Coroutine[Any, Any, Step] | None:
        return start_preparing(self.policy, chain)

    async def verify(
        self,
        chain: Chain,
        draft: Step,
        prepared: Awaitable[Step] | None = None,
    ) -> Verdict:
        return await verdict_of(self.policy, chain, draft, prepared)

    async def repair(self, chain: Chain, draft: Step, rollback: Rollback) -> Step:
        return await self.policy.repair(chain, draft, rollback)


@dataclass(frozen=True, slots=True)
class Guarded(_Wrapper):
    """A policy with loops stopped, or not, whatever it declares itself."""

    stop_loops: bool = True
    """Whether loops are stopped, as `guarded` in `interfaces` says."""

    @property
    def guarded(self) -> bool:
        return self.stop_loops


@dataclass(frozen=True, slots=True)
class Led(_Wrapper):
    """
    A policy whose first steps one model writes, without a verdict.

    SpecReason (arXiv:2504.07891, section 5.3) reserves first steps for the large model. Here any
    policy can.
    """

    author: Model
    """The model that writes the first steps."""
    first: int = 0
    """The number of first steps."""

    async def draft(self, chain: Chain) -> Step:
        if self._leads(chain):
            return await self.author.write(chain)
        return await self.policy.draft(chain)

    def prepare(self, chain: Chain) -> Coroutine[Any, Any, Step] | None:
        if self._leads(chain):
            return None
        return start_preparing(self.policy, chain)

    async def verify(
        self,
        chain: Chain,
        draft: Step,
        prepared: Awaitable[Step] | None = None,
    ) -> Verdict:
        if self._leads(chain):
            return Accept(judged=False)
        return await verdict_of(self.policy, chain, draft, prepared)

    def _leads(self, chain: Chain) -> bool:
        return len(chain.steps) < self.first


@dataclass(frozen=True, slots=True)
class Ending(_Wrapper):
    """
    A policy in which a draft of the small model does not end the thinking.

    A step that is right may still come too early to be the last. The end is cut off a draft, and
    the rest is judged. The large model writes the next step, which nobody judges, and which may
    consist of the end alone. Models without a thinking block end their turn in the same way.

    The authors' code of SpecReason cuts off the end as well, also that of the large model's steps.
    It lets both models continue, and stops at a step that holds a box. Here the large model writes
    the next step, so that two models that disagree come to an end.
    """

    async def draft(self, chain: Chain) -> Step:
        if _is_open(chain):
            return await self._continue(chain, chain.steps[-1])
        draft = await self.policy.draft(chain)
        if not _ends(chain, draft):
            return draft
        opened = _open(chain, draft)
        if opened.text.strip():
            return opened
        return await self._continue(chain, draft)

    def prepare(self, chain: Chain) -> Coroutine[Any, Any, Step] | None:
        if _is_open(chain):
            return None
        return start_preparing(self.policy, chain)

    async def verify(
        self,
        chain: Chain,
        draft: Step,
        prepared: Awaitable[Step] | None = None,
    ) -> Verdict:
        if draft.author == "large":
            return Accept(judged=False)
        verdict = await verdict_of(self.policy, chain, draft, prepared)
        rivals = [replace(rival, step=_open(chain, rival.step)) for rival in verdict.rivals]
        return replace(verdict, rivals=tuple(rivals))

    async def _continue(self, chain: Chain, draft: Step) -> Step:
        with without_open_requests():
            return await self.policy.repair(chain, draft, Rollback(reason="end"))


def _ends(chain: Chain, draft: Step) -> bool:
    """Whether *draft* is the small model's and ends the thinking. No draft of the answer does."""
    return draft.stop == "end" and draft.author == "small" and not chain.closed


def _open(chain: Chain, draft: Step) -> Step:
    r"""
    Cut the end of the thinking off *draft*, and nothing else.

    The line break before the end stays. A token may hold both text and the line break (``.\n``),
    and after half of a token no model continues as it would after the whole token.
    """
    if not _ends(chain, draft):
        return draft
    text = draft.text.removesuffix(THINK_END)
    return replace(draft.cut(len(text)), stop="open")


def _is_open(chain: Chain) -> bool:
    return bool(chain.steps) and chain.steps[-1].stop == "open"
