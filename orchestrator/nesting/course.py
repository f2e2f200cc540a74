"""The course of a nested pair: drafts of its smaller model, judged and repaired, one after the other."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace

from ..chain import Accept, Chain, Step, Stop, Token, Verdict
from ..events import Event
from ..interfaces import KEPT_OPEN, Policy
from ..lookahead import Ahead, Lookahead
from ..tasks import to_the_end
from .terms import Terms


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
        self._ahead = Ahead.of(ahead)
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
            await to_the_end(lookahead.leave())

    def _begin(self) -> Lookahead:
        outer = KEPT_OPEN.set(None)  # The pair's own requests are kept open by its own lookahead, if at all.
        try:
            return Lookahead(self._policy, self._chain, self._ahead, self._spent, _nobody)
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


def _nobody(event: Event) -> None:
    pass
