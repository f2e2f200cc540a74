"""
What one run is made of: both models within its budget, its policy, who writes the answer, and who
judges it.

Before it, the endpoints of all runs: made of settings, whose policies are checked before anything
is connected.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from stepspec.orchestrator.auto import AutoRun
from stepspec.orchestrator.budget import Budget, Budgeted
from stepspec.orchestrator.chain import Chain, Role, Toolset
from stepspec.orchestrator.concurrency import at_once
from stepspec.orchestrator.endpoints import (
    CriticEndpoint,
    Endpoint,
    ModelEndpoint,
    ReplicatedModel,
    RewardModelEndpoint,
    Sampling,
    connect,
)
from stepspec.orchestrator.endpoints.interfaces import ServerParser
from stepspec.orchestrator.endpoints.vllm_protocol import Format, no_room
from stepspec.orchestrator.errors import ConfigurationError, ContextTooLong, EndpointError
from stepspec.orchestrator.events import Observer, Stage
from stepspec.orchestrator.interfaces import (
    AnsweredBy,
    AnswerParser,
    Critic,
    Model,
    Policy,
    answered_by,
    ended_by,
)
from stepspec.orchestrator.lookahead import LookaheadControl
from stepspec.orchestrator.nesting import Nested, NestedEndpoint, NestedPair, Nesting
from stepspec.orchestrator.run import RunParts
from stepspec.orchestrator.run_options import RunOptions
from stepspec.orchestrator.verifiers import (
    VERIFIERS,
    AnswerCheck,
    ConnectedVerifier,
    FunctionVerifier,
    LargeJudge,
    Verifier,
)

from . import policies, prompts
from .settings import Settings


def connected(
    settings: Endpoint | NestedPair, table: str = "", *, optional: bool = False
) -> ModelEndpoint:
    """
    Make the endpoint of one model or of a nested pair, to be entered; *table* is its table of the
    settings.

    An *optional* one may be entered while it is down, and so may the small model of a pair.
    """
    table = table or settings.role
    if isinstance(settings, Endpoint):
        return connect(settings, table, optional=optional)
    return NestedEndpoint(
        settings.role,
        connected(settings.small, f"{table}.small", optional=True),
        connect(settings.large, f"{table}.large", optional=optional),
        partial(policies.make, settings.policy, **settings.options),
        settings.policy,
    )


def connected_critic(settings: Settings) -> RewardModelEndpoint | ConnectedVerifier | None:
    if settings.critic is None:
        return None
    if isinstance(settings.critic, CriticEndpoint):
        return RewardModelEndpoint(settings.critic)
    return ConnectedVerifier(settings.critic)


def check_policies(settings: Settings) -> None:
    """
    Raise `ConfigurationError` if the policy of *settings* cannot be, or that of a pair within, or a
    verifier.
    """
    policies.check(settings.policy, settings.options, has_critic=settings.rates_steps)
    if isinstance(settings.critic, FunctionVerifier):
        VERIFIERS.find(settings.critic.function)
    if isinstance(settings.small, NestedPair):
        check_nested_policies(settings.small.nested)


def check_nested_policies(pairs: Mapping[str, Nesting]) -> None:
    """
    Raise `ConfigurationError` if the policy of one of the nested *pairs*, which are given by paths,
    cannot be.
    """
    for path, pair in pairs.items():
        try:
            policies.check(pair.policy, pair.options, has_critic=None)
        except ConfigurationError as exc:
            raise ConfigurationError(f"{path}: {exc}") from exc


JUDGING_ROOM = 192  # tokens of context that a judge's question may take after the chain
LEAST_ROOM = 32  # tokens to think and answer in, without which a run is not worth starting
STEP_QUESTION, ANSWER_QUESTION = prompts.load("check"), prompts.load("verifier.answer")
REJECTED = prompts.load("verifier.rejected"), prompts.load("verifier.rejected-because")


@dataclass(frozen=True, slots=True)
class Answering:
    """How an answer is written."""

    format: Format | None = None
    """The form of the answer; None: any."""

    parser: Callable[[], AnswerParser] | None = None
    """Makes what finds the calls of tools; None if the answer may call none."""

    by: Role = "large"
    """The model that writes it."""

    without_calls: Format | None = None
    """The form of an answer that may call tools and calls none; None: any."""


@dataclass(frozen=True, slots=True)
class Models:
    """
    Both models of one run within its *budget*, and what rates its steps, the *critic*, if there is
    one.

    *formatting* is the large model when it answers in a format; *sampled* says whether the models
    sample. With a *parser* for calls of tools, the large model answers. *check* is what judges the
    answer, if anything does; *watch* may end what the small model writes. Models that have replicas
    hold a place until `leave`.
    """

    small: Model
    large: Model
    critic: Critic | None
    budget: Budget
    formatting: Model | None = None
    without_calls: Model | None = None
    """The large model when it answers in the format of an answer that calls no tool; None: any."""

    sampled: bool = False
    parser: Callable[[], AnswerParser] | None = None
    check: AnswerCheck | None = None

    def policy(self, name: str, options: Mapping[str, Any]) -> Policy:
        small = _budgeted(self.small, self.budget)
        large = _budgeted(self.large, self.budget)
        return policies.make(
            name, small, large, critic=self.critic, sampled=self.sampled, **options
        )

    def policy_of(self, run: RunOptions) -> Policy:
        """
        Build the policy of a run with the options *run*; a baseline leads, and ends the thinking,
        by itself.
        """
        policy = self.policy(run.policy, run.options)
        if run.policy not in policies.BASELINES:
            if (run.ending or ended_by(policy)) == "large":
                policy = policies.Ending(policy)
            if run.lead:
                policy = policies.Led(policy, _budgeted(self.large, self.budget), run.lead)
        return policy if run.stop_loops is None else policies.Guarded(policy, run.stop_loops)

    def answerer(self, name: str, answer: AnsweredBy | None) -> Model | None:
        """
        The one model that answers, so that policy *name* does not go on through the answer; None if
        it does.

        *answer* says who; None: as in the policy's paper. Formats and tools are the large model's;
        a baseline is alone.
        """
        if self.formatting is not None:
            return _within(self.formatting, self.budget)
        paper = answered_by(policies.METHODS.find(name).source)
        by = name if name in policies.BASELINES else "large" if self.parser else answer or paper
        return (
            None
            if by == "method"
            else _budgeted(self.small if by == "small" else self.large, self.budget)
        )

    def parts(self, run: RunOptions, auto: AutoRun | None, **other: Any) -> RunParts:
        """
        Put together a run with the options *run*; *other* parts are those of `RunParts` that no
        option says.

        With *auto*, the large model alone writes where that decides so.
        """
        answerer = self.answerer(run.policy, run.answer)
        return RunParts(
            self.policy_of(run),
            self.budget,
            LookaheadControl(run.ahead, run.hedge, auto),
            answerer=answerer,
            by_method=answerer is None,
            parser=self.parser,
            without_calls=_within(self.without_calls, self.budget),
            check=self.check,
            **other,
        )

    def leave(self) -> None:
        """Give back the places at the replicas."""
        for model in (self.small, self.large, self.formatting, self.without_calls):
            if isinstance(model, ReplicatedModel | Nested):
                model.leave()


@dataclass(frozen=True, slots=True)
class Connections:
    """The connections to both models, and to what rates steps or answers, if there is anything."""

    small: ModelEndpoint
    large: ModelEndpoint
    critic: RewardModelEndpoint | ConnectedVerifier | None = None

    def models(
        self,
        budget: Budget,
        sampling: Sampling,
        observe: Observer,
        clock: Callable[[], float],
        answering: Answering | None = None,
    ) -> Models:
        small, large = (
            endpoint.model(sampling, observe=observe, clock=clock)
            for endpoint in (self.small, self.large)
        )
        answering = answering or Answering()
        author = self.small if answering.by == "small" else self.large
        formatting, without_calls = (
            author.model(sampling, observe=observe, clock=clock, format=format)
            if format is not None
            else None
            for format in (answering.format, answering.without_calls)
        )
        critic: Critic | None = None
        check = None
        match self.critic:
            case RewardModelEndpoint():
                critic = self.critic.critic(observe=observe, clock=clock)
            case ConnectedVerifier(settings=settings):
                verifier = Verifier(self.critic, _instead(large), observe, clock)
                critic = verifier if settings.rates("step") else None
                if settings.rates("answer"):
                    formatted = without_calls or (None if answering.parser else formatting)
                    check = AnswerCheck(verifier, formatted or large, rejected, settings.repairs)
            case None:
                pass
        return Models(
            small,
            large,
            critic,
            budget,
            formatting,
            without_calls,
            sampling.temperature > 0,
            answering.parser,
            check,
        )

    async def answering(
        self, tools: Toolset | None, run: RunOptions, format: Format | None
    ) -> Answering:
        """
        How the answer of *run* is written. Raise `ConfigurationError` for what cannot be,
        `MissingCapability`.
        """
        if tools is None or not tools.callable:
            return Answering(format)
        by: Role = "small" if run.policy == "small" else "large"
        author = self.small if by == "small" else self.large
        may_answer = tools.choice == "auto" and not tools.named
        return Answering(
            await author.tool_format(tools),
            lambda: ServerParser(author, tools),
            by,
            format if may_answer else None,
        )


async def context_room(
    chain: Chain, small: ModelEndpoint, large: ModelEndpoint, *, needs_small: bool = False
) -> tuple[int, EndpointError | None]:
    """
    Count the tokens that both contexts hold beyond the problem and a judge's question.

    If the small model cannot be used, or takes too little, the room is that of the large one, and
    the failure is returned, or raised if the run *needs_small*. Raise `ContextTooLong` if the room
    is too little to start a run, and an `EndpointError` if the large model's server cannot count.
    """

    async def of_small() -> int | EndpointError:
        try:
            return await _context_room(small, chain)
        except EndpointError as exc:
            if needs_small:
                raise
            return exc

    if small is large:
        return await _context_room(large, chain), None
    ours, theirs = await at_once((of_small(), _context_room(large, chain)))
    assert isinstance(theirs, int)
    return (theirs, ours) if isinstance(ours, EndpointError) else (min(ours, theirs), None)


async def _context_room(endpoint: ModelEndpoint, chain: Chain) -> int:
    prompt = await endpoint.count(chain.messages, chain.tools)
    room = endpoint.room - prompt - JUDGING_ROOM
    if room < LEAST_ROOM:
        raise ContextTooLong(
            no_room(prompt, endpoint.room), role=endpoint.role, url=endpoint.settings.url
        )
    return room


def _instead(large: Model) -> LargeJudge:
    """What judges in place of a verifier that fails."""

    def ask(stage: Stage) -> tuple[str, str]:
        prompt = STEP_QUESTION if stage == "step" else ANSWER_QUESTION
        return prompt.text, prompt.opening

    return LargeJudge(large, ask)


def rejected(reason: str) -> str:
    """Write what follows a rejected answer, so that the large model goes on with a better one."""
    unknown, known = REJECTED
    text = known.fill(reason=reason) if reason else unknown.text
    return f"\n\n{text}\n\n"


def _within(model: Model | None, budget: Budget) -> Model | None:
    """Return the *model* of an answer, which ends where the *budget* is spent."""
    return None if model is None else Budgeted(model, budget.left)


def _budgeted(model: Model, budget: Budget) -> Budgeted:
    if isinstance(model, Nested):
        model = model.budgeted(budget.left)
    return Budgeted(model, budget.left)
