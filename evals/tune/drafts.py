"""
Drafts of the small model after beginnings of the large model's chains, and what a method makes of
them.

The small model drafts once in each place. Every method then drafts, verifies and repairs with
models that repeat this draft and the large model's own step, so that only verdicts need requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from stepspec.api import Solver
from stepspec.orchestrator.backends.vllm import RewardModelEndpoint
from stepspec.orchestrator.budget import Budget
from stepspec.orchestrator.chain import Accept, Chain, Role, Rollback, Step, Token
from stepspec.orchestrator.concurrency import background
from stepspec.orchestrator.interfaces import (
    DEFAULT_LIMIT,
    Model,
    Policy,
    Until,
    answered_by,
    prepare,
    verify,
)
from stepspec.orchestrator.step_ends import StepEnds
from stepspec.policies import METHODS
from stepspec.run_parts import Models

from ..sample import Arm

WHOLE = ("delimiter", "end")
"""Why a whole step stopped."""


@dataclass(frozen=True, slots=True)
class Place:
    """A place in the large model's chain about a problem, where a step begins."""

    problem: int
    """The number of the problem. Steps of one problem depend on each other."""
    chain: Chain
    """The chain before the step."""
    own: Step
    """The step that the large model wrote here."""
    following: Step | None = None
    """The large model's step after its own one; None if it wrote none."""


@dataclass
class LargeChain:
    """The large model's own chain about one problem, as it grows."""

    chain: Chain
    """The problem, before any step."""
    steps: list[Step]
    """The whole steps that were written."""

    @classmethod
    async def begin(cls, solver: Solver, problem: str) -> LargeChain:
        """Begin the chain of *problem* as a run of *solver* would."""
        run = solver.settings.run
        chain = Chain.of(problem, StepEnds.of(run.delimiter), system=run.system)
        thinks = await solver.large.thinks(chain.messages, chain.tools)
        return cls(replace(chain, thinks=thinks), [])

    async def write(self, model: Model, limit: int, over: Callable[[], bool]) -> None:
        """Let *model* go on until the chain ends, has *limit* tokens, or the time is *over*."""
        chain = self.written
        while not (chain.finished and _answered(chain)) and chain.tokens < limit and not over():
            step = await model.write(chain, limit=min(DEFAULT_LIMIT, limit - chain.tokens))
            if step.stop not in WHOLE or not step.tokens:
                return
            self.steps.append(step)
            chain = chain.extend(step)

    @property
    def written(self) -> Chain:
        """The chain with all its steps."""
        return replace(self.chain, steps=tuple(self.steps))

    @property
    def ended(self) -> bool:
        """Whether the large model has answered."""
        return self.written.finished and _answered(self.written)

    def places(self, problem: int) -> list[Place]:
        """Every place where a step begins, for the problem with this number."""
        found: list[Place] = []
        chain = self.chain
        for own, following in pairwise((*self.steps, None)):
            assert own is not None
            found.append(Place(problem, chain, own, following))
            chain = chain.extend(own)
        return found


def _answered(chain: Chain) -> bool:
    """Whether the last step of *chain*, which ended, belongs to the answer."""
    return not chain.thinks or not chain.steps[-1].closes


class RecordedModel:
    """
    A model that writes one recorded step after one chain, token by token as it was written.

    Everything else is asked of the real *model*. `written` counts the tokens that it wrote.
    """

    def __init__(self, model: Model, chain: Chain, step: Step) -> None:
        self._model = model
        self._start = chain.tokens
        self._step = step
        self.written = 0

    @property
    def role(self) -> Role:
        return self._model.role

    async def write(
        self,
        chain: Chain,
        *,
        stop: Sequence[str] | None = None,
        limit: int = DEFAULT_LIMIT,
        until: Until = None,
        opening: str = "",
        top: int = 0,
    ) -> Step:
        """
        Write what is left of the recorded step after the tokens that *chain* has grown by.

        At least the last token is left. *stop* changes nothing, because the step ends there.
        """
        recorded = self._step.tokens
        begin = max(0, min(chain.tokens - self._start, len(recorded) - 1))
        rest = recorded[begin:]
        end = len(rest)
        step = replace(self._step, author=self.role, tokens=rest[:limit])
        if until is not None:
            ends = (count for count in range(1, end + 1) if until(self._part(rest[:count])))
            end = next(ends, end)
        if min(end, limit) < len(rest):
            step = self._part(rest[: min(end, limit)])
            step = replace(step, stop="until" if end <= limit else "length")
        self.written += len(step.tokens)
        return replace(step, text="".join(token.text for token in step.tokens))

    def _part(self, tokens: Sequence[Token]) -> Step:
        text = "".join(token.text for token in tokens)
        return replace(
            self._step, author=self.role, text=text, stop="until", tokens=tuple(tokens), pieces=()
        )

    async def branch(
        self,
        chain: Chain,
        begun: Sequence[Step],
        *,
        stop: Sequence[str] | None = None,
        limit: int = DEFAULT_LIMIT,
    ) -> tuple[Step, ...]:
        return await self._model.branch(chain, begun, stop=stop, limit=limit)

    async def score(self, chain: Chain, *spans: str, top: int = 0) -> list[tuple[Token, ...]]:
        return await self._model.score(chain, *spans, top=top)

    async def ask(
        self, chain: Chain, question: str, choices: Sequence[str], *, opening: str = ""
    ) -> Mapping[str, float]:
        return await self._model.ask(chain, question, choices, opening=opening)


@dataclass(frozen=True, slots=True)
class Round:
    """One draft of a method in a place, its verdict, and the repair if it is rejected."""

    drafted: int
    """Tokens that the small model drafts; 0 if the large model writes instead."""
    prepared: int
    """Tokens that the large model writes while the small one drafts."""
    accepted: bool
    """Whether the draft is accepted whole, or a rival of it."""
    kept: int
    """Tokens of the draft that stay in the chain."""
    kept_text: int
    """Characters of the draft that stay in the chain."""
    repaired: int
    """Tokens that the large model writes after the verdict."""
    verdict_seconds: float
    """Seconds of the verdict; 0 if there is none."""


@dataclass(frozen=True, slots=True)
class Trial:
    """What a method makes of the draft in one place."""

    problem: int
    """The number of the problem."""
    rounds: tuple[Round, ...]
    """The rounds until a draft is rejected or the step is over."""
    tokens: int
    """Tokens by which the chain grows."""
    own: int
    """Tokens that the large model alone writes for the same progress."""
    step: int = 0
    """The number of the step in its chain."""
    alone: bool = False
    """Whether no other request was under way, so that the seconds of verdicts count."""

    @property
    def accepted(self) -> bool:
        """Whether the whole draft is accepted."""
        return self.rounds[-1].accepted

    @property
    def kept_text(self) -> int:
        """Characters of the draft that stay in the chain."""
        return sum(round.kept_text for round in self.rounds)


@dataclass(frozen=True, slots=True)
class Trier:
    """Tries methods on drafts, with the models of one solver."""

    small: Model
    """The small model, for what a method asks of it beside drafts."""
    large: Model
    """The large model, which is asked for verdicts."""
    solver: Solver
    """The solver whose settings the methods are built with."""

    def policy(self, arm: Arm, small: Model, large: Model) -> Policy:
        """Build the policy of *arm* over two models, as in a run."""
        run = arm.resolve(self.solver.settings.run)
        rating = self.solver.critic
        critic = rating.critic() if isinstance(rating, RewardModelEndpoint) else None
        sampled = run.sampling.temperature > 0
        models = Models(small, large, critic, Budget(), sampled=sampled)
        return models.policy_of(run)

    async def attempt(self, arm: Arm, place: Place, draft: Step, *, alone: bool = False) -> Trial:
        """
        Let the method of *arm* go through *draft* in *place*, until it rejects a part of it.

        Raise `StepspecError` if a request for a verdict fails.
        """
        step = len(place.chain.steps)
        answerer = arm.run.answer or answered_by(METHODS.find(arm.policy).source)
        if place.chain.closed and answerer == "large":
            tokens = len(place.own.tokens)
            round = Round(0, 0, True, 0, 0, tokens, 0.0)
            return Trial(place.problem, (round,), tokens, tokens, step, alone)
        large = RecordedModel(self.large, place.chain, place.own)
        policy = self.policy(arm, RecordedModel(self.small, place.chain, draft), large)
        rounds: list[Round] = []
        chain = place.chain
        over = False
        while not over:
            round, chain, over = await _round(policy, chain, large)
            rounds.append(round)
            if not round.accepted:
                break
            over = over or chain.tokens - place.chain.tokens >= len(draft.tokens)
        tokens = chain.tokens - place.chain.tokens
        own = len(place.own.tokens) if over else tokens
        return Trial(place.problem, tuple(rounds), tokens, own, step, alone)


async def _round(policy: Policy, chain: Chain, large: RecordedModel) -> tuple[Round, Chain, bool]:
    """
    Draft and judge once after *chain*, and repair a rejected draft.

    Return the round, the longer chain, and whether the step is over.
    """
    clock = asyncio.get_running_loop().time
    before = large.written
    preparing = prepare(policy, chain)
    async with background(*([preparing] if preparing else [])) as prepared:
        draft = await policy.draft(chain)
        if draft.author == "large":
            written = large.written - before
            round = Round(0, 0, True, 0, 0, written, 0.0)
            return round, chain.extend(draft), draft.stop in WHOLE
        began = clock()
        verdict = await verify(policy, chain, draft, prepared[0] if prepared else None)
        seconds = clock() - began
    prepared_tokens = large.written - before
    if isinstance(verdict, Rollback) and verdict.chosen is not None:
        draft = verdict.chosen.step
        verdict = Accept()
    drafted = len(draft.tokens)
    if isinstance(verdict, Accept):
        round = Round(drafted, prepared_tokens, True, drafted, len(draft.text), 0, seconds)
        return round, chain.extend(draft), draft.stop in WHOLE
    kept = draft.cut(verdict.keep)
    chain = chain.extend(kept) if kept.text else chain
    repaired = await policy.repair(chain, draft, verdict)
    written = large.written - before - prepared_tokens
    round = Round(
        drafted, prepared_tokens, False, len(kept.tokens), len(kept.text), written, seconds
    )
    return round, chain.extend(repaired), repaired.stop in WHOLE
