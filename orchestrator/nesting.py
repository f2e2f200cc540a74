"""
Nested pairs: two models and a policy over them stand in for one model, to any depth.

`NestedEndpoint` is the endpoint of a pair. `Nested` is the pair of one run as a `Model`: the pair's
own models write pieces, its policy verifies them, and the pair returns them as one step.
`InnerModel` passes the options of a write on to the pair's own models. `StepOfPieces` makes the
step.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Self, Unpack

from .budget import Budgeted
from .chain import Chain, Message, Role, Step, Stop, Token, Tool, Toolset, beginning
from .concurrency import all_entered
from .endpoints import Endpoint, ModelEndpoint, ReplicatedEndpoint, Sampling, Template
from .endpoints.chat_template import disagreement
from .endpoints.interfaces import (
    Format,
    ParsedAnswer,
    ParsedTokens,
    ParserState,
    RunModel,
    or_now,
)
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
from .interfaces import DEFAULT_LIMIT, Model, Policy, Until, WriteOptions, unkept
from .lookahead import LookaheadControl
from .reason import Loop
from .step_builder import StepBounds, StepBuilder, grown, step_ends


class NestedEndpoint:
    """
    The endpoint of a pair: its two models stand in for one model of the *role*.

    Entering it enters both models. Requests that are passed on unchanged go to the large model's
    server. While the small model cannot be reached, the large one works alone.
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
        """The name of the policy."""
        self._policy = policy
        """Builds the pair's policy over its two models. Models that sample pass ``sampled``."""
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
        if self.small.known and self.small.vocabulary == self.large.vocabulary:
            return self.large.vocabulary
        return ""

    @property
    def known(self) -> bool:
        return self.large.known

    @property
    def usable(self) -> bool:
        return self.large.usable

    @property
    def room(self) -> int:
        """The longest sequence, in tokens, that every model in the pair takes, as far as known."""
        if self.small.known:
            return min(self.small.room, self.large.room)
        return self.large.room

    async def count(self, messages: tuple[Message, ...], tools: tuple[Tool, ...] = ()) -> int:
        """
        Count the tokens that a chain about *messages* begins with.

        The model counts that needs the most of those that are up.
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
        Raise `MissingCapability`.

        The pieces of an answer come from several models, and no server's parser knows all of them.
        """
        raise MissingCapability(
            f"the {self.role} model is a pair of models, which calls no tools: let the large model"
            " answer"
        )

    async def parse_answer(self, toolset: Toolset, tokens: Sequence[Token]) -> ParsedAnswer:
        raise NotImplementedError("there is no answer with tools to parse: see `tool_format`")

    async def parse_tokens(
        self,
        toolset: Toolset,
        tokens: Sequence[Token],
        state: ParserState,
        *,
        finished: bool,
    ) -> ParsedTokens:
        raise NotImplementedError("there is no answer with tools to parse: see `tool_format`")

    async def queue(self) -> QueueGauges | None:
        return await self.large.queue()

    async def acceptance(self) -> Acceptance | None:
        return await self.large.acceptance()

    def model(
        self,
        sampling: Sampling = GREEDY,
        *,
        observe: Observer = lambda event: None,
        clock: Callable[[], float] | None = None,
        format: Format | None = None,
    ) -> Nested:
        """
        Make the model of one run, as `ModelEndpoint.model` does.

        Raise `ConfigurationError` for an invalid policy.
        """
        clock = or_now(clock)
        sampling = sampling.within(self.role)
        observe_inner = observe_within(self.role, observe)
        small, large = (
            endpoint.model(sampling, observe=observe_inner, clock=clock, format=format)
            for endpoint in (self.small, self.large)
        )
        policy = self._policy
        if sampling.temperature:
            policy = partial(policy, sampled=True)
        return Nested(self.role, small, large, policy, observe)


def leaves(endpoint: ModelEndpoint) -> tuple[ModelEndpoint, ...]:
    """
    Return the endpoints of all single models in *endpoint*. A single model is its own only leaf.

    The last leaf answers for the pair, and *endpoint* has its template.
    """
    if isinstance(endpoint, NestedEndpoint):
        return (*leaves(endpoint.small), *leaves(endpoint.large))
    return (endpoint,)


def require_agreement(small: ModelEndpoint, large: ModelEndpoint, pair: str) -> None:
    """
    Raise `ConfigurationError` if the models cannot be a pair; the message calls it *pair*.

    A server that comes up later is refused in that case.
    """

    def conflict(one: ModelEndpoint, other: ModelEndpoint) -> str:
        if one.known and other.known:
            return disagreement(one.template.thinks, other.template.thinks)
        return ""

    if reason := conflict(small, large):
        raise ConfigurationError(f"{described(small)} and {large.name} cannot be {pair}: {reason}")
    leaf = leaves(small)[-1]
    if isinstance(leaf, ReplicatedEndpoint):
        leaf.refuses = partial(conflict, other=large)


def described(endpoint: ModelEndpoint) -> str:
    """
    Return the name of the model at *endpoint*.

    A nested pair has the name of its policy and the names of all its models.
    """
    if isinstance(endpoint, NestedEndpoint):
        return f"{endpoint.about} of {described(endpoint.small)} and {described(endpoint.large)}"
    return endpoint.name


def named(endpoint: ModelEndpoint) -> Iterator[tuple[str, str]]:
    """
    Yield the role and the name of *endpoint*.

    For a nested pair, yield then the paths and names of its models, the cheapest first.
    """
    yield endpoint.role, described(endpoint)
    if isinstance(endpoint, NestedEndpoint):
        for inner in (endpoint.small, endpoint.large):
            for path, name in named(inner):
                yield f"{endpoint.role}.{path}", name


@dataclass(frozen=True, slots=True)
class InnerModel(Budgeted):
    """One of the pair's own models, within the budget, for one write of the pair."""

    limit: int = DEFAULT_LIMIT
    """The most tokens that a write of the model may have."""
    top: int = 0
    """How many of the likeliest tokens each position has at least."""
    opening: str = ""
    """The text that the step of the pair begins with."""
    begins: int = 0
    """The number of characters in the chain's steps before that step."""

    async def write(self, chain: Chain, **options: Unpack[WriteOptions]) -> Step:
        written = max(0, len(chain.text) - self.begins)
        missing = self.opening[written:]
        options["opening"] = missing + options.get("opening", "")
        options["top"] = max(options.get("top", 0), self.top)
        return await Budgeted.write(self, chain, **options)

    def _most(self, chain: Chain, limit: int) -> int:
        return Budgeted._most(self, chain, min(limit, self.limit))


@dataclass(eq=False)
class StepOfPieces:
    """The step that a pair writes, made of the verified pieces of its own models."""

    build: Callable[[Sequence[Token]], StepBuilder]
    """Makes the builder of the step from the tokens of its opening."""
    opening: str
    """The text that the step begins with. It arrives as the first tokens of the pieces."""
    until: Until
    """Ends the step if it returns true for the step so far. None: nothing does."""
    pieces: list[Step] = field(default_factory=list[Step])
    """The pieces so far."""
    step: Step | None = None
    """The step, without its pieces. None while it goes on."""

    def __post_init__(self) -> None:
        self._opening_tokens = list[Token]()
        self._missing = len(self.opening)  # characters of the opening
        self._builder = self.build(())
        if self._builder.room <= 0:
            self._end("length")

    def add(self, piece: Step) -> None:
        """Append *piece*; what it has beyond the end of the step is left out."""
        self.pieces.append(piece)
        tokens = piece.tokens
        if not tokens and piece.text:
            tokens = (Token(piece.text),)
        for token in tokens:
            if self.step is None:
                self._add(token)
        if piece.stop == "end":
            self._end("end")

    def finish(self) -> Step:
        """Return the step with its pieces. It is incomplete if the pair writes no more."""
        step = self.step or self._end("length")
        pieces = tuple(self.pieces)
        length = len(step.text)
        if sum([len(piece.text) for piece in pieces]) != length:
            pieces = beginning(pieces, length)
        elif pieces and pieces[-1].closes:
            step = replace(step, stop="end")  # whatever else ended the step there
        vocabularies = {piece.vocabulary for piece in pieces}
        vocabulary = ""  # The text is encoded again.
        if len(vocabularies) == 1:
            vocabulary = vocabularies.pop()
        return replace(step, vocabulary=vocabulary, pieces=pieces)

    def _add(self, token: Token) -> None:
        if self._missing <= 0:
            self.step = grown(self._builder, token, self.until)
            return
        self._opening_tokens.append(token)
        self._missing -= len(token.text)
        self._builder = self.build(self._opening_tokens)
        if self._builder.room <= 0:
            self._end("length")

    def _end(self, stop: Stop) -> Step:
        self.step = self.step or self._builder.end(stop)
        return self.step


@dataclass(eq=False)
class Nested:
    """
    The pair of one run as a `Model`.

    A write returns text that the pair has verified, up to the end of the step. The log-probability
    of a token is that of the model that wrote it. Verified text beyond the end is discarded. So the
    same chain gives the same step if the models are greedy or sample by a seed. The large model
    scores, answers and branches for the pair.

    If the small model fails for good, the large one goes on alone. If the large one fails, the pair
    has failed. Raise `ConfigurationError` for an invalid policy.
    """

    role: Role
    """The role of the model that the pair stands in for."""
    small: RunModel
    """The small model of the pair. It may be a pair, too."""
    large: RunModel
    """The large model of the pair."""
    policy: Callable[[Model, Model], Policy]
    """Builds the pair's policy over its small and its large model."""
    observe: Observer = lambda event: None
    """Is called with `JudgedWithin` and, if the small model has failed, with `Degraded`."""
    left: Callable[[Chain], int] = lambda chain: sys.maxsize
    """Returns how many tokens the run has left after a chain."""

    def __post_init__(self) -> None:
        self._alone = False
        self.policy(self.small, self.large)

    def budgeted(self, left: Callable[[Chain], int]) -> Nested:
        return replace(self, small=self.small.budgeted(left), left=left)

    def leave(self) -> None:
        self.small.leave()
        self.large.leave()

    async def write(self, chain: Chain, **options: Unpack[WriteOptions]) -> Step:
        """
        Write the next step as `Model.write` does.

        After the thinking, the model writes the answer that the pair's policy lets answer.
        """
        alone = self._alone  # Another write may change it meanwhile.
        with self._failing():
            try:
                if not (alone or chain.finished or chain.closed):
                    return await self._verified(chain, options)
                author: Model = self.large
                if not alone:
                    author = self.policy(self.small, self.large).answerer
                return await self._write_by(author, chain, options)
            except EndpointError as exc:
                if alone or exc.role != self.small.role:
                    raise
                if not self._alone:
                    path = f"{self.role}.{self.small.role}"
                    self.observe(Degraded(self.role, str(exc), path))
                self._alone = True
            return await self._write_by(self.large, chain, options)

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
        return tuple([self._as_pair(step) for step in steps])

    async def score(self, chain: Chain, *spans: str, top: int = 0) -> list[tuple[Token, ...]]:
        with self._failing():
            return await self.large.score(self._inside(chain), *spans, top=top)

    async def ask(
        self,
        chain: Chain,
        question: str,
        choices: Sequence[str],
        *,
        opening: str = "",
    ) -> Mapping[str, float]:
        with self._failing():
            return await self.large.ask(self._inside(chain), question, choices, opening=opening)

    async def _verified(self, chain: Chain, options: WriteOptions) -> Step:
        """Let the pair's policy write pieces until they have a whole step."""
        limit = options.get("limit", DEFAULT_LIMIT)
        top = options.get("top", 0)
        opening = options.get("opening", "")
        inner_model = partial(
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
                written.add(event.step)

        written = StepOfPieces(build, opening, options.get("until"))
        loop = Loop(
            policy=self.policy(inner_model(self.small), inner_model(self.large)),
            chain=self._inside(chain),
            control=LookaheadControl(),
            observe=observe,
            spent=lambda inside: self.left(inside) <= 0,
            over=lambda inside: written.step is not None or inside.finished,
        )
        with unkept():
            await loop.run(deadline=None)
        return written.finish()

    async def _write_by(self, author: Model, chain: Chain, options: WriteOptions) -> Step:
        """Let *author*, one of the two models, write without the other."""
        if until := options.get("until"):
            options = {**options, "until": lambda partial: until(self._as_pair(partial))}
        return self._as_pair(await author.write(self._inside(chain), **options))

    def _inside(self, chain: Chain) -> Chain:
        """Replace the pair's steps in *chain* by the pieces of its own models."""
        steps = list[Step]()
        for step in chain.steps:
            steps.extend(self._pieces(step))
        return replace(chain, steps=tuple(steps))

    def _pieces(self, step: Step) -> tuple[Step, ...]:
        """Return the pieces of *step*. A step without pieces, or by another author, is its own."""
        if step.author != self.role or not step.pieces:
            return (step,)
        *before, last = step.pieces
        if last.stop == "end":
            # The step may have ended otherwise, with the last token of the turn.
            last = replace(last, stop=step.stop)
        return (*before, last)

    def _as_pair(self, step: Step) -> Step:
        """Return *step*, which one of the two models wrote, as a step of the pair."""
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
    Make the observer of a pair's own models.

    It passes each event on to *observe*, with the pair's *role* in front of the path.
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
