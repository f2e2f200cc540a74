"""
Drafts of the small model after beginnings of the large model's chains, and what a method makes of
them.

The small model drafts once in each place. Every method then runs from there, until the step is
over, with models that already know this draft and the large model's own step. A method of short
drafts or short repairs asks for more where the text goes on otherwise.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Unpack

from stepspec.api import Solver
from stepspec.orchestrator.backends.vllm import RewardModelEndpoint
from stepspec.orchestrator.budget import Budget, Budgeted
from stepspec.orchestrator.chain import Chain, Step, Stop, Token
from stepspec.orchestrator.endpoints.interfaces import RunModel, SingleModel
from stepspec.orchestrator.errors import StepspecError
from stepspec.orchestrator.interfaces import (
    DEFAULT_LIMIT,
    Model,
    Policy,
    WriteOptions,
    answered_by,
)
from stepspec.orchestrator.lookahead import LookaheadControl
from stepspec.orchestrator.reason import Loop
from stepspec.orchestrator.step_ends import StepEnds
from stepspec.policies import METHODS
from stepspec.run_parts import Models

from ..sample import Arm
from .rounds import Round, RoundWatch

WHOLE = ("delimiter", "end")
"""Why a whole step stopped."""
NOTHING = Step("", "large")


@dataclass(frozen=True, slots=True)
class Place:
    """A place in the large model's chain about a problem, where a step begins."""

    problem: int
    """The number of the problem. Steps of one problem depend on each other."""
    chain: Chain
    """The chain before the step."""
    own: Step
    """The step that the large model wrote here."""
    following: Step = NOTHING
    """The large model's step after its own one."""


async def begin_chain(solver: Solver, problem: str) -> Chain:
    """Begin the chain of *problem* as a run of *solver* would."""
    run = solver.settings.run
    chain = Chain.of(problem, StepEnds.of(run.delimiter), system=run.system)
    thinks = await solver.large.call(lambda server: server.thinks(chain.messages, chain.tools))
    return replace(chain, thinks=thinks)


async def write_chain(model: Model, chain: Chain, limit: int) -> AsyncGenerator[Chain]:
    """Let *model* go on until the chain ends or has *limit* tokens. Yield it after every step."""
    while not has_ended(chain) and chain.tokens < limit:
        step = await model.write(chain, limit=min(DEFAULT_LIMIT, limit - chain.tokens))
        if step.stop not in WHOLE or not step.tokens:
            return
        chain = chain.extend(step)
        yield chain


def has_ended(chain: Chain) -> bool:
    """Whether the large model has answered."""
    if not chain.finished:
        return False
    return not chain.thinks or not chain.steps[-1].closes


def places_of(problem: int, whole: Chain) -> list[Place]:
    """Every place of the chain *whole* where a step begins, for the problem with this number."""
    steps = (*whole.steps, NOTHING)
    return [
        Place(problem, replace(whole, steps=steps[:count]), own, following)
        for count, (own, following) in enumerate(pairwise(steps))
    ]


@dataclass(frozen=True)
class KnownModel(Budgeted, SingleModel):
    """
    A model of which it is known that it writes one step after one chain.

    It writes this step again, in the parts that a method asks for.
    """

    start: Chain
    """The chain before the step."""
    step: Step
    """The step."""

    async def write(self, chain: Chain, **options: Unpack[WriteOptions]) -> Step:
        """
        Write what is known to follow *chain*, and ask the real model for anything else.

        A repair to the end of the step is as long as what is left of the large model's own step,
        also where the chain has left its text.
        """
        stop = options.get("stop")
        limit = options.get("limit", DEFAULT_LIMIT)
        until = options.get("until")
        rest = self._rest(chain, by_length=self.role == "large" and stop is None)
        if until is not None:
            parts = (self._part(rest[:count], "until") for count in range(1, len(rest) + 1))
            ended = next((part for part in parts if until(part)), None)
            if ended is not None and len(ended.tokens) <= limit:
                return ended
        if len(rest) > limit or (rest and len(rest) == limit and stop is not None):
            return self._part(rest[:limit], "length")
        if rest and stop is None:
            return self._part(rest, self.step.stop)
        return await self.model.write(chain, **options)

    def _rest(self, chain: Chain, *, by_length: bool) -> Sequence[Token]:
        """
        The tokens of the step that follow after *chain*; none if its text goes on otherwise.

        *by_length* only counts the tokens, and leaves at least one.
        """
        tokens = self.step.tokens
        if by_length:
            return tokens[min(chain.tokens - self.start.tokens, len(tokens) - 1) :]
        grown = chain.text[len(self.start.text) :]
        text = ""
        for count, token in enumerate(tokens):
            if text == grown:
                return tokens[count:]
            text += token.text
        return ()

    def _part(self, tokens: Sequence[Token], stop: Stop) -> Step:
        return replace(
            self.step,
            author=self.role,
            text="".join(token.text for token in tokens),
            stop=stop,
            tokens=tuple(tokens),
        )


@dataclass(frozen=True, slots=True)
class Trial:
    """What a method makes of the draft in one place, until the step is over."""

    problem: int
    """The number of the problem."""
    rounds: tuple[Round, ...]
    """The rounds, at least one."""
    own: int
    """Tokens that the large model alone writes for the same progress."""
    step: int = 0
    """The number of the step in its chain."""
    alone: bool = False
    """Whether no other request was under way, so that the seconds of verdicts count."""

    @property
    def tokens(self) -> int:
        """Tokens by which the chain grows."""
        return sum(round.tokens for round in self.rounds)

    @property
    def accepted(self) -> bool:
        """Whether the whole draft is accepted."""
        return all(round.accepted for round in self.rounds)


@dataclass(frozen=True, slots=True)
class Trier:
    """Tries methods on drafts, with the models of one solver."""

    small: RunModel
    """The small model, for what is not known of its drafts."""
    large: RunModel
    """The large model, which is asked for verdicts."""
    solver: Solver
    """The solver whose settings the methods are built with."""

    def policy(self, arm: Arm, small: RunModel, large: RunModel) -> Policy:
        """Build the policy of *arm* over two models, as in a run."""
        run = arm.resolve(self.solver.settings.run)
        rating = self.solver.critic
        critic = rating.critic() if isinstance(rating, RewardModelEndpoint) else None
        sampled = run.sampling.temperature > 0
        return Models(small, large, critic, Budget(), sampled=sampled).policy_of(run)

    async def attempt(
        self,
        arm: Arm,
        place: Place,
        draft: Step,
        *,
        alone: bool = False,
    ) -> Trial | None:
        """
        Let *arm* go through the step of *place*, where the small model writes *draft*.

        Return None if it commits nothing. Raise `StepspecError` if a request fails.
        """
        length = len(place.own.tokens)
        number = len(place.chain.steps)
        answerer = arm.run.answer or answered_by(METHODS.find(arm.policy).source)
        if place.chain.closed and answerer == "large":
            alone_written = Round(0, accepted=True, tokens=length, written=length)
            return Trial(place.problem, (alone_written,), length, number)
        watch = RoundWatch()

        def over(chain: Chain) -> bool:
            return watch.between and (chain.finished or chain.whole or watch.tokens >= length)

        loop = Loop(
            policy=self.policy(
                arm,
                KnownModel(self.small, Budget().left, place.chain, draft),
                KnownModel(self.large, Budget().left, place.chain, place.own),
            ),
            chain=place.chain,
            control=LookaheadControl.of(0),
            observe=watch,
            spent=lambda chain: False,
            over=over,
        )
        await loop.run(deadline=None)
        chain = loop.chain
        if watch.failed:
            raise StepspecError("the server of its judge gave no verdict")
        if not watch.rounds:
            return None
        whole = chain.finished or chain.whole
        own = length if whole else watch.tokens
        return Trial(place.problem, tuple(watch.rounds), own, number, alone)
