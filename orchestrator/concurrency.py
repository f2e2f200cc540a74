"""Structured concurrency: a task that a block starts has ended when the block is left."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any, TypeVar

T = TypeVar("T")


@asynccontextmanager
async def background(
    *coroutines: Coroutine[Any, Any, T],
) -> AsyncGenerator[tuple[asyncio.Task[T], ...]]:
    """
    Run *coroutines* as tasks for as long as the block lasts.

    Leaving the block cancels the tasks and waits for their end. A task that fails does not end the
    block. Its error is only logged unless the block reads the task's result. Where a failure must
    end the block, use `supervised`.
    """
    tasks = tuple(asyncio.create_task(coroutine) for coroutine in coroutines)
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        try:
            if tasks:
                await asyncio.wait(tasks)
        except asyncio.CancelledError:
            await to_the_end(asyncio.wait(tasks))
            raise


@asynccontextmanager
async def supervised(*coroutines: Coroutine[Any, Any, object]) -> AsyncGenerator[None]:
    """
    Run *coroutines* in a task group for as long as the block lasts.

    The first failure cancels the block, and is raised without an exception group. So is an error of
    the block.
    """
    block = asyncio.current_task()
    cancelling = block.cancelling() if block else 0
    errors: Sequence[BaseException] = ()
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(coroutine) for coroutine in coroutines]
            yield
            for task in tasks:
                task.cancel()
            if tasks:
                # A task group that is cancelled here cancels its tasks again.
                await to_the_end(asyncio.wait(tasks))
    except BaseExceptionGroup as exc:
        errors = exc.exceptions
    if block and block.cancelling() > cancelling and errors:
        # The caller of the block was cancelled at the same time, which comes first.
        raise asyncio.CancelledError
    if errors:
        raise errors[0] from (errors[1] if len(errors) > 1 else None)


async def to_the_end(coroutine: Coroutine[Any, Any, object]) -> None:
    """
    Wait until *coroutine* has ended, even if cancelled.

    A deadline may pass while requests are being closed.
    """
    task = asyncio.create_task(coroutine)
    cancelled = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as exc:
            cancelled = exc
    task.result()
    if cancelled:
        raise cancelled


async def all_entered(
    stack: AsyncExitStack, contexts: Iterable[AbstractAsyncContextManager[Any]]
) -> None:
    """
    Enter *contexts* at the same time. *stack* leaves them.

    Raise the first failure once every attempt has ended.
    """
    attempts = [stack.enter_async_context(context) for context in contexts]
    for result in await asyncio.gather(*attempts, return_exceptions=True):
        if isinstance(result, BaseException):
            raise result


async def at_once(coroutines: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """
    Run *coroutines* at the same time, and return their results in order.

    The first failure cancels the others.
    """
    async with background(*coroutines) as tasks:
        # If this is cancelled, gather has already cancelled the tasks.
        return await asyncio.gather(*tasks)
