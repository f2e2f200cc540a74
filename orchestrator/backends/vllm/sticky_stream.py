"""
The sticky stream: a request that stays open after a write, because the next write probably
continues its text.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import replace
from functools import partial
from typing import TypeAlias

from ...chain import Chain, Step, Stop, Token
from ...events import Called
from ...http.request_meter import CallObserver
from ...interfaces import REQUEST, Until
from ...step_builder import StepBounds, StepBuilder, grow
from .token_stream import TokenStream

OpenRequest: TypeAlias = Callable[[CallObserver], AbstractAsyncContextManager[TokenStream]]
"""Sends a request, of which the given function observes the end."""


class StickyStream:
    """
    A request without stop strings, for several writes.

    Between two writes a background task reads ahead, until it has queued a complete step, or as
    many tokens as the limit of the last write. Then the task aborts the request, and the next write
    may still read the queue. A greedy model writes the same tokens as with one request for each
    step. The text of a model that samples depends on how far the task reads, which depends on time.

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
        self._request = AsyncExitStack()  # holds the request while it is open
        self._arrivals: TokenStream | None = None  # None: the request was not sent yet
        self._step = -1  # the index of the step that is written, or was written last
        self._ended: list[Called] = []  # the request, from its end until it is reported
        self._expected: Chain | None = None  # where the last write ended; None: nothing can follow
        self._queue: deque[Token | Stop] = deque()
        self._next: StepBuilder | None = None  # the step in the queue; None: it is complete
        self._reader: asyncio.Task[None] | None = None
        self._stopped = False  # nothing more will be queued
        self.writing = True

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
        try:
            if self._arrivals is None:
                request = self._open_request(self._ended.append)
                self._arrivals = await self._request.enter_async_context(request)
            take = partial(self._take, self._arrivals)
            step = await grow(growing, take, until) or growing.end("delimiter")
        except BaseException as exc:
            await self.close(exc)
            raise
        self.writing = False
        # After an overrun, the server goes on from another text than the chain's.
        is_over = step.stop == "end" or (self._stopped and not self._queue)
        if is_over or growing.overran:
            await self.close()
            return step
        self._expected = chain.extend(step)
        self._next = growing.following(self._expected)
        for item in self._queue:
            self._look_ahead(item)
        if not self._stopped and (self._reader is None or self._reader.done()):
            self._reader = asyncio.create_task(self._read_ahead(self._arrivals))
        return step

    async def _take(self, arrivals: TokenStream) -> Token | Stop:
        """Return the next item of the queue or, if the queue is empty, of the request."""
        if not self._queue and self._reader:
            await asyncio.wait([self._reader])  # It ends after the next item.
            self._reader.result()
            self._reader = None
        item = self._queue.popleft() if self._queue else await arrivals.take()
        self._stopped = self._stopped or not isinstance(item, Token)
        return item

    async def _read_ahead(self, arrivals: TokenStream) -> None:
        """
        Queue what arrives until a step is complete, or until the next write has begun.

        A failure is raised by the next write.
        """
        while not self._step_is_queued(self._bounds.limit):
            item = await arrivals.take()
            self._queue.append(item)
            self._look_ahead(item)
            if self.writing:
                return
        self._stopped = True
        await self._request.aclose()

    async def close(self, failure: BaseException | None = None) -> None:
        """
        Leave the request and report it. It may have ended in a *failure*.

        Between two writes the request counts as done: only its text is not needed. Its `Called` has
        the last step that took tokens from it.
        """
        self._expected = None
        if self._reader:
            # A task that is leaving the request already must not be interrupted.
            if not self._stopped:
                self._reader.cancel()
            await asyncio.wait([self._reader])
            if not self._reader.cancelled():
                failure = failure or self._reader.exception()
        await self._request.__aexit__(type(failure) if failure else None, failure, None)
        while self._ended:
            called = self._ended.pop()
            self._observe(replace(called, last_step=self._step) if called.purpose else called)

    def _step_is_queued(self, limit: int) -> bool:
        """Return whether the queue holds an end, or *limit* tokens and the tokens of a mark."""
        return self._next is None or len(self._queue) >= limit + self._bounds.closing.room

    def _look_ahead(self, item: Token | Stop) -> None:
        """Add *item* of the queue to the step there."""
        if self._next is None:
            return
        if not isinstance(item, Token) or self._next.add(item) not in (None, "length"):
            self._next = None
