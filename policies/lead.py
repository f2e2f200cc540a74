"""Let the large model begin, with a plan or with the first steps, whatever the policy does then."""

from __future__ import annotations

from collections.abc import Awaitable, Coroutine
from dataclasses import dataclass, replace
from typing import Any

from stepspec.orchestrator import Accept, Chain, Model, Policy, Rollback, Step, Verdict
from stepspec.orchestrator.chain import THINK_END, Token
from stepspec.orchestrator.interfaces import foreseeable, prepare, verify
from stepspec.prompts import load

PLAN = load("lead.plan")
PLANNING = 256  # tokens


@dataclass(frozen=True, slots=True)
class Led:
    """
    *author* writes a *plan* as the first step, if one is wanted, and then the *first* steps; the rest is *policy*'s.

    Nobody judges what it wrote. SpecReason (section 5.3) reserves first steps for the large model, and TrigReason
    (arXiv:2604.14847) has it plan; here both go with any policy. The plan is asked for at the end of the problem's last
    turn, which the chain does not keep: the other steps are written as if the plan had come by itself.
    """

    policy: Policy
    author: Model
    first: int = 0
    plan: bool = False

    @property
    def answerer(self) -> Model:
        return self.policy.answerer

    @property
    def foreseeable(self) -> bool:
        return foreseeable(self.policy)

    async def draft(self, chain: Chain) -> Step:
        if self.plan and not chain.steps:
            return _begun(chain, await self.author.write(_asked(chain), opening=PLAN.opening, limit=PLANNING))
        return await (self.author.write(chain) if self._leads(chain) else self.policy.draft(chain))

    def prepare(self, chain: Chain) -> Coroutine[Any, Any, Step] | None:
        return None if self._leads(chain) else prepare(self.policy, chain)

    async def verify(self, chain: Chain, draft: Step, prepared: Awaitable[Step] | None = None) -> Verdict:
        return Accept() if self._leads(chain) else await verify(self.policy, chain, draft, prepared)

    async def repair(self, chain: Chain, draft: Step, rollback: Rollback) -> Step:
        return await self.policy.repair(chain, draft, rollback)

    def _leads(self, chain: Chain) -> bool:
        return len(chain.steps) < self.plan + self.first


def _asked(chain: Chain) -> Chain:
    *before, last = chain.messages
    return replace(chain, messages=(*before, replace(last, content=f"{last.content}\n\n{PLAN.text}")))


def _begun(chain: Chain, plan: Step) -> Step:
    """Make a plan that ended the thinking, or the turn, the beginning of it."""
    if plan.stop != "end":
        return plan
    said = plan.text.removesuffix(THINK_END).rstrip()
    tokens = (*plan.cut(len(said)).tokens, Token(chain.ends.text))
    return replace(plan, text=said + chain.ends.text, stop="delimiter", tokens=tokens)
