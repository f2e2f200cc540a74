"""
A nested pair as a `Model`: its two models and its policy write, and the pair returns what was verified.

`VerifiedStream` runs the pair's policy and yields verified tokens; `Nested` cuts them into the writes of its caller.
`InnerOptions` and `InnerModel` pass the options of such a write on to the writes of the pair's own models.
"""

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
from ..endpoints.placement import ReplicatedModel
from ..endpoints.token_stream import StepBuilder, grow, step_ends
from ..errors import EndpointError
from ..events import Called, Degraded, Event, JudgedWithin, Moved, Observer
from ..interfaces import DEFAULT_LIMIT, KEPT_OPEN, Model, Policy, WriteOptions
from ..lookahead import Lookahead, LookaheadControl


@dataclass(frozen=True, slots=True)
class InnerOptions:
    """
    The options of a write on the pair that hold for every write of its own models.

    *cap* is the most tokens of a write, None for as many as the budget leaves. *top* is the number of likeliest tokens
    of each position. *opening* begins the text after the first *begins* characters of the chain's steps.
    """

    cap: int | None = None
    top: int = 0
    opening: str = ""
    begins: int = 0

    def rest(self, chain: Chain) -> str:
        """Return the part of the opening that is still to be written after *chain*."""
        if not self.opening:
            return ""
        written = chain.text[self.begins :]
        return self.opening[len(written) :] if self.opening.startswith(written) else ""


@dataclass(frozen=True, slots=True)
class InnerModel(Budgeted):
    """One of the pair's own models, within the budget, with the *inner* options in every write."""

    inner: InnerOptions

    async def write(self, chain: Chain, **options: Unpack[WriteOptions]) -> Step:
        options["opening"] = self.inner.rest(chain) + options.get("opening", "")
        options["top"] = max(options.get("top", 0), self.inner.top)
        return await Budgeted.write(self, chain, **options)

    def _most(self, chain: Chain, limit: int) -> int:
        return Budgeted._most(self, chain, limit if self.inner.cap is None else min(limit, self.inner.cap))


class VerifiedStream:
    """
    The verified tokens that the pair's *policy* writes after *chain*, one by one, with the *inner* options.

    The stream may stay open after a write, because the next write probably continues its text. Meanwhile the pair
    works ahead by at most *ahead* drafts. *spent* says whether the budget is used up. *report* receives every verdict
    that counts, with `place`, the index of the step that the caller writes.
    """

    def __init__(
        self,
        policy: Policy,
        chain: Chain,
        inner: InnerOptions,
        ahead: int,
        spent: Callable[[Chain], bool],
        report: Callable[[int, Step, Verdict], None],
    ) -> None:
        self._policy, self._chain, self._spent, self._report = policy, chain, spent, report
        self._ahead = LookaheadControl.of(ahead)
        self._lookahead: Lookahead | None = None
        self._unread: deque[Token] = deque()
        self._ended: Stop | None = None
        self.inner, self.place = inner, 0
        self.pieces: list[Step] = []  # the steps of the pair's own models in the present write
        self.expected: Chain | None = None  # the chain that the next write has to continue; None during a write

    @property
    def exhausted(self) -> bool:
        """Whether all tokens of all pieces were taken."""
        return not self._unread

    @property
    def ended(self) -> bool:
        """Whether the pair has ended its turn, or writes no more."""
        return self._ended is not None

    async def take(self) -> Token | Stop:
        """Return the next token, or the reason why there is none."""
        while not self._unread:
            if self._ended:
                return self._ended
            await self._advance()
        return self._unread.popleft()

    async def opened(self, limit: int) -> list[Token]:
        """Take the tokens of the opening, at most *limit*."""
        tokens: list[Token] = []
        missing = len(self.inner.opening)
        while missing > 0 and len(tokens) < limit and isinstance(token := await self.take(), Token):
            tokens.append(token)
            missing -= len(token.text)
        return tokens

    def wait_for(self, chain: Chain) -> None:
        """Work ahead for the next write, which is expected to continue *chain*, where this write ended."""
        self.expected = chain
        self.pieces = []
        self._lookahead = self._lookahead or self._begin()

    async def close(self) -> None:
        """Cancel the drafts that were not taken, and wait until their requests are closed."""
        self.expected = None
        lookahead, self._lookahead = self._lookahead, None
        if lookahead is not None:
            await lookahead.close()

    def _begin(self) -> Lookahead:
        outer = KEPT_OPEN.set(None)  # The pair's own requests are open_stream open by its own lookahead, if at all.
        try:
            return Lookahead(self._policy, self._chain, control=self._ahead, spent=self._spent, observe=_ignore)
        finally:
            KEPT_OPEN.reset(outer)

    async def _advance(self) -> None:
        """Take one draft with its verdict, and queue the tokens that stand."""
        lookahead = self._lookahead = self._lookahead or self._begin()
        draft, verdict = await lookahead.next()
        self._report(self.place, draft, verdict)
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
            self._ended = "length"  # The pair writes no more; the outer policy decides what follows.


def _ignore(event: Event) -> None:
    pass


@dataclass(eq=False)
class Nested:
    """
    The pair of one run as a `Model` of its *role*; *policy* makes the pair's own policy over *small* and *large*.

    A write returns the text that the pair has verified, up to the end of the step; the log-probability of each token is
    that of the model that wrote it. The verified text beyond the end is discarded, so that the same chain gives the
    same step whatever was written before, if the models are greedy or sample by a seed. Only if the write ends with a
    complete piece, as steps usually do, the pair works ahead by *ahead* drafts for the next write, provided that the
    caller has set `KEPT_OPEN`. The large model scores, answers questions and branches for the pair.

    If the small model fails for good, the large one goes on alone, and *observe* receives `Degraded`; if the large one
    fails, the pair has failed. *left* is the budget of the run. Raise `ConfigurationError` for an invalid policy.
    """

    role: Role
    small: Model
    large: Model
    policy: Callable[[Model, Model], Policy]
    ahead: int = 1
    observe: Observer = _ignore
    left: Callable[[Chain], int] = lambda chain: sys.maxsize

    def __post_init__(self) -> None:
        self._alone = False
        self._streams: WeakKeyDictionary[AsyncExitStack, VerifiedStream] = WeakKeyDictionary()
        self._policy(InnerOptions())

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
        inner = self._inner_options(chain, options)
        with self._failing():
            try:
                if not (self._alone or chain.finished or chain.closed):
                    return await self._verified(chain, inner, options)
                author = self.large if self._alone else self._policy(inner).answerer
                return await self._by(author, chain, options)
            except EndpointError as exc:
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

    async def _verified(self, chain: Chain, inner: InnerOptions, options: WriteOptions) -> Step:
        limit, stack = options.get("limit", DEFAULT_LIMIT), KEPT_OPEN.get()
        stream = await self._stream(chain, inner, stack)
        stream.place = len(chain.steps)
        try:
            begun = await stream.opened(limit)
            growing = StepBuilder(
                self.role,
                "",
                ends=step_ends(chain, options.get("stop")),
                before=chain.text,
                blocks=chain.totals.blocks,
                limit=limit,
                opening=begun,
                top=inner.top,
            )
            step = None if len(begun) >= limit else await grow(growing, stream.take, options.get("until"))
            step = step or growing.end("length")
        except BaseException:
            await stream.close()
            raise
        whole = stream.exhausted and not growing.overran
        step = self._joined(step, stream.pieces if whole else beginning(stream.pieces, len(step.text)))
        if stack is None or not whole or stream.ended or step.stop == "end" or inner.opening:
            await stream.close()
        else:
            stream.wait_for(chain.extend(step))
        return step

    async def _stream(self, chain: Chain, inner: InnerOptions, stack: AsyncExitStack | None) -> VerifiedStream:
        """Continue the open stream if it fits *chain*, or begin one, which stays open for one write at a time."""
        open_stream = self._streams.get(stack) if stack is not None else None
        if open_stream is not None and open_stream.expected == chain and open_stream.inner == inner:
            open_stream.expected = None
            return open_stream
        if open_stream is not None and open_stream.expected is not None:
            await open_stream.close()
        ahead = self.ahead if stack is not None else 0
        stream = VerifiedStream(self._policy(inner), self._inside(chain), inner, ahead, self._spent, self._report)
        if stack is not None:
            self._streams[stack] = stream
            stack.push_async_callback(stream.close)
        return stream

    async def _by(self, author: Model, chain: Chain, options: WriteOptions) -> Step:
        """Let *author*, one of the two models, write without the other."""
        return self._ours(await author.write(self._inside(chain), **options))

    def _inner_options(self, chain: Chain, options: WriteOptions) -> InnerOptions:
        limit, opening = options.get("limit", DEFAULT_LIMIT), options.get("opening", "")
        cap = limit if limit < min(DEFAULT_LIMIT, self.left(chain)) else None  # None: the limit is the budget's
        return InnerOptions(cap, options.get("top", 0), opening, len(chain.text) if opening else 0)

    def _policy(self, inner: InnerOptions) -> Policy:
        return self.policy(InnerModel(self.small, self.left, inner), InnerModel(self.large, self.left, inner))

    def _spent(self, inside: Chain) -> bool:
        return self.left(inside) <= 0

    def _report(self, place: int, draft: Step, verdict: Verdict) -> None:
        self.observe(JudgedWithin(self.role, place, draft, verdict))

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

    def _joined(self, step: Step, pieces: Sequence[Step]) -> Step:
        """Give *step* its *pieces*, and their vocabulary if they share one; otherwise its text is encoded again."""
        vocabularies = {piece.vocabulary for piece in pieces}
        vocabulary = vocabularies.pop() if len(vocabularies) == 1 else ""
        return replace(step, vocabulary=vocabulary, pieces=tuple(pieces))

    def _go_on_alone(self, exc: EndpointError) -> None:
        if not self._alone:
            self._alone = True
            self.observe(Degraded(self.role, str(exc), f"{self.role}.{self.small.role}"))

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
