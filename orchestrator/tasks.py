"""Owning tasks: what was begun is ended, whatever happens meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine


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
