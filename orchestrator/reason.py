"""The one loop: draft, verify, then commit or roll back. Every policy runs through it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import replace
from typing import Literal, TypeAlias

from .chain import Accept, Chain, Rollback, Step
from .events import Chosen, Committed, Observer, Repaired
from .interfaces import Policy, guarded
from .lookahead import Lookahead, LookaheadControl
from .repetition import stuck
from .shadow import ShadowDrafts

End: TypeAlias = Literal["finished", "budget", "time", "repetition"]


async def reason(
    policy: Policy,
    chain: Chain,
    *,
    ahead: int | LookaheadControl = 0,
    spent: Callable[[Chain], bool] = lambda chain: False,
    deadline: float | None = None,
    observe: Observer = lambda event: None,
    over: Callable[[Chain], bool] = lambda chain: chain.finished,
) -> tuple[Chain, End]:
    """
    Grow *chain* until it is *over*, its budget *spent*, or the *deadline* (seconds on the event
    loop's clock) reached.

    By default the chain is over when the thinking is. *ahead* says how far to work ahead of the
    committed chain: as a number of drafts, or in full as a `LookaheadControl`. With models that are
    greedy or sample by a seed, the chain is the same at every lookahead; otherwise only its
    distribution is the same. *observe* is called with every event.

    Return the committed chain and why it ended. Failures of the models are raised. When this
    function returns or raises, it leaves no task and no request behind.
    """

    def commit(step: Step, score: float | None = None) -> End | None:
        """
        Extend the chain by *step*; return why nothing can follow. A budget may have no room for one
        character.
        """
        nonlocal chain
        observe(Committed(len(chain.steps), step, score))
        chain = chain.extend(step)
        full = step.stop == "length" and not step.text
        return ended() or (
            "repetition" if step.stop == "repetition" else "budget" if full else None
        )

    def writer() -> Policy:
        """Return the policy of the next steps. Decide now if nothing was decided for this step."""
        if auto is None:
            return policy
        shadow.follow(auto.decide(len(chain.steps)), chain)
        return auto.policy(policy)

    def ended() -> End | None:
        return "finished" if over(chain) else "budget" if spent(chain) else None

    async def grow() -> End:
        while (end := ended()) is None:
            current = writer()
            bets = Lookahead(
                current, chain, control=control, spent=spent, observe=observe, over=over
            )
            async with aclosing(bets) as lookahead:
                while True:
                    draft, verdict = await lookahead.next()
                    if isinstance(verdict, Rollback):
                        break
                    if end := commit(draft, verdict.score):
                        return end
                    if writer() is not current:
                        break
                if isinstance(verdict, Accept):  # another policy goes on; the bets are lost
                    continue
                # another draft of the same step was accepted in its place
                if chosen := verdict.chosen:
                    observe(Chosen(len(chain.steps), chosen.step))
                    commit(chosen.step, chosen.score)
                    continue
                if (kept := draft.cut(verdict.keep)).text and (end := commit(kept, verdict.score)):
                    return end
                repaired = replace(
                    await lookahead.repair(chain, draft, verdict), note=verdict.reason
                )
            # Leaving the block has cancelled the bets on the draft that was rolled back.
            observe(Repaired(len(chain.steps), repaired, verdict))
            if guarded(current) and stuck(chain, repaired):
                return "repetition"
            if end := commit(repaired):
                return end
        return end

    control = LookaheadControl.of(ahead)
    auto = control.auto
    shadow = ShadowDrafts(policy, observe)
    timeout = asyncio.timeout_at(deadline)
    try:
        async with timeout, aclosing(shadow):
            end = await grow()
    except TimeoutError:
        if not timeout.expired():
            raise
        end = "finished" if over(chain) else "time"
    return chain, end
