"""
Policies around another policy.

`Led` says who writes the first steps, `Ending` who may end the thinking, and `Guarded` which loops
are stopped.
"""

from __future__ import annotations

from collections.abc import Awaitable, Coroutine
from dataclasses import dataclass, replace
from typing import Any

from stepspec.orchestrator import Accept, Chain, Model, Policy, Rollback, Step, Verdict
from stepspec.orchestrator.chain import THINK_END
from stepspec.orchestrator.interfaces import (
    loop_guard,
    repair_may_start_early,
    start_preparing,
    verdict_of,
    without_open_requests,
)
from stepspec.orchestrator.repetition import DEFAULT_GUARD, LoopGuard


@dataclass(frozen=True, slots=True)
class _Wrapper:
    """A policy that does what another policy does. Subclasses override some of its methods."""

    policy: Policy
    """The policy inside."""

    @property
    def answerer(self) -> Model:
        return self.policy.answerer

    @property
    def loop_guard(self) -> LoopGuard | None:
        return loop_guard(self.policy)

    def drafts_itself(self, chain: Chain) -> bool:
        """Whether the wrapper drafts the next step, and not the policy inside."""
        return False

    def repair_may_start_early(self, chain: Chain) -> bool:
        if self.drafts_itself(chain):
            return False
        return repair_may_start_early(self.policy, chain)

    async def draft(self, chain: Chain) -> Step:
        return await self.policy.draft(chain)

    def prepare(self, chain: Chain) -> Coroutine[Any, Any, Step] | None:
        if self.drafts_itself(chain):
            return None
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
    """A policy with another guard against loops than the policy itself declares."""

    guard: LoopGuard | None = DEFAULT_GUARD
    """The guard. None: loops are not stopped."""

    @property
    def loop_guard(self) -> LoopGuard | None:
        return self.guard


@dataclass(frozen=True, slots=True)
class Led(_Wrapper):
    """
    A policy whose first steps one model writes, without a verdict.

    SpecReason (arXiv:2504.07891, section 5.3) reserves the first steps for the large model. This
    wrapper does the same for any policy.
    """

    author: Model
    """The model that writes the first steps."""
    first: int = 0
    """How many steps this model writes."""

    def drafts_itself(self, chain: Chain) -> bool:
        return len(chain.steps) < self.first

    async def draft(self, chain: Chain) -> Step:
        if self.drafts_itself(chain):
            return await self.author.write(chain)
        return await self.policy.draft(chain)

    async def verify(
        self,
        chain: Chain,
        draft: Step,
        prepared: Awaitable[Step] | None = None,
    ) -> Verdict:
        if self.drafts_itself(chain):
            return Accept(judged=False)
        return await verdict_of(self.policy, chain, draft, prepared)


@dataclass(frozen=True, slots=True)
class Ending(_Wrapper):
    """
    A policy in which a draft of the small model does not end the thinking.

    A step that is right may still be too early as the last step. The end is cut off a draft, and
    the rest is judged. The large model writes the next step. Nobody judges this step, and it may
    consist of the end alone. A model without a thinking block ends its turn instead, and this end
    is treated in the same way.

    The authors' code of SpecReason cuts off the end of every step, also of the large model's steps.
    It lets both models continue, and stops at a step with a box. Here the large
    model writes the next step. So the run ends even if the two models disagree about the end.
    """

    def drafts_itself(self, chain: Chain) -> bool:
        """Whether the end of the thinking was cut off the last step."""
        return bool(chain.steps) and chain.steps[-1].stop == "open"

    async def draft(self, chain: Chain) -> Step:
        if self.drafts_itself(chain):
            return await self._continue(chain, chain.steps[-1])
        draft = await self.policy.draft(chain)
        if not _ends(chain, draft):
            return draft
        opened = _open(chain, draft)
        if opened.text.strip():
            return opened
        return await self._continue(chain, draft)

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
    """Whether *draft* was written by the small model and ends the thinking, not the answer."""
    return draft.stop == "end" and draft.author == "small" and not chain.closed


def _open(chain: Chain, draft: Step) -> Step:
    r"""
    Cut the end of the thinking off *draft*, and nothing else.

    The line break before the end stays. A token may hold both text and the line break (``.\n``).
    If only half of a token stayed, a model would go on differently.
    """
    if not _ends(chain, draft):
        return draft
    text = draft.text.removesuffix(THINK_END)
    return replace(draft.cut(len(text)), stop="open")
