"""A nested pair: its settings, and its endpoint, where the servers of its two models stand in for one server."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from itertools import pairwise
from types import TracebackType
from typing import Annotated, Any, Literal, Self, TypeAlias, cast

from pydantic import BaseModel, Discriminator, Tag, field_validator
from pydantic_settings import NoDecode

from ..chain import Message, Role, Token, Tool, Toolset
from ..concurrency import all_entered
from ..endpoints import Endpoint, ModelEndpoint, ReplicatedEndpoint, Sampling, Template, VllmEndpoint
from ..endpoints.chat_template import disagreement
from ..endpoints.metrics import Acceptance, QueueGauges
from ..endpoints.probe import Capabilities
from ..endpoints.token_stream import or_now
from ..endpoints.tool_protocol import ParserState
from ..endpoints.vllm_protocol import GREEDY, Format
from ..errors import ConfigurationError, EndpointError, MissingCapability
from ..events import Calling, Observer
from ..interfaces import Policy
from .model import Nested, observe_within

SINGLE, PAIR = "one model", "a nested pair"
TAGS = frozenset({SINGLE, PAIR})  # pydantic puts them into the locations of errors, where no user expects them


class Nesting(BaseModel, frozen=True, extra="forbid"):
    """The settings of a nested pair other than its models."""

    role: Literal["small"] = "small"
    """Always ``small``."""
    policy: str = "specreason"
    """The method of the pair."""
    options: dict[str, Any] = {}
    """Options of that method."""


def kind(value: object) -> str:
    """Return the tag of *value*: a pair has no URL, but a key that only pairs have."""
    if isinstance(value, Nesting):
        return PAIR
    keys = set(cast("dict[str, Any]", value)) if isinstance(value, dict) else set[str]()
    return PAIR if "url" not in keys and keys & (set(NestedPair.model_fields) - {"role"}) else SINGLE


def for_role(value: Any, role: str) -> Any:
    """Expand an endpoint that is only a URL, and add the *role* if *value* has none."""
    if isinstance(value, str):
        return {"role": role, "url": value}
    return {"role": role, **cast("dict[str, Any]", value)} if isinstance(value, dict) else value


class NestedPair(Nesting, frozen=True):
    """
    Two models that stand in for one: a *policy* with *options* over a *small* and a *large* model.

    The small model may be a nested pair too.
    """

    small: Annotated[SmallModel, NoDecode]
    """The small model of the pair: an endpoint, or a pair again."""
    large: Annotated[Endpoint, NoDecode]
    """The large model of the pair."""

    @field_validator("small", "large", mode="before")
    @classmethod
    def _role(cls, value: Any, info: Any) -> Any:
        return for_role(value, info.field_name)

    @property
    def models(self) -> tuple[tuple[str, Endpoint], ...]:
        """The single models in the pair with their paths, the cheapest first."""
        inner = self.small.models if isinstance(self.small, NestedPair) else (("small", self.small),)
        return tuple((f"{self.role}.{path}", one) for path, one in (*inner, ("large", self.large)))

    @property
    def nested(self) -> Mapping[str, NestedPair]:
        """This pair and the pairs in it, by path."""
        pairs: dict[str, NestedPair] = {self.role: self}
        if isinstance(self.small, NestedPair):
            pairs |= {f"{self.role}.{path}": pair for path, pair in self.small.nested.items()}
        return pairs

    def turned(self, places: int) -> NestedPair:
        """Return the same pair, where each model begins with another of its servers; see `Endpoint.turned`."""
        return self.model_copy(update={"small": self.small.turned(places), "large": self.large.turned(places)})


SmallModel: TypeAlias = Annotated[
    Annotated[Endpoint, Tag(SINGLE)] | Annotated[NestedPair, Tag(PAIR)], Discriminator(kind)
]
NestedPair.model_rebuild()


def neighbours(small: Endpoint | NestedPair, large: Endpoint) -> Mapping[str, tuple[Endpoint, Endpoint]]:
    """Return each model with the next larger one, which judges it, as a pair of endpoints, named by their paths."""
    cheaper = small.models if isinstance(small, NestedPair) else (("small", small),)
    return {
        f"{path} with {judge}": (
            one.model_copy(update={"role": "small"}),
            other.model_copy(update={"role": "large"}),
        )
        for (path, one), (judge, other) in pairwise((*cheaper, ("large", large)))
    }


class NestedEndpoint:
    """
    The endpoints *small* and *large*, which stand in for one model of the *role* and are entered with the pair.

    *policy* makes the pair's own policy over its two models; if the models sample, it is called with ``sampled``.
    *about* is the name of the policy.

    Requests that are passed on unchanged go to the large model's server. As long as the small model cannot be
    reached, the large one is alone.
    """

    def __init__(
        self,
        role: Role,
        small: ModelEndpoint,
        large: ModelEndpoint,
        policy: Callable[..., Policy],
        about: str,
    ) -> None:
        self.role: Role = role
        self.small, self.large, self.about = small, large, about
        self._policy = policy
        self._exit = AsyncExitStack()

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            await all_entered(stack, (self.small, self.large))
            require_agreement(self.small, self.large, f"the {self.role} pair")
            self._exit = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._exit.aclose()

    @property
    def settings(self) -> Endpoint:
        return self.large.settings

    @property
    def name(self) -> str:
        return self.large.name

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
        try:
            large = await self.large.count(messages, tools)
        except EndpointError as exc:
            raise exc.of(self.role) from exc
        try:
            return max(large, await self.small.count(messages, tools))
        except EndpointError:
            return large

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
        return Nested(self.role, small, large, policy, observe)


def leaves(endpoint: ModelEndpoint) -> tuple[ModelEndpoint, ...]:
    """
    Return the endpoints of all single models in *endpoint*: itself, unless it is a nested pair.

    The last one answers for the pair, and *endpoint* has its template.
    """
    return (*leaves(endpoint.small), *leaves(endpoint.large)) if isinstance(endpoint, NestedEndpoint) else (endpoint,)


def known(endpoint: ModelEndpoint) -> bool:
    """Whether a server of *endpoint* was up at least once; of a pair, one of its large model."""
    leaf = leaves(endpoint)[-1]
    return not isinstance(leaf, ReplicatedEndpoint) or leaf.known


def require_agreement(small: ModelEndpoint, large: ModelEndpoint, pair: str) -> None:
    """
    Raise `ConfigurationError` if the models cannot be a pair; the message calls it *pair*.

    A server that comes up later is refused in that case.
    """

    def why(one: ModelEndpoint, other: ModelEndpoint) -> str:
        return disagreement(one.template.thinks, other.template.thinks) if known(one) and known(other) else ""

    if reason := why(small, large):
        raise ConfigurationError(f"{described(small)} and {large.name} cannot be {pair}: {reason}")
    leaf = leaves(small)[-1]
    if isinstance(leaf, ReplicatedEndpoint):
        leaf.health.refuses = partial(why, other=large)


def described(endpoint: ModelEndpoint) -> str:
    """Return the name of the model at *endpoint*; of a nested pair, its policy and the names of all its models."""
    if isinstance(endpoint, NestedEndpoint):
        return f"{endpoint.about} of {described(endpoint.small)} and {described(endpoint.large)}"
    return endpoint.name


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
