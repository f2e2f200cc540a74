"""
Nested pairs: two models and a policy over them stand in for one model, to any depth.

First the settings of a pair and its endpoint, where the servers of its two models stand in for one
server. Then the pair of one run as a `Model`: its two models and its policy write, and the pair
returns the text that they have verified. `InnerModel` passes the options of a write on to the
pair's own models, and `Writing` makes a step of their pieces.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from typing import Annotated, Any, Literal, Self, TypeAlias, Unpack, cast

from pydantic import BaseModel, Discriminator, Tag, field_validator
from pydantic_settings import NoDecode

from .backends.vllm.step_builder import StepBounds, StepBuilder, grown, step_ends
from .budget import Budgeted
from .chain import Chain, Message, Role, Step, Stop, Token, Tool, Toolset, beginning
from .concurrency import all_entered
from .endpoints import (
    Endpoint,
    ModelEndpoint,
    ReplicatedEndpoint,
    ReplicatedModel,
    Sampling,
    Template,
)
from .endpoints.capabilities import Capabilities
from .endpoints.chat_template import disagreement
from .endpoints.interfaces import Format, ParsedAnswer, ParsedTokens, ParserState, or_now
from .endpoints.metrics import Acceptance, QueueGauges
from .endpoints.settings import GREEDY
from .errors import ConfigurationError, ContextTooLong, EndpointError, MissingCapability
from .events import (
    Called,
    Committed,
    Degraded,
    Event,
    Judged,
    JudgedWithin,
    Moved,
    Observer,
)
from .interfaces import DEFAULT_LIMIT, Model, Policy, WriteOptions, unkept
from .reason import reason

SINGLE = "one model"
PAIR = "a nested pair"
# pydantic puts them into the locations of errors, where no user expects them
TAGS = frozenset({SINGLE, PAIR})


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
    return (
        PAIR if "url" not in keys and keys & (set(NestedPair.model_fields) - {"role"}) else SINGLE
    )


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
        inner = (
            self.small.models if isinstance(self.small, NestedPair) else (("small", self.small),)
        )
        return tuple((f"{self.role}.{path}", one) for path, one in (*inner, ("large", self.large)))

    @property
    def nested(self) -> Mapping[str, NestedPair]:
        """This pair and the pairs in it, by path."""
        pairs: dict[str, NestedPair] = {self.role: self}
        if isinstance(self.small, NestedPair):
            pairs |= {f"{self.role}.{path}": pair for path, pair in self.small.nested.items()}
        return pairs

    def turned(self, places: int) -> NestedPair:
        """
        Return the same pair, where each model begins with another of its servers; see
        `Endpoint.turned`.
        """
        return self.model_copy(
            update={"small": self.small.turned(places), "large": self.large.turned(places)}
        )


SmallModel: TypeAlias = Annotated[
    Annotated[Endpoint, Tag(SINGLE)] | Annotated[NestedPair, Tag(PAIR)], Discriminator(kind)
]
NestedPair.model_rebuild()


def neighbours(
    small: Endpoint | NestedPair, large: Endpoint
) -> Mapping[str, tuple[Endpoint, Endpoint]]:
    """
    Return each model with the next larger one, which judges it, as a pair of endpoints, named by
    their paths.
    """
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
    The endpoints *small* and *large*, which stand in for one model of the *role* and are entered
    with the pair.

    *policy* makes the pair's own policy over its two models; if the models sample, it is called
    with ``sampled``. *about* is the name of the policy.

    Requests that are passed on unchanged go to the large model's server. As long as the small model
    cannot be reached, the large one is alone.
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
        self.small = small
        self.large = large
        self.about = about
        self._policy = policy
        self._exit = AsyncExitStack()

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            await all_entered(stack, (self.small, self.large))
            require_agreement(self.small, self.large, f"the {self.role} pair")
            self._exit = stack.pop_all()
        return self

    async def __aexit__(self, *error: object) -> None:
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
        """
        The longest sequence that every model in the pair takes, in tokens; of the small one if it
        is known.
        """
        return min(self.small.room, self.large.room) if known(self.small) else self.large.room

    async def count(self, messages: tuple[Message, ...], tools: tuple[Tool, ...] = ()) -> int:
        """
        Count the tokens that a chain about *messages* begins with, for the model that needs the
        most and is up.
        """
        counts = list[int]()
        for model in (self.large, self.small):
            try:
                counts.append(await model.count(messages, tools))
            except EndpointError as exc:
                if not counts or isinstance(exc, ContextTooLong):
                    raise exc.of(self.role) from exc
        return max(counts)

    async def thinks(self, messages: tuple[Message, ...], tools: tuple[Tool, ...] = ()) -> bool:
        return await self.large.thinks(messages, tools)

    async def tool_format(self, toolset: Toolset) -> Format | None:
        """
        Refuse: the pieces of an answer come from several models, and no server's parser knows all
        of them.
        """
        raise MissingCapability(
            f"the {self.role} model is a pair of models, which calls no tools: let the large model"
            " answer"
        )

    async def parse_answer(self, toolset: Toolset, tokens: Sequence[Token]) -> ParsedAnswer:
        raise NotImplementedError("there is no answer with tools to parse: see `tool_format`")

    async def parse_tokens(
        self, toolset: Toolset, tokens: Sequence[Token], state: ParserState, *, finished: bool
    ) -> ParsedTokens:
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
        """
        Make the model of one run, as `VllmEndpoint.model` does. Raise `ConfigurationError` for a
        wrong policy.
        """
        clock = or_now(clock)
        sampling = sampling.within(self.role)
        inner = observe_within(self.role, observe)
        small, large = (
            endpoint.model(sampling, observe=inner, clock=clock, format=format)
            for endpoint in (self.small, self.large)
        )
        policy = partial(self._policy, sampled=True) if sampling.temperature else self._policy
        return Nested(self.role, small, large, policy, observe)


def leaves(endpoint: ModelEndpoint) -> tuple[ModelEndpoint, ...]:
    """
    Return the endpoints of all single models in *endpoint*: itself, unless it is a nested pair.

    The last one answers for the pair, and *endpoint* has its template.
    """
    return (
        (*leaves(endpoint.small), *leaves(endpoint.large))
        if isinstance(endpoint, NestedEndpoint)
        else (endpoint,)
    )


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
        return (
            disagreement(one.template.thinks, other.template.thinks)
            if known(one) and known(other)
            else ""
        )

    if reason := why(small, large):
        raise ConfigurationError(f"{described(small)} and {large.name} cannot be {pair}: {reason}")
    leaf = leaves(small)[-1]
    if isinstance(leaf, ReplicatedEndpoint):
        leaf.health.refuses = partial(why, other=large)


def described(endpoint: ModelEndpoint) -> str:
    """
    Return the name of the model at *endpoint*; of a nested pair, its policy and the names of all
    its models.
    """
    if isinstance(endpoint, NestedEndpoint):
        return f"{endpoint.about} of {described(endpoint.small)} and {described(endpoint.large)}"
    return endpoint.name


def named(endpoint: ModelEndpoint) -> Iterator[tuple[str, str]]:
    """
    Yield the role and name of *endpoint*; for a nested pair then its models' paths and names,
    cheapest first.
    """
    yield endpoint.role, described(endpoint)
    if isinstance(endpoint, NestedEndpoint):
        for inner in (endpoint.small, endpoint.large):
            for path, name in named(inner):
                yield f"{endpoint.role}.{path}", name


@dataclass(frozen=True, slots=True)
class InnerModel(Budgeted):
    """
    One of the pair's own models, within the budget, for one write of the pair.

    A write of the model has at most *limit* tokens and at least the *top* likeliest tokens of each
    position. *opening* begins the text after the first *begins* characters of the chain's steps.
    """

    limit: int = DEFAULT_LIMIT
    top: int = 0
    opening: str = ""
    begins: int = 0

    async def write(self, chain: Chain, **options: Unpack[WriteOptions]) -> Step:
        missing = self.opening[max(0, len(chain.text) - self.begins) :]
        options["opening"] = missing + options.get("opening", "")
        options["top"] = max(options.get("top", 0), self.top)
        return await Budgeted.write(self, chain, **options)

    def _most(self, chain: Chain, limit: int) -> int:
        return Budgeted._most(self, chain, min(limit, self.limit))


@dataclass(eq=False)
class Writing:
    """
    One write of a pair: the verified *pieces*, and the *step* that their tokens make, None while it
    goes on.

    *build* makes the `StepBuilder` from the tokens of the *opening*, the first that arrive. *until*
    may end the step.
    """

    build: Callable[[Sequence[Token]], StepBuilder]
    opening: str
    until: Callable[[Step], bool] | None
    pieces: list[Step] = field(default_factory=list[Step])
    step: Step | None = None

    def __post_init__(self) -> None:
        self._begun = list[Token]()
        self._missing = len(self.opening)
        self._builder = self.build(())
        if self._builder.room <= 0:
            self._end("length")

    def add(self, piece: Step) -> None:
        """Append *piece*; what it has beyond the end of the step is left out."""
        self.pieces.append(piece)
        for token in piece.tokens or (Token(piece.text),) * bool(piece.text):
            if self.step is None:
                self._add(token)
        if piece.stop == "end":
            self._end("end")

    def finish(self) -> Step:
        """Return the step with its pieces; it is incomplete if the pair writes no more."""
        step = self.step or self._end("length")
        length = len(step.text)
        whole = sum([len(piece.text) for piece in self.pieces]) == length
        # whatever else ended the step there
        closed = whole and any(piece.closes for piece in self.pieces[-1:])
        pieces = tuple(self.pieces) if whole else beginning(self.pieces, length)
        vocabularies = {piece.vocabulary for piece in pieces}
        # Otherwise the text is encoded again.
        vocabulary = vocabularies.pop() if len(vocabularies) == 1 else ""
        return replace(
            step, stop="end" if closed else step.stop, vocabulary=vocabulary, pieces=pieces
        )

    def _add(self, token: Token) -> None:
        if self._missing > 0:
            self._begun.append(token)
            self._missing -= len(token.text)
            self._builder = self.build(self._begun)
            if self._builder.room <= 0:
                self._end("length")
        else:
            self.step = grown(self._builder, token, self.until)

    def _end(self, stop: Stop) -> Step:
        self.step = self.step or self._builder.end(stop)
        return self.step


@dataclass(eq=False)
class Nested:
    """
    The pair of one run as a `Model` of its *role*; *policy* makes the pair's own policy over
    *small* and *large*.

    A write returns the text that the pair has verified, up to the end of the step; the
    log-probability of each token is that of the model that wrote it. The verified text beyond the
    end is discarded, so that the same chain gives the same step, if the models are greedy or sample
    by a seed. The large model scores, answers and branches for the pair.

    If the small model fails for good, the large one goes on alone, and *observe* receives
    `Degraded`; if the large one fails, the pair has failed. *left* is the budget of the run. Raise
    `ConfigurationError` for an invalid policy.
    """

    role: Role
    small: Model
    large: Model
    policy: Callable[[Model, Model], Policy]
    observe: Observer = lambda event: None
    left: Callable[[Chain], int] = lambda chain: sys.maxsize

    def __post_init__(self) -> None:
        self._alone = False
        self.policy(self.small, self.large)

    def budgeted(self, left: Callable[[Chain], int]) -> Nested:
        """Return the same pair for a run whose budget is *left*."""
        small = self.small.budgeted(left) if isinstance(self.small, Nested) else self.small
        return replace(self, small=small, left=left)

    def leave(self) -> None:
        """Release the models' replicas, as the run is over."""
        for model in (self.small, self.large):
            if isinstance(model, ReplicatedModel | Nested):
                model.leave()

    async def write(self, chain: Chain, **options: Unpack[WriteOptions]) -> Step:
        """
        Write the next step as `Model.write` says, or the answer, by the model that the pair's
        policy lets answer.
        """
        alone = self._alone  # which another write may change meanwhile
        with self._failing():
            try:
                if not (alone or chain.finished or chain.closed):
                    return await self._verified(chain, options)
                author = self.large if alone else self.policy(self.small, self.large).answerer
                return await self._by(author, chain, options)
            except EndpointError as exc:
                if alone or exc.role != self.small.role:
                    raise
                if not self._alone:
                    self.observe(Degraded(self.role, str(exc), f"{self.role}.{self.small.role}"))
                self._alone = True
            return await self._by(self.large, chain, options)

    async def branch(
        self,
        chain: Chain,
        begun: Sequence[Step],
        *,
        stop: Sequence[str] | None = None,
        limit: int = DEFAULT_LIMIT,
    ) -> tuple[Step, ...]:
        with self._failing():
            steps = await self.large.branch(self._inside(chain), begun, stop=stop, limit=limit)
        return tuple([self._ours(step) for step in steps])

    async def score(self, chain: Chain, *spans: str, top: int = 0) -> list[tuple[Token, ...]]:
        with self._failing():
            return await self.large.score(self._inside(chain), *spans, top=top)

    async def ask(
        self, chain: Chain, question: str, choices: Sequence[str], *, opening: str = ""
    ) -> Mapping[str, float]:
        with self._failing():
            return await self.large.ask(self._inside(chain), question, choices, opening=opening)

    async def _verified(self, chain: Chain, options: WriteOptions) -> Step:
        """Let the pair's policy write pieces until they have a whole step."""
        limit = options.get("limit", DEFAULT_LIMIT)
        top = options.get("top", 0)
        opening = options.get("opening", "")
        inner = partial(
            InnerModel,
            left=self.left,
            limit=limit,
            top=top,
            opening=opening,
            begins=len(chain.text),
        )

        def build(begun: Sequence[Token]) -> StepBuilder:
            bounds = StepBounds(step_ends(chain, options.get("stop")), limit, top)
            return StepBuilder(self.role, "", chain, bounds, begun)

        def observe(event: Event) -> None:
            if isinstance(event, Judged):
                self.observe(JudgedWithin(self.role, len(chain.steps), event.draft, event.verdict))
            elif isinstance(event, Committed):
                writing.add(event.step)

        writing = Writing(build, opening, options.get("until"))
        with unkept():
            await reason(
                self.policy(inner(self.small), inner(self.large)),
                self._inside(chain),
                spent=lambda inside: self.left(inside) <= 0,
                observe=observe,
                over=lambda inside: writing.step is not None or inside.finished,
            )
        return writing.finish()

    async def _by(self, author: Model, chain: Chain, options: WriteOptions) -> Step:
        """Let *author*, one of the two models, write without the other."""
        if until := options.get("until"):
            options = {**options, "until": lambda partial: until(self._ours(partial))}
        return self._ours(await author.write(self._inside(chain), **options))

    def _inside(self, chain: Chain) -> Chain:
        """
        Replace the pair's steps in *chain* by the pieces of its own models, and stay at the same
        place.
        """
        steps = [piece for step in chain.steps for piece in self._pieces(step) or (step,)]
        return replace(chain, steps=tuple(steps))

    def _pieces(self, step: Step) -> tuple[Step, ...]:
        if step.author != self.role or not step.pieces or step.pieces[-1].stop != "end":
            return step.pieces if step.author == self.role else ()
        *before, last = step.pieces  # The write may have ended with the last token of a turn.
        return (*before, replace(last, stop=step.stop))

    def _ours(self, step: Step) -> Step:
        return replace(step, author=self.role, pieces=(step,))

    @contextmanager
    def _failing(self) -> Generator[None]:
        """Raise a failure of one of the two models as a failure of the pair."""
        try:
            yield
        except EndpointError as exc:
            raise exc.of(self.role) from exc


def observe_within(role: Role, observe: Observer) -> Observer:
    """
    Make the observer of a pair's own models: it passes events on to *observe* with the pair's
    *role* in the path.
    """

    def relabel(event: Event) -> None:
        match event:
            case JudgedWithin(path):
                observe(replace(event, path=f"{role}.{path}"))
            case Called() | Degraded() | Moved():
                observe(replace(event, role=role, path=f"{role}.{event.path or event.role}"))
            case _:
                observe(event)

    return relabel
