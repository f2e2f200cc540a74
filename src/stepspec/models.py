"""The models of one run, and the policies over them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from . import policies
from .orchestrator.budget import Budget, Budgeted
from .orchestrator.endpoints import ReplicatedModel
from .orchestrator.interfaces import Critic, Model, Policy


@dataclass(frozen=True, slots=True)
class Models:
    """
    Both models of one run within its *budget*, and the *critic*, if there is one.

    *formatting* is the large model when it answers in a format. Those that have replicas hold a place until `leave`.
    """

    small: Model
    large: Model
    critic: Critic | None
    budget: Budget
    formatting: Model | None = None

    def policy(self, name: str, options: Mapping[str, Any], *, lead: int = 0, plan: bool = False) -> Policy:
        """Build policy *name*; whatever it is, but for the baselines, the large model may *plan* and *lead*."""
        small, large = (Budgeted(model, self.budget.left) for model in (self.small, self.large))
        policy = policies.make(name, small, large, critic=self.critic, **options)
        if name in policies.BASELINES or not (lead or plan):
            return policy
        return policies.Led(policy, large, lead, plan)

    @property
    def answerer(self) -> Model | None:
        """Who answers instead of the policy's own answerer, if anyone does."""
        return Budgeted(self.formatting, self.budget.left) if self.formatting else None

    def leave(self) -> None:
        for model in (self.small, self.large, self.formatting):
            if isinstance(model, ReplicatedModel):
                model.leave()
