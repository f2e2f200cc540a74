"""The one loop: draft, verify, commit or roll back. Every policy runs through it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Literal, TypeAlias

from .chain import Chain, Rollback, Step
from .early_stopping import StopRule, running_stop_rule
from .events import Chosen, Committed, Event, Observer, Repaired
from .interfaces import Policy
from .lookahead import LookaheadControl, run_ahead, thought
from .repetition import stuck

End: TypeAlias = Literal["finished", "budget", "time", "repetition", "enough"]


def _never(chain: Chain) -> bool:
    return False


def _nobody(event: Event) -> None:
    pass


async def reason(
    policy: Policy,
    chain: Chain,
    *,
    ahead: int | LookaheadControl = 0,
    spent: Callable[[Chain], bool] = _never,
    deadline: float | None = None,
    stop_rule: StopRule | None = None,
    observe: Observer = _nobody,
    over: Callable[[Chain], bool] = thought,
) -> tuple[Chain, End]:
    """
    Grow *chain* until it is *over*, its budget *spent*, or the *deadline* (seconds on the loop's clock) is reached.

    It is over once the thinking is; whoever wants the answer from the policy as well says when that one is complete.
    *ahead* says how far to work ahead of what is committed, as a number of drafts or in full. The chain is the same
    whatever it says, for models that are greedy or sample by a seed; for others its distribution is. *watch* is asked
    about every committed chain and may end the thinking there. Return the committed chain and why it ended there.
    Failures of the models pass through; when anything leaves this function, no task and no request of it is left.
    """

    def commit(step: Step, score: float | None = None) -> None:
        nonlocal chain
        observe(Committed(len(chain.steps), step, score))
        chain = chain.extend(step)
        rule.start(chain)

    control = LookaheadControl.of(ahead)
    timeout = asyncio.timeout_at(deadline)
    try:
        async with timeout, running_stop_rule(stop_rule) as rule:
            while not (over(chain) or spent(chain)):
                drafts = run_ahead(policy, chain, control=control, spent=spent, observe=observe, over=over)
                async with drafts as lookahead:
                    while True:
                        draft, verdict = await lookahead.next()
                        if await rule.stops():
                            return chain, "enough"
                        if isinstance(verdict, Rollback):
                            break
                        commit(draft, verdict.score)
                        if over(chain) or spent(chain):
                            return chain, "finished" if over(chain) else "budget"
                    if chosen := verdict.chosen:
                        observe(Chosen(len(chain.steps), chosen.step))
                        commit(chosen.step, chosen.score)
                        continue
                    if verdict.keep:
                        commit(draft.cut(verdict.keep), verdict.score)
                        if over(chain) or spent(chain):
                            break
                    repaired = replace(await lookahead.repair(chain, draft, verdict), note=verdict.reason)
                if await rule.stops():
                    return chain, "enough"
                observe(Repaired(len(chain.steps), repaired, verdict))
                if stuck(chain, repaired):
                    return chain, "repetition"
                commit(repaired)
    except TimeoutError:
        if not timeout.expired():
            raise
        return chain, "finished" if over(chain) else "time"
    return chain, "finished" if over(chain) else "budget"
