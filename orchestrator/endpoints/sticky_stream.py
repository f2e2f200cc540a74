"""The sticky stream: a request that outlives a write, because the next one probably goes on where it stopped."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from ..chain import THINK_END, Chain, Step, Stop, Token
from ..interfaces import REQUEST
from ..step_ends import StepEnds
from .token_stream import StepBuilder, TokenStream, ends_in, grow


class StickyStream:
    """
    A request without stop strings, read on by a task of its own.

    The task runs ahead of the writes by one step at most, complete or as long as the last write's limit: then it aborts
    the request, and what has arrived may still be read. Text and tokens are those of separate requests, if the model is
    greedy. How far it got in the meantime is a matter of time, so that a model that samples does not repeat itself.
    """

    def __init__(
        self,
        open_request: Callable[[], AbstractAsyncContextManager[TokenStream]],
        ends: StepEnds,
        limit: int,
        top: int = 0,
        closing: str = THINK_END,
    ) -> None:
        self._open = open_request
        self._closing = closing
        self._ends, self._limit, self._top = ends, limit, top
        self._expected: Chain | None = None
        self._unread: deque[Token | Stop | Exception] = deque()
        self._before = self._tail = ""
        self._look, self._whole = 0, False
        self._over = self._leaving = False
        self._step = -1
        self.reading = True
        self._news = asyncio.Event()
        self._pump = asyncio.create_task(self._run())

    def continues(self, chain: Chain, ends: StepEnds, limit: int, top: int = 0) -> bool:
        """Say whether *chain* ends where the last write did, and there is or will be a step that tells as much."""
        expected = not self.reading and chain == self._expected and ends == self._ends and top <= self._top
        return expected and (not self._over or self._waits(limit))

    async def write(self, chain: Chain, growing: StepBuilder, until: Callable[[Step], bool] | None, limit: int) -> Step:
        """Read the next step of *chain*. A failure or a cancellation closes the request first."""
        self.reading, self._limit, self._step = True, limit, REQUEST.get().step
        try:
            step = await grow(growing, self._take, until)
            assert step is not None  # It has no stop strings to stop at.
        except BaseException:
            await self.close()
            raise
        self.reading = False
        if step.stop == "end" or growing.overran:  # The model has gone on from a text that is not the chain's.
            await self.close()
            return step
        self._expected = chain.extend(step)
        self._before, self._tail, self._look, self._whole = self._expected.text, "", 0, False
        for item in self._unread:
            if isinstance(item, Token):
                self._follow(item)
        if self._waits(limit):
            self._end()
        return step

    async def close(self) -> None:
        """Abort the request and wait until it is gone."""
        self._expected = None
        self._end()
        await asyncio.wait([self._pump])

    def _end(self) -> None:
        self._over = True
        if not self._leaving:  # It is closing the request already, which must not be interrupted.
            self._pump.cancel()

    def _waits(self, limit: int) -> bool:
        """Say whether a whole step of at most *limit* tokens waits to be read."""
        return len(self._unread) >= limit or self._whole

    def _follow(self, token: Token) -> None:
        """Look whether *token*, which waits to be read, completes a step."""
        start = max(0, len(self._tail) - len(self._closing) + 1)
        self._tail += token.text
        end, self._look = self._ends.search(self._before, self._tail, self._look)
        self._whole = self._whole or end >= 0 or ends_in(self._tail, (self._closing,), start) >= 0

    async def _take(self) -> Token | Stop:
        while not self._unread:
            if self._pump.done():
                raise RuntimeError("the kept request was closed while it was read")
            self._news.clear()
            await self._news.wait()
        item = self._unread.popleft()
        if isinstance(item, Token):
            return item
        self._over = True
        if isinstance(item, Exception):
            raise item
        return item

    async def _run(self) -> None:
        try:
            async with self._open() as arrivals:
                try:
                    await self._forward(arrivals)
                except asyncio.CancelledError:
                    if self.reading:  # Otherwise nobody was cancelled: there only is nobody to read on.
                        raise
                finally:
                    self._leaving = True
                    ahead = not self.reading and bool(self._tail)
                    arrivals.reached(self._step + ahead)
        except Exception as exc:
            self._unread.append(exc)
        finally:
            self._news.set()

    async def _forward(self, arrivals: TokenStream) -> None:
        while True:
            item = await arrivals.take()
            self._unread.append(item)
            self._news.set()
            if isinstance(item, str):
                return
            if not self.reading:
                self._follow(item)
                if self._waits(self._limit):
                    self._over = True
                    return
