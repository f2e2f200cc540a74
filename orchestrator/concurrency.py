"""Owning tasks: what was begun is ended, whatever happens meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Any, TypeVar

T = TypeVar("T")


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
    """Do *works* at the same time and return what comes of them, in order. A failure of one ends all of them."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()  # Where this was cancelled itself, gather has waited until they were gone.
        if tasks:
            await asyncio.wait(tasks)
