"""Jobs that have to go on for as long as a block runs."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from types import TracebackType


class Beside:
    """
    Run *jobs*, which end only by failing, beside a block.

    The first failure cancels the block, as asyncio.timeout() does, and is raised in its place. Leaving the block
    cancels the jobs and waits for them. Unlike with a task group, the failure comes unwrapped.
    """

    def __init__(self, jobs: Sequence[Coroutine[None, None, None]]) -> None:
        self._jobs = jobs
        self._tasks: list[asyncio.Task[None]] = []
        self._failure: BaseException | None = None

    async def __aenter__(self) -> None:
        self._block = asyncio.current_task()
        self._cancelling = self._block.cancelling() if self._block else 0
        self._tasks = [asyncio.create_task(job) for job in self._jobs]
        for task in self._tasks:
            task.add_done_callback(self._ended)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        cancelled = await self._end() or isinstance(error, asyncio.CancelledError)
        if self._failure and not (self._still_cancelled() and cancelled):
            raise self._failure from error
        if cancelled and error is None:
            raise asyncio.CancelledError

    def _ended(self, task: asyncio.Task[None]) -> None:
        if self._failure or task.cancelled():
            return
        self._failure = task.exception()
        if self._failure and self._block:
            self._block.cancel()

    async def _end(self) -> bool:
        """Stop the jobs and wait for them; say whether we were cancelled in the meantime."""
        for task in self._tasks:
            task.remove_done_callback(self._ended)
            task.cancel()
        gone = asyncio.gather(*self._tasks, return_exceptions=True)
        try:
            await asyncio.shield(gone)
        except asyncio.CancelledError:
            await gone
            return True
        return False

    def _still_cancelled(self) -> bool:
        """Take our own cancellation back; say whether somebody else's remains."""
        return self._block is not None and self._block.uncancel() > self._cancelling
