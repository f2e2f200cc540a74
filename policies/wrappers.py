"""Policies around another policy: who writes the first steps, and who may end the thinking."""

from __future__ import annotations

from collections.abc import Awaitable, Coroutine
from dataclasses import dataclass, replace
from typing import Any

from stepspec.orchestrator import Accept, Chain, Model, Policy, Rollback, Step, Verdict
from stepspec.orchestrator.chain import THINK_END
from stepspec.orchestrator.interfaces import foreseeable, prepare, unkept, verify


@dataclass(frozen=True, slots=True)
class _Wrapper:
    """A policy that does what *policy* does, until a subclass overrides a part of it."""

    policy: Policy

    @property
    def answerer(self) -> Model:
        return self.policy.answerer

    @property
    def foreseeable(self) -> bool:
        return foreseeable(self.policy)

    async def draft(self, chain: Chain) -> Step:
        return await self.policy.draft(chain)

    def prepare(self, chain: Chain) -> Coroutine[Any, Any, Step] | None:
        return prepare(self.policy, chain)

    async def verify(
        self, chain: Chain, draft: Step, prepared: Awaitable[Step] | None = None
    ) -> Verdict:
        return await verify(self.policy, chain, draft, prepared)

    async def repair(self, chain: Chain, draft: Step, rollback: Rollback) -> Step:
        return await self.policy.repair(chain, draft, rollback)


@dataclass(frozen=True, slots=True)
class Guarded(_Wrapper):
    """
    A *policy* whose drafts are rejected, or not, for being in a loop: see `guarded` in
    `interfaces`.
    """

    guarded: bool = True


@dataclass(frozen=True, slots=True)
class Led(_Wrapper):
    """
    *author* writes the *first* steps, which nobody judges; *policy* does the rest.

    SpecReason (arXiv:2504.07891, section 5.3) reserves first steps for the large model; here any
    policy can.
    """

    author: Model
    first: int = 0

    async def draft(self, chain: Chain) -> Step:
        return await (self.author.write(chain) if self._leads(chain) else self.policy.draft(chain))

    def prepare(self, chain: Chain) -> Coroutine[Any, Any, Step] | None:
        return None if self._leads(chain) else prepare(self.policy, chain)

    async def verify(
        self, chain: Chain, draft: Step, prepared: Awaitable[Step] | None = None
    ) -> Verdict:
        return Accept() if self._leads(chain) else await verify(self.policy, chain, draft, prepared)

    def _leads(self, chain: Chain) -> bool:
        return len(chain.steps) < self.first


@dataclass(frozen=True, slots=True)
class Ending(_Wrapper):
    """
    A draft of the small model does not end the thinking by itself; *policy* does the rest.

    A step that is right may still come too early to be the last. The end is cut off a draft, the
    rest is judged, and the large model writes the next step, which nobody judges and which may
    consist of the end alone.

    The authors' code of SpecReason cuts off the end as well, also that of the large model's steps,
    lets both models continue, and stops at a step that holds a box. Here the large model writes the
    next step, so that two models that disagree come to an end. Models without a thinking block end
    their turn in the same way.
    """

    async def draft(self, chain: Chain) -> Step:
        if _is_open(chain):
            return await self._continue(chain, chain.steps[-1])
        draft = await self.policy.draft(chain)
        if not _ends(chain, draft):
            return draft
        opened = _open(chain, draft)
        return opened if opened.text.strip() else await self._continue(chain, draft)

    def prepare(self, chain: Chain) -> Coroutine[Any, Any, Step] | None:
        return None if _is_open(chain) else prepare(self.policy, chain)

    async def verify(
        self, chain: Chain, draft: Step, prepared: Awaitable[Step] | None = None
    ) -> Verdict:
        if draft.author == "large":
            return Accept()
        verdict = await verify(self.policy, chain, draft, prepared)
        rivals = [replace(rival, step=_open(chain, rival.step)) for rival in verdict.rivals]
        return replace(verdict, rivals=tuple(rivals))

    async def _continue(self, chain: Chain, draft: Step) -> Step:
        with unkept():
            return await self.policy.repair(chain, draft, Rollback(reason="end"))


def _ends(chain: Chain, draft: Step) -> bool:
    """
    Whether *draft* is the small model's and ends the thinking. Once that is over, drafts belong to
    the answer.
    """
    return draft.stop == "end" and draft.author == "small" and not chain.closed


def _open(chain: Chain, draft: Step) -> Step:
    r"""
    Cut the end of the thinking off *draft*, and nothing else, so that the large model continues
    where it stood.

    The line break before the end stays: a token may hold both it and text (``.\n``), and after half
    of such a token no model continues as it would after the whole.
    """
    return (
        replace(draft.cut(len(draft.text.removesuffix(THINK_END))), stop="open")
        if _ends(chain, draft)
        else draft
    )


def _is_open(chain: Chain) -> bool:
    return bool(chain.steps) and chain.steps[-1].stop == "open"
