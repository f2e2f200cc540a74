"""Say who may end the thinking, whatever the policy does until then."""

from __future__ import annotations

from collections.abc import Awaitable, Coroutine
from dataclasses import dataclass, replace
from typing import Any, Literal

from stepspec.orchestrator import Accept, Chain, Model, Policy, Rollback, Step, Verdict
from stepspec.orchestrator.chain import THINK_END
from stepspec.orchestrator.concurrency import at_once
from stepspec.orchestrator.interfaces import foreseeable, prepare, unkept, verify
from stepspec.prompts import load

COMPLETE = load("ending.complete")
YES, NO = "Yes", "No"
SURE = 0.05  # of the judge's probability; less on Yes and No is no approval


@dataclass(frozen=True, slots=True)
class Ending:
    """
    A draft of the small model does not end the thinking by itself; the rest is *policy*'s.

    A step that is right may still come too early to be the last. With *by* "large" only the large model ends the
    thinking: the end is taken off a draft, which is judged without it, and the large model writes the next step, which
    nobody judges and which may be nothing but the end. With *by* "judge" the large model is asked, together with the
    verdict, whether the reasoning is complete; at a no it goes on from the draft without its end.

    The authors' code of SpecReason takes the end off as well, that of the large model's steps too, lets both go on, and
    stops at a step that holds a box. Here the next step is the large model's, so that two models of different minds
    come to an end. Models without a thinking block end their turn in the same way.
    """

    policy: Policy
    large: Model
    by: Literal["large", "judge"] = "large"

    @property
    def answerer(self) -> Model:
        return self.policy.answerer

    @property
    def foreseeable(self) -> bool:
        return foreseeable(self.policy)

    async def draft(self, chain: Chain) -> Step:
        if _ends_open(chain):
            return await self._go_on(chain, chain.steps[-1])
        draft = await self.policy.draft(chain)
        if self.by == "judge" or not _ends(chain, draft):
            return draft
        opened = _open(chain, draft)
        return opened if opened.text.strip() else await self._go_on(chain, draft)

    def prepare(self, chain: Chain) -> Coroutine[Any, Any, Step] | None:
        return None if _ends_open(chain) else prepare(self.policy, chain)

    async def verify(self, chain: Chain, draft: Step, prepared: Awaitable[Step] | None = None) -> Verdict:
        if draft.author == "large":
            return Accept()
        verdict = await self._judged(chain, draft, prepared)
        return replace(verdict, rivals=tuple([replace(one, step=_open(chain, one.step)) for one in verdict.rivals]))

    async def repair(self, chain: Chain, draft: Step, rollback: Rollback) -> Step:
        return await self.policy.repair(chain, draft, rollback)

    async def _go_on(self, chain: Chain, draft: Step) -> Step:
        with unkept():
            return await self.policy.repair(chain, draft, Rollback(reason="end"))

    async def _judged(self, chain: Chain, draft: Step, prepared: Awaitable[Step] | None) -> Verdict:
        if self.by == "large" or not _ends(chain, draft):
            return await verify(self.policy, chain, draft, prepared)
        opened = _open(chain, draft)
        if not opened.text.strip():
            return await self._complete(chain, opened)
        judged, complete = await at_once([verify(self.policy, chain, draft, prepared), self._complete(chain, opened)])
        if isinstance(judged, Rollback) or isinstance(complete, Accept):
            return judged
        return replace(complete, score=judged.score)

    async def _complete(self, chain: Chain, opened: Step) -> Verdict:
        """Ask whether the reasoning is complete with *opened*, a draft without its end."""
        answer = await self.large.ask(chain.extend(opened), COMPLETE.text, (YES, NO), opening=COMPLETE.opening)
        if answer[YES] > answer[NO] and sum(answer.values()) >= SURE:
            return Accept(answer[YES])
        return Rollback(len(opened.text), reason="incomplete", score=answer[YES])


def _ends(chain: Chain, draft: Step) -> bool:
    """Whether *draft*, by the small model, is to end the thinking; the answer after it has an end of its own."""
    return draft.stop == "end" and draft.author == "small" and not chain.closed


def _open(chain: Chain, draft: Step) -> Step:
    r"""
    Take the end of the thinking off *draft*, and nothing else, so that the large model goes on where it stood.

    Without the line break before the end, a token may be cut that holds it (``.\n``), and no model writes on from there
    as it would from the whole.
    """
    return replace(draft.cut(len(draft.text.removesuffix(THINK_END))), stop="open") if _ends(chain, draft) else draft


def _ends_open(chain: Chain) -> bool:
    return bool(chain.steps) and chain.steps[-1].stop == "open"
