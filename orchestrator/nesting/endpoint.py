"""A nested pair as an endpoint: the servers of its models, and what they have in common."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from functools import partial
from types import TracebackType
from typing import Self

from ..chain import Message, Role
from ..concurrency import all_entered
from ..endpoints import (
    Endpoint,
    ModelEndpoint,
    ReplicatedEndpoint,
    Sampling,
    Template,
    VllmEndpoint,
)
from ..endpoints.chat_template import disagreement
from ..endpoints.metrics import Acceptance, QueueGauges
from ..endpoints.probe import Capabilities
from ..endpoints.token_stream import or_now
from ..endpoints.vllm_protocol import GREEDY, Format
from ..errors import ConfigurationError
from ..events import Observer
from ..interfaces import Policy
from .model import Nested, within


class NestedEndpoint:
    """
    The endpoint of a *small* and a *large* model that stand in for one of the *role*, each an endpoint to be entered.

    *policy* makes the pair's own policy over its two models; where the models sample, it is called with ``sampled``.

    Where one server has to stand for all of them, for a request that is passed on as it is, it is the large one's. A
    *small* one that cannot be reached on entering is an error; one that fails later is not.
    """

    def __init__(
        self,
        role: Role,
        small: ModelEndpoint,
        large: ModelEndpoint,
        policy: Callable[..., Policy],
        *,
        about: str = "",
        ahead: int = 1,
    ) -> None:
        self.role: Role = role
        self.small, self.large = small, large
        self._policy, self._about, self._ahead = policy, about, ahead
        self._exit = AsyncExitStack()

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            await all_entered(stack, (self.small, self.large))
            if why := disagreement(self.small.template.thinks, self.large.template.thinks):
                raise ConfigurationError(
                    f"{self.small.name} and {self.large.name} cannot be the {self.role} pair: {why} (of that pair)"
                )
            self._exit = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._exit.aclose()

    @property
    def leaves(self) -> tuple[ModelEndpoint, ...]:
        """The endpoints of its models, those of the pairs in it included."""
        return tuple(leaf for endpoint in (self.small, self.large) for leaf in leaves(endpoint))

    @property
    def settings(self) -> Endpoint:
        return self.large.settings

    @property
    def name(self) -> str:
        return self.large.name

    @property
    def described(self) -> str:
        """The names of all of its models, and how they work together."""
        return f"{self._about or 'a pair'} of {described(self.small)} and {described(self.large)}"

    @property
    def template(self) -> Template:
        return self.large.template

    @property
    def vocabulary(self) -> str:
        """That of all of its models; none if they have not the same."""
        return self.large.vocabulary if self.small.vocabulary == self.large.vocabulary else ""

    @property
    def room(self) -> int:
        """The longest sequence that all of its models take, in tokens."""
        return min(self.small.room, self.large.room)

    async def count(self, messages: tuple[Message, ...]) -> int:
        """Count the tokens that a chain about *messages* begins with, for the model that needs the most."""
        return max(await asyncio.gather(self.small.count(messages), self.large.count(messages)))

    async def queue(self) -> QueueGauges | None:
        return await self.large.queue()

    async def acceptance(self) -> Acceptance | None:
        return await self.large.acceptance()

    async def capabilities(self) -> Capabilities:
        return await self.large.capabilities()

    def model(
        self,
        sampling: Sampling = GREEDY,
        *,
        observe: Observer = lambda event: None,
        clock: Callable[[], float] | None = None,
        format: Format | None = None,
    ) -> Nested:
        """Make the model of one run, as `VllmEndpoint.model` does. Raise `ConfigurationError` for a wrong policy."""
        clock, told, sampling = or_now(clock), within(self.role, observe), sampling.within(self.role)
        small, large = (
            endpoint.model(sampling, observe=told, clock=clock, format=format) for endpoint in (self.small, self.large)
        )
        policy = partial(self._policy, sampled=True) if sampling.temperature else self._policy
        return Nested(self.role, small, large, policy, self._ahead, observe)


def leaves(endpoint: ModelEndpoint) -> tuple[ModelEndpoint, ...]:
    """The endpoints of single models that *endpoint* is made of: itself, unless it is a nested pair."""
    return endpoint.leaves if isinstance(endpoint, NestedEndpoint) else (endpoint,)


def described(endpoint: ModelEndpoint) -> str:
    """The name of the model behind *endpoint*; of a nested pair, those of all of its models."""
    return endpoint.described if isinstance(endpoint, NestedEndpoint) else endpoint.name


def named(endpoint: ModelEndpoint) -> Iterator[tuple[str, str]]:
    """Name what is behind *endpoint*, by its role; of a nested pair then its models by their paths, cheapest first."""
    yield endpoint.role, described(endpoint)
    if isinstance(endpoint, NestedEndpoint):
        for one in (endpoint.small, endpoint.large):
            for path, name in named(one):
                yield f"{endpoint.role}.{path}", name


def servers(endpoint: ModelEndpoint) -> Iterator[tuple[str, VllmEndpoint]]:
    """The servers behind *endpoint* that are up, by the role of their model or, in a nested pair, by its path."""
    match endpoint:
        case NestedEndpoint():
            for one in (endpoint.small, endpoint.large):
                yield from ((f"{endpoint.role}.{name}", server) for name, server in servers(one))
        case ReplicatedEndpoint():
            for one in endpoint.up:
                yield from servers(one)
        case VllmEndpoint():
            yield endpoint.role, endpoint
        case _:
            pass
