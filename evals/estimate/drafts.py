"""
Beginnings of chains of the large model, drafts of the small one after them, and verdicts on these.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise

from stepspec.api import Solver
from stepspec.orchestrator.chain import Accept, Chain, Step, Verdict
from stepspec.orchestrator.interfaces import Model, Policy, foreseeable, prepare, verify
from stepspec.orchestrator.step_ends import StepEnds

from ..sample import Arm
from .measurements import DraftTrial, SeenChain

ANSWER = 512  # tokens of an answer
WHOLE = ("delimiter", "end", "open")  # why a whole step stopped


@dataclass(frozen=True, slots=True)
class Attempt:
    """A *draft* and its *verdict*, with the seconds that each took."""

    draft: Step
    verdict: Verdict
    draft_seconds: float
    verdict_seconds: float

    @property
    def pace(self) -> float:
        """Seconds of the draft per token."""
        return self.draft_seconds / max(1, len(self.draft.tokens))


async def attempt(policy: Policy, chain: Chain) -> Attempt:
    """Let *policy* draft the next step of *chain* and judge the draft."""
    clock = asyncio.get_running_loop().time
    began, preparing = clock(), prepare(policy, chain)
    prepared = None if preparing is None else asyncio.ensure_future(preparing)
    try:
        draft = await policy.draft(chain)
        drafted = clock()
        verdict = await verify(policy, chain, draft, prepared)
        return Attempt(draft, verdict, drafted - began, clock() - drafted)
    finally:
        if prepared is not None:
            prepared.cancel()
            with suppress(asyncio.CancelledError):
                await prepared


async def try_draft(
    policy: Policy, chain: Chain, own: int | None, repair: int | None, *, alone: bool
) -> DraftTrial:
    """
    Make one attempt, and the repair that follows it.

    *own* are the tokens of the large model's own step, *repair* those of a repair that does not
    depend on the draft.
    """
    made = await attempt(policy, chain)
    verdict, drafted = made.verdict, len(made.draft.tokens)
    own = own if made.draft.stop in WHOLE else None  # a part of a step stands for its own tokens
    seconds = (made.draft_seconds, made.verdict_seconds) if alone else None
    if isinstance(verdict, Accept):
        return DraftTrial(True, drafted, drafted, 0, own, seconds)
    if verdict.chosen is not None:
        return DraftTrial(True, drafted, len(verdict.chosen.step.tokens), 0, own, seconds)
    if repair is not None and not verdict.keep and foreseeable(policy):
        return DraftTrial(False, drafted, 0, repair, own, seconds)
    kept = made.draft.cut(verdict.keep)
    after = chain.extend(kept) if verdict.keep else chain
    repaired = await policy.repair(after, made.draft, verdict)
    return DraftTrial(False, drafted, len(kept.tokens), len(repaired.tokens), own, seconds)


def repairs_whole_steps(arm: Arm) -> bool:
    """Whether the repair of a draft that *arm* rejects whole is the large model's own step."""
    return arm.policy != "bild" or arm.options.get("scale") == "step"


@dataclass
class Beginning:
    """
    The beginning of the large model's own chain about one problem, as it grows.

    *prefixes* are the chains before each of its steps, the last one before a step that was not
    written, or only partly.
    """

    prefixes: list[Chain]
    partial: int = 0
    answer: int | None = None
    steps: list[int] = field(default_factory=list[int])

    @classmethod
    async def of(cls, solver: Solver, problem: str) -> Beginning:
        run = solver.settings.run
        chain = Chain.of(problem, StepEnds.of(run.delimiter), system=run.system)
        return cls([replace(chain, thinks=await solver.large.thinks(chain.messages, chain.tools))])

    @property
    def seen(self) -> SeenChain:
        return SeenChain((*self.steps, *([self.partial] if self.partial else [])), self.answer)

    @property
    def places(self) -> list[tuple[Chain, int | None]]:
        """
        Where a step of the large model's own begins, and the tokens of that step, None if it was
        not written.
        """
        known = [
            (before, after.tokens - before.tokens) for before, after in pairwise(self.prefixes)
        ]
        unknown = (
            []
            if self.answer is not None or self.prefixes[-1].closed
            else [(self.prefixes[-1], None)]
        )
        return [*known, *unknown]

    async def write(self, model: Model, limit: int, over: Callable[[], bool]) -> None:
        """Let *model* go on, until the chain ends, has *limit* tokens, or the time is *over*."""
        chain = self.prefixes[-1]

        def stopping(step: Step) -> bool:
            self.partial = len(step.tokens)
            return over()

        while chain.tokens < limit and not (chain.closed or chain.finished or over()):
            step = await model.write(chain, limit=limit - chain.tokens, until=stopping)
            if step.stop not in WHOLE or not step.tokens:
                return
            self.partial, chain = 0, chain.extend(step)
            self.steps.append(len(step.tokens))
            self.prefixes.append(chain)
        if chain.finished and not chain.closed:
            self.answer = 0
        elif chain.closed and not over():
            answer = await model.write(chain, stop=(), limit=ANSWER, until=lambda step: over())
            self.answer = len(answer.tokens) if answer.stop == "end" else None
