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
from typing import TypeAlias

from ...chain import Chain, Step, Stop, Token
from ...events import Called
from ...http.request_meter import CallObserver
from ...interfaces import REQUEST, Until
from ...step_builder import StepBounds, StepBuilder, grown
from .token_stream import TokenStream

OpenRequest: TypeAlias = Callable[[CallObserver], AbstractAsyncContextManager[TokenStream]]
"""Sends a request, of which the given function observes the end."""


class StickyStream:
    """
    A request without stop strings, which a background task reads into a queue, for several writes.

    Between two writes the task reads until the queue holds a complete step, or as many tokens as
    the limit of the last write. Then the task aborts the request, and the next write may still read
    the queue. A greedy model writes the same tokens as with one request for each step. The text of
    a model that samples depends on how far the task reads, which depends on time.

    *observe* receives `Called` when the request has ended and the queue is empty: only then is it
    known for which step the last token was taken.
    """

    def __init__(
        self,
        open_request: OpenRequest,
        observe: CallObserver,
        bounds: StepBounds,
    ) -> None:
        self._open_request = open_request
        self._observe = observe
        self._bounds = bounds  # of the first write; the limit is that of the last write
        self._step = -1  # the index of the step that is written, or was written last
        self._unreported: Called | None = None  # the request, from its end until it is reported
        self._expected: Chain | None = None  # where the last write ended; None: nothing can follow
        self._queue: deque[Token | Stop | Exception] = deque()
        self._next: StepBuilder | None = None  # the step in the queue; None: it is complete
        self._stopped = False  # nothing more will be queued
        self._aborting = False  # the request is being closed
        self.writing = True
        self._written: Step | Exception | None = None  # the outcome of a write; None: not known yet
        self._over = asyncio.Event()  # the outcome is known, or nothing more will come
        self._reader = asyncio.create_task(self._read())

    def continues(self, chain: Chain, bounds: StepBounds) -> bool:
        """
        Return whether the stream can write the next step of *chain*.

        It needs the same chain, delimiters and closing as before, and no more rivals.
        """
        own = self._bounds
        fits = (bounds.ends, bounds.closing) == (own.ends, own.closing) and bounds.top <= own.top
        if self.writing or chain != self._expected or not fits:
            return False
        return not self._stopped or self._step_is_queued(bounds.limit)

    async def write(self, chain: Chain, growing: StepBuilder, until: Until) -> Step:
        """Read the next step of *chain*. A failure or a cancellation closes the request first."""
        self.writing = True
        self._bounds = replace(self._bounds, limit=growing.bounds.limit)
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
        else:
            self._read_on_from(chain.extend(step))
        return step

    def _read_on_from(self, chain: Chain) -> None:
        """Prepare for the write that continues *chain*."""
        self._expected = chain
        self._next = self._growing.following(chain)
        for item in self._queue:
            if isinstance(item, Token):
                self._look_ahead(item)
        if self._step_is_queued(self._bounds.limit):
            self._stop()
        if not self._queue:
            self._report()

    async def _outcome(self) -> Step:
        """Wait until the write is over. Return its step, or raise why there is none."""
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
        """Emit `Called` if the request has ended, with the last step that took tokens from it."""
        called = self._unreported
        if called is None:
            return
        self._unreported = None
        self._observe(replace(called, last_step=self._step) if called.purpose else called)

    def _stop(self) -> None:
        self._stopped = True
        # A task that is closing the request already must not be interrupted.
        if not self._aborting:
            self._reader.cancel()

    def _step_is_queued(self, limit: int) -> bool:
        """Return whether the queue holds an end, or *limit* tokens and the tokens of a mark."""
        return self._next is None or len(self._queue) >= limit + self._bounds.closing.room

    def _look_ahead(self, token: Token) -> None:
        """Add *token*, the last of the queue, to the step there."""
        if self._next is not None and self._next.add(token) not in (None, "length"):
            self._next = None

    def _put(self, item: Token | Stop | Exception) -> None:
        """Add *item* to the step that is being written, or queue it."""
        if not self.writing or self._written is not None:
            self._queue.append(item)
            return
        self._stopped = self._stopped or not isinstance(item, Token)
        try:
            self._written = self._grown(item)
        except Exception as exc:
            self._written = exc
        if self._written is not None:
            self._over.set()

    def _grown(self, item: Token | Stop | Exception) -> Step | Exception | None:
        """Return the outcome of the write if *item* is its last one, else None."""
        if isinstance(item, Token):
            return grown(self._growing, item, self._until)
        if isinstance(item, str):
            return self._growing.end(item)
        return item

    async def _read(self) -> None:
        """Send the request and queue what arrives, in the background task."""
        try:
            async with self._open_request(self._hold) as arrivals:
                await self._read_ahead(arrivals)
        except Exception as exc:
            self._put(exc)
        finally:
            self._over.set()

    async def _read_ahead(self, arrivals: TokenStream) -> None:
        """Queue what arrives until the text ends, or a step is queued between two writes."""
        try:
            while True:
                item = await arrivals.take()
                self._put(item)
                if isinstance(item, str):
                    return
                if self.writing:
                    continue
                self._look_ahead(item)
                if self._step_is_queued(self._bounds.limit):
                    self._stopped = True
                    return
        except asyncio.CancelledError:
            # Between two writes the request counts as done: only its text is not needed.
            if self.writing:
                raise
        finally:
            self._aborting = True
