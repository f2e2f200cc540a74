"""The loop of every policy: draft a step, verify it, then commit it or roll it back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from .chain import Chain, Rollback, Step
from .events import Chosen, Committed, Observer, Repaired
from .interfaces import Policy, loop_guard
from .lookahead import Lookahead, LookaheadControl
from .shadow import ShadowDrafts

End: TypeAlias = Literal["finished", "budget", "time", "repetition"]
"""Why a chain ended."""


def is_finished(chain: Chain) -> bool:
    """Whether the thinking of *chain* is over."""
    return chain.finished


async def reason(
    policy: Policy,
    chain: Chain,
    *,
    ahead: int | LookaheadControl = 0,
    spent: Callable[[Chain], bool] = lambda chain: False,
    deadline: float | None = None,
    observe: Observer = lambda event: None,
) -> tuple[Chain, End]:
    """
    Grow *chain* until its thinking is over, its budget is used up, or a deadline is reached.

    *ahead* is the number of drafts that are made in advance, while earlier drafts are judged. A
    `LookaheadControl` can take the place of the number.
    *spent* says whether a chain has used up its budget. *deadline* is a time on the event loop's
    clock, in seconds. Return the committed chain and why it ended.
    """
    loop = Loop(policy, chain, LookaheadControl.of(ahead), observe, spent)
    end = await loop.run(deadline)
    return loop.chain, end


@dataclass(eq=False)
class Loop:
    """
    The loop of one run: it grows a chain by the steps of a policy.

    If the models are greedy or sample by a seed, the chain does not depend on how many drafts are
    made ahead. If the models sample without a seed, the chain may change with the number of drafts,
    but its probability distribution stays the same.
    """

    policy: Policy
    """The method."""
    chain: Chain
    """The committed chain."""
    control: LookaheadControl
    """How many drafts to make ahead of the committed chain."""
    observe: Observer
    """The function that is called with every event."""
    spent: Callable[[Chain], bool]
    """Whether a chain has used up its budget."""
    over: Callable[[Chain], bool] = is_finished
    """Whether a chain is complete."""

    def __post_init__(self) -> None:
        self._shadow = ShadowDrafts(self.policy, self.observe)

    async def run(self, deadline: float | None) -> End:
        """
        Grow the chain. Return why the chain ended.

        *deadline* is a time on the event loop's clock, in seconds. None: there is no deadline.
        Raise the errors of the models. When this method returns or raises, it leaves no task and
        no request open.
        """
        timeout = asyncio.timeout_at(deadline)
        try:
            async with timeout, aclosing(self._shadow):
                return await self._grow()
        except TimeoutError:
            if not timeout.expired():
                raise
        # The chain may have been complete before the deadline, and only closing the requests took
        # too long. Then the run finished in time.
        if self.over(self.chain):
            return "finished"
        return "time"

    async def _grow(self) -> End:
        end = self._ended()
        while end is None:
            end = await self._speculate(self._choose_policy())
        return end

    async def _speculate(self, policy: Policy) -> End | None:
        """
        Commit drafts of *policy* until a draft is rejected. Then commit its repair.

        Return why the chain ended. Return None if the loop has to start a new lookahead: after a
        repair, or if another policy writes the next step.
        """
        lookahead = Lookahead(
            policy,
            self.chain,
            control=self.control,
            spent=self.spent,
            observe=self.observe,
            over=self.over,
        )
        # Leaving the block cancels all drafts and verdicts that are still under way.
        async with aclosing(lookahead):
            draft, verdict = await lookahead.next()
            while not isinstance(verdict, Rollback):
                end = self._commit(draft, verdict.score)
                if end is not None:
                    return end
                next_policy = self._choose_policy()
                if next_policy is not policy:
                    return None
                draft, verdict = await lookahead.next()
            # The policy may have found a better draft of the same step.
            replacement = verdict.chosen
            if replacement is not None:
                self.observe(Chosen(len(self.chain.steps), replacement.step))
                return self._commit(replacement.step, replacement.score)
            # If only a first part of the draft is good, this part stays.
            kept = draft.cut(verdict.keep)
            if kept.text:
                end = self._commit(kept, verdict.score)
                if end is not None:
                    return end
            repair = await lookahead.repair(self.chain, draft, verdict)
        repair = replace(repair, note=verdict.reason)
        self.observe(Repaired(len(self.chain.steps), repair, verdict))
        guard = loop_guard(policy)
        if guard is not None and guard.stuck(self.chain, repair):
            return "repetition"
        return self._commit(repair)

    def _choose_policy(self) -> Policy:
        """
        Return the policy of the next steps: the method, or the large model alone.

        Decide now, unless a decision for this step was made before.
        """
        auto = self.control.auto
        if auto is None:
            return self.policy
        decision = auto.decide(len(self.chain.steps))
        # `follow` emits the decision as an event. The observer of the run passes each event to
        # `auto.read`. So `auto.policy` below already obeys the decision.
        self._shadow.follow(decision, self.chain)
        return auto.policy(self.policy)

    def _commit(self, step: Step, score: float | None = None) -> End | None:
        """Extend the chain by *step*. Return why the chain ended; None if it can go on."""
        self.observe(Committed(len(self.chain.steps), step, score))
        self.chain = self.chain.extend(step)
        end = self._ended()
        if end is not None:
            return end
        if step.stop == "repetition":
            return "repetition"
        if step.stop == "length" and not step.text:
            return "budget"  # The rest of the budget is too small for one character.
        return None

    def _ended(self) -> End | None:
        if self.over(self.chain):
            return "finished"
        if self.spent(self.chain):
            return "budget"
        return None
