"""The models of one run, and the policies over them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from stepspec.orchestrator.budget import Budget, Budgeted
from stepspec.orchestrator.endpoints import Endpoint, ModelEndpoint, ReplicatedModel, connect
from stepspec.orchestrator.errors import ConfigurationError
from stepspec.orchestrator.interfaces import (
    AnsweredBy,
    Critic,
    EndedBy,
    Model,
    Policy,
    answered_by,
    ended_by,
)
from stepspec.orchestrator.nesting import Nested, NestedEndpoint, NestedPair
from stepspec.orchestrator.nesting.settings import Nesting

from . import policies
from .settings import Settings


@dataclass(frozen=True, slots=True)
class Models:
    """
    Both models of one run within its *budget*, and the *critic*, if there is one.

    *formatting* is the large model when it answers in a format; *sampled* says whether the models sample. Those that
    have replicas hold a place until `leave`.
    """

    small: Model
    large: Model
    critic: Critic | None
    budget: Budget
    formatting: Model | None = None
    sampled: bool = False

    def policy(
        self,
        name: str,
        options: Mapping[str, Any],
        *,
        lead: int = 0,
        ending: EndedBy | None = None,
    ) -> Policy:
        """
        Build policy *name*; whatever it is, but for the baselines, the large model may *lead*.

        *ending* says who ends the thinking; None: as in the policy's paper.
        """
        small, large = (_budgeted(model, self.budget) for model in (self.small, self.large))
        policy = policies.make(name, small, large, critic=self.critic, sampled=self.sampled, **options)
        if name in policies.BASELINES:
            return policy
        by = ending or ended_by(policy)
        if by != "small":
            policy = policies.Ending(policy, large, by)
        return policies.Led(policy, large, lead) if lead else policy

    def answerer(self, name: str, answer: AnsweredBy | None) -> Model | None:
        """
        The one model that answers, so that policy *name* does not go on through the answer; None if it does.

        *answer* says who; None: as in the policy's paper. A format is the large model's; a baseline's model is alone.
        """
        if self.formatting is not None:
            return Budgeted(self.formatting, self.budget.left)
        by = name if name in policies.BASELINES else answer or answered_by(policies.METHODS[name].build)
        return None if by == "method" else _budgeted(self.small if by == "small" else self.large, self.budget)

    def leave(self) -> None:
        for model in (self.small, self.large, self.formatting):
            if isinstance(model, ReplicatedModel | Nested):
                model.leave()


def check(settings: Settings) -> None:
    """Raise `ConfigurationError` if the policy of *settings* cannot be, or that of a pair within."""
    policies.check(settings.policy, settings.options, has_critic=settings.critic is not None)
    if isinstance(settings.small, NestedPair):
        check_within(settings.small.nested)


def check_within(pairs: Mapping[str, Nesting]) -> None:
    """Raise `ConfigurationError` if the policy of one of the nested *pairs*, which are given by paths, cannot be."""
    for path, pair in pairs.items():
        try:
            policies.check(pair.policy, pair.options, has_critic=False)
        except ConfigurationError as exc:
            raise ConfigurationError(f"{path}: {exc}") from exc


def connected(settings: Endpoint | NestedPair) -> ModelEndpoint:
    """Make the endpoint of one model or of a nested pair, to be entered."""
    if isinstance(settings, Endpoint):
        return connect(settings)
    return NestedEndpoint(
        settings.role,
        connected(settings.small),
        connect(settings.large),
        partial(policies.make, settings.policy, **settings.options),
        about=settings.policy,
        ahead=settings.ahead,
    )


def _budgeted(model: Model, budget: Budget) -> Budgeted:
    return Budgeted(model.budgeted(budget.left) if isinstance(model, Nested) else model, budget.left)
