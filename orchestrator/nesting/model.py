"""What one write of a nested pair asks of the writes of its own models."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Unpack
from weakref import WeakKeyDictionary

from ..budget import Budgeted
from ..chain import Accept, Chain, Role, Step, Stop, Token, Verdict, beginning
from ..concurrency import to_the_end
from ..endpoints.replicas import ReplicatedModel
from ..endpoints.token_stream import StepBuilder, grow, step_ends
from ..errors import EndpointError, EndpointUnavailable
from ..events import Called, Degraded, Event, JudgedWithin, Moved, Observer
from ..interfaces import DEFAULT_LIMIT, KEPT_OPEN, Model, Policy, WriteOptions
from ..lookahead import Lookahead, LookaheadControl


@dataclass(frozen=True, slots=True)
class Terms:
    """
    At most *cap* tokens at a time (None: as many as the budget leaves), each of which tells *top* rivals, and what
    follows the first *begins* characters of the chain's steps begins with *opening*.
    """

    cap: int | None = None
    top: int = 0
    opening: str = ""
    begins: int = 0

    def rest(self, chain: Chain) -> str:
        """What of the opening is still to be written after *chain*."""
        if not self.opening:
            return ""
        written = chain.text[self.begins :]
        return self.opening[len(written) :] if self.opening.startswith(written) else ""


@dataclass(frozen=True, slots=True)
class Bound(Budgeted):
    """A budgeted model that writes on *terms*."""

    terms: Terms

    async def write(self, chain: Chain, **options: Unpack[WriteOptions]) -> Step:
        options["opening"] = self.terms.rest(chain) + options.get("opening", "")
        options["top"] = max(options.get("top", 0), self.terms.top)
        return await Budgeted.write(self, chain, **options)

    def _most(self, chain: Chain, limit: int) -> int:
        return Budgeted._most(self, chain, limit if self.terms.cap is None else min(limit, self.terms.cap))


class Course:
    """
    What the pair's *policy* makes of *chain*, token by token, each of them verified.

    It may outlive a write, for the next one probably goes on where it stopped: until then the pair works on, at most
    *ahead* drafts. *tell* hears of every verdict that counts, with the `place` that its caller gave the step.
    """

    def __init__(
        self,
        policy: Policy,
        chain: Chain,
        terms: Terms,
        ahead: int,
        spent: Callable[[Chain], bool],
        tell: Callable[[int, Step, Verdict], None],
    ) -> None:
        self._policy, self._chain, self._spent, self._tell = policy, chain, spent, tell
        self._ahead = LookaheadControl.of(ahead)
        self._lookahead: Lookahead | None = None
        self._unread: deque[Token] = deque()
        self._ended: Stop | None = None
        self.terms, self.place = terms, 0
        self.pieces: list[Step] = []  # of the present write
        self.expected: Chain | None = None  # what the next write has to go on from; None while there is none to come

    @property
    def exhausted(self) -> bool:
        """Whether every token of every piece was taken."""
        return not self._unread

    @property
    def ended(self) -> bool:
        """Whether there is nothing to come."""
        return self._ended is not None

    async def take(self) -> Token | Stop:
        """Return the next token, or why there is none."""
        while not self._unread:
            if self._ended:
                return self._ended
            await self._advance()
        return self._unread.popleft()

    async def opened(self, limit: int) -> list[Token]:
        """Take the tokens of the opening that the terms ask for, at most *limit*."""
        tokens: list[Token] = []
        missing = len(self.terms.opening)
        while missing > 0 and len(tokens) < limit and isinstance(token := await self.take(), Token):
            tokens.append(token)
            missing -= len(token.text)
        return tokens

    def wait_for(self, chain: Chain) -> None:
        """Work on, for a next write from *chain*, which is where this one ended."""
        self.expected = chain
        self.pieces = []
        self._lookahead = self._lookahead or self._begin()

    async def close(self) -> None:
        """Cancel what was not taken, and wait until it is gone."""
        self.expected = None
        lookahead, self._lookahead = self._lookahead, None
        if lookahead is not None:
            await to_the_end(lookahead.close())

    def _begin(self) -> Lookahead:
        outer = KEPT_OPEN.set(None)  # The pair's own requests are kept open by its own lookahead, if at all.
        try:
            return Lookahead(self._policy, self._chain, self._ahead, self._spent, _ignore)
        finally:
            KEPT_OPEN.reset(outer)

    async def _advance(self) -> None:
        """Take one draft and what becomes of it."""
        lookahead = self._lookahead = self._lookahead or self._begin()
        draft, verdict = await lookahead.next()
        self._tell(self.place, draft, verdict)
        if isinstance(verdict, Accept):
            self._push(draft)
        elif verdict.chosen:
            await self.close()
            self._push(verdict.chosen.step)
        else:
            if verdict.keep:
                self._push(draft.cut(verdict.keep))
            repaired = None
            if not (verdict.keep and self._spent(self._chain)):
                repaired = await lookahead.repair(self._chain, draft, verdict)
            await self.close()
            if repaired is not None:
                self._push(replace(repaired, note=verdict.reason))

    def _push(self, piece: Step) -> None:
        self.pieces.append(piece)
        self._chain = self._chain.extend(piece)
        self._unread.extend(piece.tokens)
        if piece.stop == "end":
            self._ended = "end"
        elif not piece.tokens:
            self._ended = "length"  # Nothing comes any more: whoever judges the pair shall see to it.


def _ignore(event: Event) -> None:
    pass


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

    async def write(self, chain: Chain, **options: Unpack[WriteOptions]) -> Step:
        """Write the next step as `Model.write` says, or the answer, by the model that the pair's policy lets answer."""
        terms = self._terms(chain, options)
        with self._failing():
            try:
                if not (self._alone or chain.finished or chain.closed):
                    return await self._verified(chain, terms, options)
                author = self.large if self._alone else self._policy(terms).answerer
                return await self._by(author, chain, options)
            except EndpointUnavailable as exc:
                if self._alone or exc.role != self.small.role:
                    raise
                self._go_on_alone(exc)
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

    async def _verified(self, chain: Chain, terms: Terms, options: WriteOptions) -> Step:
        limit, stack = options.get("limit", DEFAULT_LIMIT), KEPT_OPEN.get()
        course = await self._course(chain, terms, stack)
        course.place = len(chain.steps)
        try:
            begun = await course.opened(limit)
            growing = StepBuilder(
                self.role,
                "",
                ends=step_ends(chain, options.get("stop")),
                before=chain.text,
                limit=limit,
                opening=begun,
                top=terms.top,
            )
            step = None if len(begun) >= limit else await grow(growing, course.take, options.get("until"))
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

    async def _by(self, author: Model, chain: Chain, options: WriteOptions) -> Step:
        """Let *author*, one of the two models, write without the other."""
        return self._ours(await author.write(self._inside(chain), **options))

    def _terms(self, chain: Chain, options: WriteOptions) -> Terms:
        limit, opening = options.get("limit", DEFAULT_LIMIT), options.get("opening", "")
        cap = limit if limit < min(DEFAULT_LIMIT, self.left(chain)) else None  # None: the limit is the budget's
        return Terms(cap, options.get("top", 0), opening, len(chain.text) if opening else 0)

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
