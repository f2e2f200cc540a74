"""A nested pair as an endpoint: the servers of its two models stand in for one server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from functools import partial
from types import TracebackType
from typing import Self

from ..chain import Message, Role, Token, Tool, Toolset
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
from ..endpoints.metrics import QueueGauges
from ..endpoints.probe import Capabilities
from ..endpoints.token_stream import or_now
from ..endpoints.tool_protocol import ParserState
from ..endpoints.vllm_protocol import GREEDY, Format
from ..errors import ConfigurationError, EndpointError, MissingCapability
from ..events import Calling, Observer
from ..interfaces import Policy
from ..stats import Acceptance
from .model import Nested, observe_within


class NestedEndpoint:
    """
    The endpoints *small* and *large*, which stand in for one model of the *role* and are entered with the pair.

    *policy* makes the pair's own policy over its two models; if the models sample, it is called with ``sampled``.
    *about* names the policy in `described`. *ahead* is that of `Nested`.

    Requests that are passed on unchanged go to the large model's server. As long as the small model cannot be
    reached, the large one is alone.
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
            require_agreement(
                self.small, self.large, lambda small, large: f"{small} and {large} cannot be the {self.role} pair"
            )
            self._exit = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._exit.aclose()

    @property
    def leaves(self) -> tuple[ModelEndpoint, ...]:
        """The endpoints of all single models in the pair, those in nested pairs included."""
        return tuple(leaf for endpoint in (self.small, self.large) for leaf in leaves(endpoint))

    @property
    def settings(self) -> Endpoint:
        return self.large.settings

    @property
    def name(self) -> str:
        return self.large.name

    @property
    def described(self) -> str:
        """The names of all models in the pair, and its policy."""
        return f"{self._about or 'a pair'} of {described(self.small)} and {described(self.large)}"

    @property
    def template(self) -> Template:
        return self.large.template

    @property
    def vocabulary(self) -> str:
        """The vocabulary of all models in the pair; "" if they differ."""
        same = known(self.small) and self.small.vocabulary == self.large.vocabulary
        return self.large.vocabulary if same else ""

    @property
    def usable(self) -> bool:
        return self.large.usable

    @property
    def room(self) -> int:
        """The longest sequence that every model in the pair takes, in tokens; of the small one if it is known."""
        return min(self.small.room, self.large.room) if known(self.small) else self.large.room

    async def count(self, messages: tuple[Message, ...], tools: tuple[Tool, ...] = ()) -> int:
        """Count the tokens that a chain about *messages* begins with, for the model that needs the most and is up."""
        small, large = await asyncio.gather(
            self.small.count(messages, tools), self.large.count(messages, tools), return_exceptions=True
        )
        if isinstance(large, EndpointError):
            raise large.of(self.role) from large
        if isinstance(large, BaseException):
            raise large
        if isinstance(small, BaseException) and not isinstance(small, EndpointError):
            raise small
        return large if isinstance(small, BaseException) else max(small, large)

    async def thinks(self, messages: tuple[Message, ...], tools: tuple[Tool, ...] = ()) -> bool:
        return await self.large.thinks(messages, tools)

    async def tool_format(self, toolset: Toolset) -> Format | None:
        """Refuse: the pieces of an answer come from several models, and no server's parser knows all of them."""
        raise MissingCapability(
            f"the {self.role} model is a pair of models, which calls no tools: let the large model answer"
        )

    async def parse_answer(
        self, toolset: Toolset, tokens: Sequence[Token], state: ParserState, *, finished: bool
    ) -> tuple[str, tuple[Calling, ...], ParserState]:
        raise NotImplementedError("there is no answer with tools to parse: see `tool_format`")

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
        clock, sampling = or_now(clock), sampling.within(self.role)
        inner = observe_within(self.role, observe)
        small, large = (
            endpoint.model(sampling, observe=inner, clock=clock, format=format) for endpoint in (self.small, self.large)
        )
        policy = partial(self._policy, sampled=True) if sampling.temperature else self._policy
        return Nested(self.role, small, large, policy, self._ahead, observe)


def leaves(endpoint: ModelEndpoint) -> tuple[ModelEndpoint, ...]:
    """Return the endpoints of the single models in *endpoint*: itself, unless it is a nested pair."""
    return endpoint.leaves if isinstance(endpoint, NestedEndpoint) else (endpoint,)


def known(endpoint: ModelEndpoint) -> bool:
    """Whether a server of *endpoint* was up at least once; of a pair, one of its large model."""
    leaf = answering(endpoint)
    return not isinstance(leaf, ReplicatedEndpoint) or leaf.known


def require_agreement(small: ModelEndpoint, large: ModelEndpoint, complain: Callable[[str, str], str]) -> None:
    """
    Raise `ConfigurationError` if the models cannot be a pair, as *complain* says of both names.

    A server that comes up later is refused in that case.
    """

    def why(one: ModelEndpoint, other: ModelEndpoint) -> str:
        return disagreement(one.template.thinks, other.template.thinks) if known(one) and known(other) else ""

    if reason := why(small, large):
        raise ConfigurationError(f"{complain(described(small), large.name)}: {reason}")
    leaf = answering(small)
    if isinstance(leaf, ReplicatedEndpoint):
        leaf.refuses = partial(why, other=large)


def answering(endpoint: ModelEndpoint) -> ModelEndpoint:
    """The single model whose template *endpoint* has."""
    return answering(endpoint.large) if isinstance(endpoint, NestedEndpoint) else endpoint


def described(endpoint: ModelEndpoint) -> str:
    """Return the name of the model at *endpoint*, or the names of all models of a nested pair."""
    return endpoint.described if isinstance(endpoint, NestedEndpoint) else endpoint.name


def named(endpoint: ModelEndpoint) -> Iterator[tuple[str, str]]:
    """Yield the role and name of *endpoint*; for a nested pair then its models' paths and names, cheapest first."""
    yield endpoint.role, described(endpoint)
    if isinstance(endpoint, NestedEndpoint):
        for inner in (endpoint.small, endpoint.large):
            for path, name in named(inner):
                yield f"{endpoint.role}.{path}", name


def servers(endpoint: ModelEndpoint) -> Iterator[tuple[str, VllmEndpoint]]:
    """Yield the servers of *endpoint* that are up, with the role of their model, or its path in a nested pair."""
    match endpoint:
        case NestedEndpoint():
            for inner in (endpoint.small, endpoint.large):
                yield from ((f"{endpoint.role}.{name}", server) for name, server in servers(inner))
        case ReplicatedEndpoint():
            for server in endpoint.up:
                yield from servers(server)
        case VllmEndpoint():
            yield endpoint.role, endpoint
        case _:
            pass
