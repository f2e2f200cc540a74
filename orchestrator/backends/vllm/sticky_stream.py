"""
The sticky stream: a request that stays open after a write, because the next write probably
continues its text.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import replace
from functools import partial
from itertools import islice
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

    Between two writes a background task reads ahead, until a complete step has arrived, or as many
    tokens as the limit of the last write. Then the task aborts the request, and the next write may
    still take these tokens. A greedy model writes the same tokens as with one request for each
    step. The text of a model that samples depends on how far the task reads, which depends on time.

    *observe* receives `Called` when the request has ended and its tokens are taken: only then is it
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
        self._next: StepBuilder | None = None  # the step that arrives; None: it is complete
        self._looked = 0  # the tokens that arrived and were added to `_next`
        self._reader: asyncio.Task[None] | None = None
        self._stopped = False  # nothing more will arrive
        self.writing = True

    def continues(self, chain: Chain, bounds: StepBounds) -> bool:
        """
        Return whether the stream can write the next step of *chain*.

        It needs the same chain, delimiters and closing as before, and no more rivals.
        """
        own = self._bounds
        fits = (bounds.ends, bounds.closing) == (own.ends, own.closing) and bounds.top <= own.top
        arrivals = self._arrivals
        if arrivals is None or self.writing or chain != self._expected or not fits:
            return False
        return not self._stopped or self._step_has_arrived(arrivals, bounds.limit)

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
        arrivals = self._arrivals
        is_over = not arrivals.tokens and (self._stopped or arrivals.ended)
        # After an overrun, the server goes on from another text than the chain's.
        if is_over or step.stop == "end" or growing.overran:
            await self.close()
            return step
        self._expected = chain.extend(step)
        self._next = growing.following(self._expected)
        self._looked = 0
        self._look_ahead(arrivals)
        reader = self._reader
        if not self._stopped and (reader is None or (reader.done() and not reader.exception())):
            self._reader = asyncio.create_task(self._read_ahead(arrivals))
        return step

    async def _take(self, arrivals: TokenStream) -> Token | Stop:
        """Return the next token or the end. Wait for the background task if none has arrived."""
        if not arrivals.tokens and self._reader:
            await asyncio.wait([self._reader])  # It ends after the next tokens.
            self._reader.result()
            self._reader = None
        return await arrivals.take()

    async def _read_ahead(self, arrivals: TokenStream) -> None:
        """
        Wait for tokens until a step is complete, or until the next write has begun.

        A failure frees the connection. The next write raises it.
        """
        try:
            while not self._step_has_arrived(arrivals, self._bounds.limit):
                await arrivals.wait()
                if self.writing:
                    return
                self._look_ahead(arrivals)
        except Exception as exc:
            await self._request.__aexit__(type(exc), exc, None)
            raise
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
                failure = self._reader.exception() or failure
        await self._request.__aexit__(type(failure) if failure else None, failure, None)
        while self._ended:
            called = self._ended.pop()
            self._observe(replace(called, last_step=self._step) if called.purpose else called)

    def _step_has_arrived(self, arrivals: TokenStream, limit: int) -> bool:
        """
        Return whether the next step, or the end, is among *arrivals*.

        So it is if there are *limit* tokens and the tokens of a mark.
        """
        if self._next is None or arrivals.ended:
            return True
        return len(arrivals.tokens) >= limit + self._bounds.closing.room

    def _look_ahead(self, arrivals: TokenStream) -> None:
        """Add the tokens that have just arrived to the next step."""
        for token in islice(arrivals.tokens, self._looked, None):
            if self._next and self._next.add(token) not in (None, "length"):
                self._next = None
        self._looked = len(arrivals.tokens)
