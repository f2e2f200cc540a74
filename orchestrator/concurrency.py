"""Structured concurrency: a task that a block starts has ended when the block is left."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Iterable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any, TypeVar

T = TypeVar("T")


@asynccontextmanager
async def background(*coroutines: Coroutine[Any, Any, T]) -> AsyncGenerator[tuple[asyncio.Task[T], ...]]:
    """
    Run *coroutines* as tasks for as long as the block lasts; leaving the block cancels them and waits for their end.

    A task that fails does not end the block, and its error is only logged unless the block reads the task's result.
    Where a failure must end the block, use ``asyncio.TaskGroup``.
    """
    tasks = tuple(asyncio.create_task(coroutine) for coroutine in coroutines)
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


async def to_the_end(work: Coroutine[object, object, None]) -> None:
    """Wait until *work* is done, even if cancelled meanwhile: a deadline may pass while requests are being closed."""
    working, cancelled = asyncio.create_task(work), None
    while not working.done():
        try:
            await asyncio.wait([working])
        except asyncio.CancelledError as exc:
            cancelled = exc
    working.result()
    if cancelled:
        raise cancelled


async def all_entered(stack: AsyncExitStack, contexts: Iterable[AbstractAsyncContextManager[Any]]) -> None:
    """Enter *contexts* at the same time, for *stack* to leave. Raise the first failure once all have come so far."""
    entering = [stack.enter_async_context(context) for context in contexts]
    for entered in await asyncio.gather(*entering, return_exceptions=True):
        if isinstance(entered, BaseException):
            raise entered


async def at_once(works: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Run *works* at the same time and return their results in order. The first failure cancels the others."""
    async with background(*works) as tasks:
        return await asyncio.gather(*tasks)  # If this is cancelled, gather has already cancelled the tasks.
