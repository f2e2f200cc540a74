"""Two models and a policy over them as one model: a step that the pair writes is one that it has verified."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, replace
from weakref import WeakKeyDictionary

from ..chain import Chain, Role, Step, Token, Verdict, beginning
from ..endpoints.growing import GrowingStep, step_ends
from ..endpoints.reading import grow
from ..endpoints.seated import ReplicatedModel
from ..errors import EndpointError, EndpointUnavailable
from ..events import Called, Degraded, Event, JudgedWithin, Moved, Observer
from ..interfaces import KEPT_OPEN, Model, Policy
from .course import Course
from .terms import Bound, Terms

USUAL = 512  # tokens, the limit of a write that asks for no other


def _nobody(event: Event) -> None:
    pass


@dataclass(eq=False)
class Nested:
    """
    A pair of one run as a `Model` of its *role*; *policy* makes the pair's own policy over its *small* and *large*.

    A write returns what the pair has verified, up to where the write has to end; its tokens tell what their own authors
    thought of them. What follows is then thrown away, so that the same chain gives the same step whatever was written
    before, if the models are greedy or sample by a seed. Only where a write ends with a whole piece, as steps usually
    do, the pair works on by *ahead* drafts for the next one, if its caller has set `KEPT_OPEN`. Its large model scores,
    answers questions and branches for the pair.

    If its small model fails for good, the large one goes on alone, and *observe* hears of it; if that one fails, it is
    the pair that has failed. *left* is the budget of the run. Raise `ConfigurationError` for a policy that is none.
    """

    role: Role
    small: Model
    large: Model
    policy: Callable[[Model, Model], Policy]
    ahead: int = 1
    observe: Observer = _nobody
    left: Callable[[Chain], int] = lambda chain: sys.maxsize

    def __post_init__(self) -> None:
        self._alone = False
        self._courses: WeakKeyDictionary[AsyncExitStack, Course] = WeakKeyDictionary()
        self._policy(Terms())

    def budgeted(self, left: Callable[[Chain], int]) -> Nested:
        """The same pair, for a run of which *left* is the budget."""
        small = self.small.budgeted(left) if isinstance(self.small, Nested) else self.small
        return replace(self, small=small, left=left)

    def leave(self) -> None:
        """Give the places at replicas up: the run is over."""
        for model in (self.small, self.large):
            if isinstance(model, ReplicatedModel | Nested):
                model.leave()

    async def write(
        self,
        chain: Chain,
        *,
        stop: Sequence[str] | None = None,
        limit: int = 512,
        until: Callable[[Step], bool] | None = None,
        opening: str = "",
        top: int = 0,
    ) -> Step:
        """Write the next step as `Model.write` says, or the answer, as whoever the pair's policy lets answer."""
        terms = self._terms(chain, limit, opening, top)
        with self._failing():
            try:
                if not (self._alone or chain.finished or chain.closed):
                    return await self._verified(chain, terms, stop, limit, until)
                author = self.large if self._alone else self._policy(terms).answerer
                return await self._by(author, chain, stop, limit, until, opening, top)
            except EndpointUnavailable as exc:
                if self._alone or exc.role != self.small.role:
                    raise
                self._go_on_alone(exc)
            return await self._by(self.large, chain, stop, limit, until, opening, top)

    async def branch(
        self, chain: Chain, begun: Sequence[Step], *, stop: Sequence[str] | None = None, limit: int = 512
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

    async def _verified(
        self, chain: Chain, terms: Terms, stop: Sequence[str] | None, limit: int, until: Callable[[Step], bool] | None
    ) -> Step:
        stack = KEPT_OPEN.get()
        course = await self._course(chain, terms, stack)
        course.place = len(chain.steps)
        try:
            begun = await course.opened(limit)
            growing = GrowingStep(
                self.role,
                "",
                ends=step_ends(chain, stop),
                before=chain.text,
                limit=limit,
                opening=begun,
                top=terms.top,
            )
            step = None if len(begun) >= limit else await grow(growing, course.take, until)
            step = step or growing.end("length")
        except BaseException:
            await course.close()
            raise
        whole = course.exhausted and not growing.overran
        step = self._joined(step, course.pieces if whole else beginning(course.pieces, len(step.text)))
        if stack is None or not whole or course.ended or step.stop == "end" or terms.opening:
            await course.close()
        else:
            course.wait_for(chain.extend(step))
        return step

    async def _course(self, chain: Chain, terms: Terms, stack: AsyncExitStack | None) -> Course:
        """Go on with the course that was left open, or begin one, which is left open only for one write at a time."""
        kept = self._courses.get(stack) if stack is not None else None
        if kept is not None and kept.expected == chain and kept.terms == terms:
            kept.expected = None
            return kept
        if kept is not None and kept.expected is not None:
            await kept.close()
        ahead = self.ahead if stack is not None else 0
        course = Course(self._policy(terms), self._inside(chain), terms, ahead, self._spent, self._tell)
        if stack is not None:
            self._courses[stack] = course
            stack.push_async_callback(course.close)
        return course

    async def _by(
        self,
        author: Model,
        chain: Chain,
        stop: Sequence[str] | None,
        limit: int,
        until: Callable[[Step], bool] | None,
        opening: str,
        top: int,
    ) -> Step:
        """Let one of the two write by itself."""
        inside = self._inside(chain)
        return self._ours(await author.write(inside, stop=stop, limit=limit, until=until, opening=opening, top=top))

    def _terms(self, chain: Chain, limit: int, opening: str, top: int) -> Terms:
        cap = limit if limit < min(USUAL, self.left(chain)) else None  # None: the budget's limit, and no wish of anyone
        return Terms(cap, top, opening, len(chain.text) if opening else 0)

    def _policy(self, terms: Terms) -> Policy:
        return self.policy(Bound(self.small, self.left, terms), Bound(self.large, self.left, terms))

    def _spent(self, inside: Chain) -> bool:
        return self.left(inside) <= 0

    def _tell(self, place: int, draft: Step, verdict: Verdict) -> None:
        self.observe(JudgedWithin(self.role, place, draft, verdict))

    def _inside(self, chain: Chain) -> Chain:
        """The chain as the pair's own models made it, which goes on where the chain does."""
        steps = [piece for step in chain.steps for piece in (self._made(step) or (step,))]
        return replace(chain, steps=tuple(steps))

    def _made(self, step: Step) -> tuple[Step, ...]:
        if step.author != self.role or not step.pieces or step.pieces[-1].stop != "end":
            return step.pieces if step.author == self.role else ()
        *before, last = step.pieces  # The write may have ended with the last token of a turn.
        return (*before, replace(last, stop=step.stop))

    def _ours(self, step: Step) -> Step:
        return replace(step, author=self.role, pieces=(step,))

    def _joined(self, step: Step, pieces: Sequence[Step]) -> Step:
        """Name the vocabulary of *step*, if its *pieces* share one: otherwise its text is encoded anew."""
        vocabularies = {piece.vocabulary for piece in pieces}
        vocabulary = vocabularies.pop() if len(vocabularies) == 1 else ""
        return replace(step, vocabulary=vocabulary, pieces=tuple(pieces))

    def _go_on_alone(self, exc: EndpointUnavailable) -> None:
        if not self._alone:
            self._alone = True
            self.observe(Degraded(self.role, str(exc), f"{self.role}.{self.small.role}"))

    @contextmanager
    def _failing(self) -> Generator[None]:
        """Make a failure of one of the two that of the pair."""
        try:
            yield
        except EndpointError as exc:
            raise type(exc)(exc.cause, role=self.role, url=exc.url, verb=exc.verb) from exc


def within(role: Role, observe: Observer) -> Observer:
    """Make an observer of a pair's own models of the one that *observe*s the pair in its *role*."""

    def told(event: Event) -> None:
        match event:
            case JudgedWithin(path):
                observe(replace(event, path=f"{role}.{path}"))
            case Called() | Degraded() | Moved():
                observe(replace(event, role=role, path=f"{role}.{event.path or event.role}"))
            case _:
                observe(event)

    return told
