"""
Build the endpoints of all runs from settings, and the parts of one run from the endpoints.

The parts are both models within a budget, the policy, the model that answers, and the judge of the
answer. Policies are checked before anything is connected.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from stepspec.orchestrator.auto import AutoRun
from stepspec.orchestrator.backends.vllm import RewardModelEndpoint
from stepspec.orchestrator.budget import Budget, Budgeted
from stepspec.orchestrator.chain import Chain, Rating, Role, Toolset
from stepspec.orchestrator.concurrency import at_once
from stepspec.orchestrator.endpoints import (
    CriticEndpoint,
    ReplicatedEndpoint,
    Sampling,
)
from stepspec.orchestrator.endpoints.answer_parser import ServerParser
from stepspec.orchestrator.endpoints.interfaces import Format, RunModel
from stepspec.orchestrator.errors import ContextTooLong, EndpointError
from stepspec.orchestrator.events import Observer, Stage
from stepspec.orchestrator.http.http_errors import no_room
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
from stepspec.orchestrator.repetition import DEFAULT_GUARD
from stepspec.orchestrator.run import RunParts
from stepspec.orchestrator.run_options import RunOptions
from stepspec.orchestrator.verifiers import (
    VERIFIERS,
    AnswerCheck,
    FunctionVerifier,
    SharedVerifier,
    Verifier,
    yes_or_no,
)

from . import policies, prompts
from .settings import Critic as CriticSettings
from .settings import Settings


def connected_critic(
    critic: CriticSettings | None, requests: int
) -> RewardModelEndpoint | SharedVerifier | None:
    """Connect *critic*. A reward model takes *requests* at a time if it names no number."""
    if critic is None:
        return None
    if isinstance(critic, CriticEndpoint):
        return RewardModelEndpoint(critic.with_default_concurrency(requests))
    return SharedVerifier(critic)


def check_policies(settings: Settings) -> None:
    """Raise `ConfigurationError` for a policy or verifier of *settings* that does not exist."""
    policies.check(settings.policy, settings.options, has_critic=settings.rates_steps)
    if isinstance(settings.critic, FunctionVerifier):
        VERIFIERS.find(settings.critic.function)


JUDGING_TOKENS = 192
"""Tokens of the context that are kept for a judge's question after the chain."""
MIN_ROOM = 32
"""The fewest tokens of the context in which a run can think and answer."""
STEP_QUESTION = prompts.load("check")
ANSWER_QUESTION = prompts.load("verifier.answer")
REJECTED = prompts.load("verifier.rejected")
REJECTED_BECAUSE = prompts.load("verifier.rejected-because")


@dataclass(frozen=True, slots=True)
class AnswerPlan:
    """How an answer is written."""

    format: Format | None = None
    """The form of the answer; None: any."""

    parser: Callable[[], AnswerParser] | None = None
    """Makes the parser that finds tool calls. None: the answer may call no tool."""

    by: Role = "large"
    """The model that writes the answer."""

    without_calls: Format | None = None
    """The form of an answer that calls no tool although it may; None: any."""

    stop: Sequence[str] = ()
    """Texts that end the answer."""


@dataclass(frozen=True, slots=True)
class Models:
    """The models of one run, each within the budget. Those with replicas hold a slot."""

    small: Model
    """The small model."""
    large: Model
    """The large model."""
    critic: Critic | None
    """Rates steps; None: nothing does."""
    budget: Budget
    """The budget of the run."""
    formatting: Model | None = None
    """The author when it answers in the format of `plan`; None: there is no format."""
    without_calls: Model | None = None
    """The author when it answers in the format of an answer that calls no tool; None: any."""
    plan: AnswerPlan = AnswerPlan()
    """How the answer is written."""
    sampled: bool = False
    """Whether the models sample."""
    check: AnswerCheck | None = None
    """Judges the answer; None: nothing does."""
    opened: Sequence[RunModel] = ()
    """The models that hold a slot at a replica."""

    def policy_of(self, run: RunOptions) -> Policy:
        """
        Build the policy of a run with the options *run*.

        The options ``ending``, ``lead`` and ``stop_loops`` become wrappers around the method. A
        baseline needs no wrapper for the first two: its one model writes all.
        """
        guard = None if run.stop_loops is False else DEFAULT_GUARD
        policy = policies.make(
            run.policy,
            self.small,
            self.large,
            critic=self.critic,
            sampled=self.sampled,
            loop_guard=guard,
            **run.options,
        )
        if run.policy not in policies.BASELINES:
            if (run.ending or ended_by(policy)) == "large":
                policy = policies.Ending(policy)
            if run.lead:
                policy = policies.Led(policy, self.large, run.lead)
        if run.stop_loops is None:
            return policy
        return policies.Guarded(policy, guard)

    def answerer(self, name: str, answer: AnsweredBy | None) -> Model | None:
        """
        Return the model that writes the answer; None if the policy *name* writes it step by step.

        *answer* says who answers; None: as in the policy's paper. Only the large model answers in a
        format or calls tools. A baseline answers with its one model.
        """
        if self.formatting is not None:
            return self.formatting
        by: str = answer or answered_by(policies.METHODS.find(name).source)
        if name in policies.BASELINES:
            by = name
        elif self.plan.parser:
            by = "large"
        return {"small": self.small, "large": self.large}.get(by)

    def parts(self, run: RunOptions, auto: AutoRun | None, **other: Any) -> RunParts:
        """
        Make the parts of a run with the options *run*.

        *auto* decides when the large model writes alone; None: never. *other* has the parts that do
        not follow from the options.
        """
        answerer = self.answerer(run.policy, run.answer)
        return RunParts(
            self.policy_of(run),
            self.budget,
            LookaheadControl(run.ahead, run.hedge, auto),
            answerer=answerer,
            stop=self.plan.stop,
            by_method=answerer is None,
            parser=self.plan.parser,
            without_calls=self.without_calls,
            check=self.check,
            **other,
        )

    def leave(self) -> None:
        """Give back the slots at the replicas."""
        for model in self.opened:
            model.leave()


@dataclass(frozen=True, slots=True)
class Connections:
    """The connections to both models and to the critic."""

    small: ReplicatedEndpoint
    """The small model."""
    large: ReplicatedEndpoint
    """The large model."""
    critic: RewardModelEndpoint | SharedVerifier | None = None
    """Rates steps or answers; None: nothing does."""

    def models(
        self,
        budget: Budget,
        sampling: Sampling,
        observe: Observer,
        clock: Callable[[], float],
        plan: AnswerPlan = AnswerPlan(),
    ) -> Models:
        """Open the models of one run. *observe* sees their requests, timed by *clock*."""
        opened: list[RunModel] = []

        def opened_model(endpoint: ReplicatedEndpoint, format: Format | None = None) -> Budgeted:
            model = endpoint.model(sampling, observe=observe, clock=clock, format=format)
            opened.append(model)
            return Budgeted(model, budget.left)

        def formatted_by_author(format: Format | None) -> Budgeted | None:
            author = self.small if plan.by == "small" else self.large
            return None if format is None else opened_model(author, format)

        large = opened_model(self.large)
        formatting = formatted_by_author(plan.format)
        without_calls = formatted_by_author(plan.without_calls)
        critic: Critic | None = None
        check = None
        if isinstance(self.critic, RewardModelEndpoint):
            critic = self.critic.critic(observe=observe, clock=clock)
        elif self.critic:
            settings = self.critic.settings
            verifier = Verifier(self.critic, _instead(large.model), observe, clock)
            critic = verifier if settings.rates("step") else None
            if settings.rates("answer"):
                formatted = without_calls or (None if plan.parser else formatting)
                author = formatted or large
                check = AnswerCheck(verifier, author.model, rejected, settings.repairs)
        return Models(
            small=opened_model(self.small),
            large=large,
            critic=critic,
            budget=budget,
            formatting=formatting,
            without_calls=without_calls,
            plan=plan,
            sampled=sampling.temperature > 0,
            check=check,
            opened=opened,
        )

    async def answer_plan(
        self,
        tools: Toolset | None,
        run: RunOptions,
        format: Format | None,
        stop: Sequence[str],
    ) -> AnswerPlan:
        """
        Return how the answer of *run* is written.

        Raise `MissingCapability` if the server of the author has no parser for calls.
        """
        if tools is None or not tools.callable:
            return AnswerPlan(format, stop=stop)
        by: Role = "small" if run.policy == "small" else "large"
        author = self.small if by == "small" else self.large
        may_answer = tools.choice == "auto" and not tools.named
        return AnswerPlan(
            format=await author.call(lambda server: server.tool_format(tools)),
            parser=lambda: ServerParser(author, tools),
            by=by,
            without_calls=format if may_answer else None,
            stop=stop,
        )


async def context_room(
    chain: Chain,
    small: ReplicatedEndpoint,
    large: ReplicatedEndpoint,
    *,
    needs_small: bool = False,
) -> tuple[int, EndpointError | None]:
    """
    Count the tokens that a chain may have in the contexts of both models.

    The tokens of the problem and of a judge's question are subtracted from the contexts.

    If the small model cannot be used, or its context is too short, return the room of the large
    model and the error. Raise the error if the run *needs_small*. Raise `ContextTooLong` if the
    room is too little for a run, and an `EndpointError` if the large model's server cannot count.
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
    if isinstance(ours, EndpointError):
        return theirs, ours
    return min(ours, theirs), None


async def _context_room(endpoint: ReplicatedEndpoint, chain: Chain) -> int:
    """Count the tokens that a chain may have in the context of one model."""
    prompt = await endpoint.call(lambda server: server.count(chain.messages, chain.tools))
    room = endpoint.room - prompt - JUDGING_TOKENS
    if room < MIN_ROOM:
        raise ContextTooLong(
            no_room(prompt, endpoint.room),
            role=endpoint.role,
            url=endpoint.settings.url,
        )
    return room


def _instead(large: Model) -> Callable[[Chain, Stage], Awaitable[Rating]]:
    """Return the judge that replaces a verifier that fails: the large model."""

    async def judge(chain: Chain, stage: Stage) -> Rating:
        prompt = STEP_QUESTION if stage == "step" else ANSWER_QUESTION
        return await yes_or_no(large, chain, prompt.text, prompt.opening)

    return judge


def rejected(reason: str) -> str:
    """Return the text after a rejected answer, which asks the large model for a better one."""
    text = REJECTED_BECAUSE.fill(reason=reason) if reason else REJECTED.text
    return f"\n\n{text}\n\n"
