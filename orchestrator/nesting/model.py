"""
A nested pair as a `Model`: its two models and its policy write, and the pair returns the text that they have verified.

`InnerModel` passes the options of a write on to the pair's own models, and `Writing` makes a step of their pieces.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Unpack

from ..budget import Budgeted
from ..chain import Chain, Role, Step, Stop, Token, beginning
from ..endpoints import ReplicatedModel
from ..endpoints.token_stream import StepBuilder, step_ends
from ..errors import EndpointError
from ..events import Called, Committed, Degraded, Event, Judged, JudgedWithin, Moved, Observer
from ..interfaces import DEFAULT_LIMIT, Model, Policy, WriteOptions, unkept
from ..reason import reason


@dataclass(frozen=True, slots=True)
class InnerModel(Budgeted):
    """
    One of the pair's own models, within the budget, for one write of the pair.

    A write of the model has at most *limit* tokens and at least the *top* likeliest tokens of each position. *opening*
    begins the text after the first *begins* characters of the chain's steps.
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
    One write of a pair: the verified *pieces*, and the *step* that their tokens make, None while it goes on.

    *build* makes the `StepBuilder` from the tokens of the *opening*, the first that arrive. *until* may end the step.
    """

    build: Callable[[Sequence[Token]], StepBuilder]
    opening: str
    until: Callable[[Step], bool] | None
    pieces: list[Step] = field(default_factory=list[Step])
    step: Step | None = None

    def __post_init__(self) -> None:
        self._begun, self._missing = list[Token](), len(self.opening)
        self._builder = self.build(())
        if self._builder.room <= 0:
            self._end("length")

    def add(self, piece: Step) -> None:
        """Append *piece*; what it has beyond the end of the step is left out."""
        self.pieces.append(piece)
        for token in piece.tokens:
            if self.step is None:
                self._add(token)
        if piece.stop == "end":
            self._end("end")

    def finish(self) -> Step:
        """Return the step with its pieces; it is incomplete if the pair writes no more."""
        step = self.step or self._end("length")
        length = len(step.text)
        whole = sum([len(piece.text) for piece in self.pieces]) == length
        pieces = tuple(self.pieces) if whole else beginning(self.pieces, length)
        vocabularies = {piece.vocabulary for piece in pieces}
        vocabulary = vocabularies.pop() if len(vocabularies) == 1 else ""  # Otherwise the text is encoded again.
        return replace(step, vocabulary=vocabulary, pieces=pieces)

    def _add(self, token: Token) -> None:
        stop: Stop | None
        if self._missing > 0:
            self._begun.append(token)
            self._missing -= len(token.text)
            self._builder = self.build(self._begun)
            stop = None if self._builder.room > 0 else "length"
        else:
            stop = self._builder.add(token)
            if self.until and stop != "end" and self.until(self._builder.so_far()):
                stop = "until"
        if stop:
            self._end(stop)

    def _end(self, stop: Stop) -> Step:
        self.step = self.step or self._builder.end(stop)
        return self.step


def _ignore(event: Event) -> None:
    pass


@dataclass(eq=False)
class Nested:
    """
    The pair of one run as a `Model` of its *role*; *policy* makes the pair's own policy over *small* and *large*.

    A write returns the text that the pair has verified, up to the end of the step; the log-probability of each token is
    that of the model that wrote it. The verified text beyond the end is discarded, so that the same chain gives the
    same step, if the models are greedy or sample by a seed. The large model scores, answers questions and branches for
    the pair.

    If the small model fails for good, the large one goes on alone, and *observe* receives `Degraded`; if the large one
    fails, the pair has failed. *left* is the budget of the run. Raise `ConfigurationError` for an invalid policy.
    """

    role: Role
    small: Model
    large: Model
    policy: Callable[[Model, Model], Policy]
    observe: Observer = _ignore
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
        """Write the next step as `Model.write` says, or the answer, by the model that the pair's policy lets answer."""
        with self._failing():
            try:
                if not (self._alone or chain.finished or chain.closed):
                    return await self._verified(chain, options)
                author = self.large if self._alone else self.policy(self.small, self.large).answerer
                return await self._by(author, chain, options)
            except EndpointError as exc:
                if self._alone or exc.role != self.small.role:
                    raise
                self._alone = True
                self.observe(Degraded(self.role, str(exc), f"{self.role}.{self.small.role}"))
            return await self._by(self.large, chain, options)

    async def branch(
        self, chain: Chain, begun: Sequence[Step], *, stop: Sequence[str] | None = None, limit: int = DEFAULT_LIMIT
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
        limit, top = options.get("limit", DEFAULT_LIMIT), options.get("top", 0)
        opening = options.get("opening", "")
        inner = partial(InnerModel, left=self.left, limit=limit, top=top, opening=opening, begins=len(chain.text))

        def build(begun: Sequence[Token]) -> StepBuilder:
            ends = step_ends(chain, options.get("stop"))
            return StepBuilder(self.role, "", chain, ends=ends, limit=limit, opening=begun, top=top)

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
        return self._ours(await author.write(self._inside(chain), **options))

    def _inside(self, chain: Chain) -> Chain:
        """Replace the pair's steps in *chain* by the pieces of its own models, and stay at the same place."""
        steps = [piece for step in chain.steps for piece in (self._pieces(step) or (step,))]
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
    """Make the observer of a pair's own models: it passes events on to *observe* with the pair's *role* in the path."""

    def relabel(event: Event) -> None:
        match event:
            case JudgedWithin(path):
                observe(replace(event, path=f"{role}.{path}"))
            case Called() | Degraded() | Moved():
                observe(replace(event, role=role, path=f"{role}.{event.path or event.role}"))
            case _:
                observe(event)

    return relabel
