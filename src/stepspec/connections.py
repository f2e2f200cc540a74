"""Endpoints that are made of settings, and what settings have to agree on before anything is connected."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from stepspec.orchestrator.endpoints import CriticEndpoint, Endpoint, ModelEndpoint, RewardModelEndpoint, connect
from stepspec.orchestrator.errors import ConfigurationError
from stepspec.orchestrator.nesting import NestedEndpoint, NestedPair
from stepspec.orchestrator.nesting.settings import Nesting
from stepspec.orchestrator.verifiers import VERIFIERS, ConnectedVerifier, FunctionVerifier

from . import policies
from .settings import Settings


def connected(settings: Endpoint | NestedPair, table: str = "", *, optional: bool = False) -> ModelEndpoint:
    """
    Make the endpoint of one model or of a nested pair, to be entered; *table* is its table of the settings.

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
        about=settings.policy,
        ahead=settings.ahead,
    )


def connected_critic(settings: Settings) -> RewardModelEndpoint | ConnectedVerifier | None:
    if settings.critic is None:
        return None
    if isinstance(settings.critic, CriticEndpoint):
        return RewardModelEndpoint(settings.critic)
    return ConnectedVerifier(settings.critic)


def check_policies(settings: Settings) -> None:
    """Raise `ConfigurationError` if the policy of *settings* cannot be, or that of a pair within, or a verifier."""
    policies.check(settings.policy, settings.options, has_critic=settings.rates_steps)
    if isinstance(settings.critic, FunctionVerifier):
        VERIFIERS.find(settings.critic.function)
    if isinstance(settings.small, NestedPair):
        check_nested_policies(settings.small.nested)


def check_nested_policies(pairs: Mapping[str, Nesting]) -> None:
    """Raise `ConfigurationError` if the policy of one of the nested *pairs*, which are given by paths, cannot be."""
    for path, pair in pairs.items():
        try:
            policies.check(pair.policy, pair.options, has_critic=None)
        except ConfigurationError as exc:
            raise ConfigurationError(f"{path}: {exc}") from exc
