"""
The sticky stream: a request that stays open after a write, because the next write probably
continues its text.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace

from ...chain import Chain, Step, Stop, Token
from ...events import Called
from ...interfaces import REQUEST
from ...step_ends import NO_BLOCKS, StepEnds
from .token_stream import OUTSIDE, Closing, StepBuilder, TokenStream, grown


class StickyStream:
    """
    A request without stop strings, which a background task reads into a queue, for several writes.

    Between two writes the task reads ahead until one complete step is in the queue, or as many
    tokens as the limit of the last write. Then it aborts the request; the next write may still read
    the queue. A greedy model writes the same text and tokens as by one request per step. How far
    the task reads ahead depends on time, so that the text of a model that samples depends on it
    too.

    *observe* receives `Called` when the request has ended and nothing more can be taken from the
    queue: only then is it known which step was the last one. *open_request* sends the request, with
    an observer of its own. *ends*, *limit* and *top* are those of the first write, and *closing* is
    how the model ends its thinking.
    """

    def __init__(
        self,
        open_request: Callable[
            [Callable[[Called], None]], AbstractAsyncContextManager[TokenStream]
        ],
        observe: Callable[[Called], None],
        ends: StepEnds,
        limit: int,
        top: int = 0,
        closing: Closing = OUTSIDE,
    ) -> None:
        self._open_request = open_request
        self._observe = observe
        self._closing = closing
        self._ends = ends
        self._limit = limit
        self._top = top
        self._step = -1  # index of the step that is written, or was written last
        # the request, once it has ended, until it is reported
        self._unreported: Called | None = None
        # where the last write ended; None if nothing can follow
        self._expected: Chain | None = None
        self._queue: deque[Token | Stop | Exception] = deque()
        # the text up to the end of the last write, and the text in the queue
        self._before = self._ahead = ""
        self._blocks = NO_BLOCKS  # those of `_before`
        # how far `_ahead` is searched, and whether a step ends in it
        self._searched = 0
        self._step_ahead = False
        self._marked = False  # whether the token of the mark is in `_ahead`
        # no more tokens will be queued; the request is being closed
        self._stopped = self._aborting = False
        self.writing = True
        self._written: Step | Exception | None = None  # the outcome of the write, once it is known
        self._over = asyncio.Event()  # it is known, or nothing more will come
        self._reader = asyncio.create_task(self._read())

    def continues(
        self, chain: Chain, ends: StepEnds, limit: int, top: int = 0, closing: Closing = OUTSIDE
    ) -> bool:
        """
        Whether the stream can write the next step of *chain*: the same chain, ends, and no larger
        *top*.
        """
        same = chain == self._expected and (ends, closing) == (self._ends, self._closing)
        return (
            not self.writing
            and same
            and top <= self._top
            and (not self._stopped or self._step_is_queued(limit))
        )

    async def write(
        self, chain: Chain, growing: StepBuilder, until: Callable[[Step], bool] | None, limit: int
    ) -> Step:
        """Read the next step of *chain*. A failure or a cancellation closes the request first."""
        self.writing = True
        self._limit = limit
        self._step = REQUEST.get().step
        self._growing = growing
        self._until = until
        self._written = None
        self._over.clear()
        try:
            while self._queue and not self._over.is_set():
                self._put(self._queue.popleft())
            step = await self._outcome()
        except BaseException:
            await self.close()
            raise
        self.writing = False
        # The server goes on from another text than the chain's.
        if step.stop == "end" or growing.overran:
            await self.close()
            return step
        self._expected = chain.extend(step)
        self._before = self._expected.text
        self._blocks = self._expected.totals.blocks
        self._ahead = ""
        self._searched = 0
        self._step_ahead = False
        self._marked = False
        for item in self._queue:
            if isinstance(item, Token):
                self._search(item)
        if self._step_is_queued(limit):
            self._stop()
        if not self._queue:
            self._report()
        return step

    async def _outcome(self) -> Step:
        """Wait until the write is over; return its step, or raise why there is none."""
        if not self._over.is_set() and not self._reader.done():
            await self._over.wait()
        if isinstance(self._written, Step):
            return self._written
        raise self._written or RuntimeError("the sticky stream was closed during a write")

    async def close(self) -> None:
        """Abort the request and wait until it is closed."""
        self._expected = None
        self._stop()
        await asyncio.wait([self._reader])
        self._report()

    def _hold(self, called: Called) -> None:
        """Receive `Called` when the request has ended."""
        self._unreported = called

    def _report(self) -> None:
        """
        Emit `Called` if the request has ended; its last step is the last one that a write took
        tokens for.
        """
        if called := self._unreported:
            self._unreported = None
            self._observe(replace(called, last_step=self._step) if called.purpose else called)

    def _stop(self) -> None:
        self._stopped = True
        # A task that is closing the request already must not be interrupted.
        if not self._aborting:
            self._reader.cancel()

    def _step_is_queued(self, limit: int) -> bool:
        """
        Whether the queue holds a complete step: an end, or *limit* tokens and those of a mark.
        """
        return len(self._queue) >= limit + self._closing.room or self._step_ahead

    def _search(self, token: Token) -> None:
        """Look for the end of a step in the queued text, to which *token* is new."""
        self._ahead += token.text
        end, self._searched = self._ends.search(
            self._before, self._ahead, self._searched, self._blocks
        )
        closing = self._closing
        self._marked = self._marked or closing.id < 0 or token.id == closing.id
        # The text of a mark may be that of a later token.
        last = self._ahead[-len(token.text) - len(closing.text) :]
        self._step_ahead = (
            self._step_ahead or end >= 0 or (closing.open and self._marked and closing.text in last)
        )

    def _put(self, item: Token | Stop | Exception) -> None:
        """Add *item* to the step that is being written, or queue it."""
        if not self.writing or self._written is not None:
            self._queue.append(item)
            return
        self._stopped = self._stopped or not isinstance(item, Token)
        try:
            if isinstance(item, str):
                self._written = self._growing.end(item)
            else:
                self._written = (
                    grown(self._growing, item, self._until) if isinstance(item, Token) else item
                )
        except Exception as exc:
            self._written = exc
        if self._written is not None:
            self._over.set()

    async def _read(self) -> None:
        """Send the request and queue what arrives, in the background task."""
        try:
            async with self._open_request(self._hold) as arrivals:
                try:
                    await self._read_ahead(arrivals)
                except asyncio.CancelledError:
                    # Without a write the request counts as done: only its text is not needed.
                    if self.writing:
                        raise
                finally:
                    self._aborting = True
        except Exception as exc:
            self._put(exc)
        finally:
            self._over.set()

    async def _read_ahead(self, arrivals: TokenStream) -> None:
        while True:
            item = await arrivals.take()
            self._put(item)
            if isinstance(item, str):
                return
            if not self.writing:
                self._search(item)
                if self._step_is_queued(self._limit):
                    self._stopped = True
                    return
