"""An event loop whose clock jumps to the next timer: latency becomes arithmetic."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import TypeVar

T = TypeVar("T")


class _Skipping(selectors.SelectSelector):
    """Waits for nothing: what it was to wait has passed."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError("deadlock: every task waits, and no timer will wake one")
        self.now += max(timeout, 0.0)
        return super().select(0)


class JumpingLoop(asyncio.SelectorEventLoop):
    """
    An event loop whose clock jumps to the next timer when every task waits.

    It is for tasks that use no network.
    """

    def __init__(self) -> None:
        self._skipping = _Skipping()
        super().__init__(self._skipping)

    def time(self) -> float:
        return self._skipping.now


def run(main: Coroutine[object, object, T]) -> tuple[T, float]:
    """
    Run *main* on a clock that jumps. Return its result and the seconds that it took there.

    It must leave no task.
    """

    async def alone() -> T:
        try:
            return await main
        finally:
            left = asyncio.all_tasks() - {asyncio.current_task()}
            assert not left, f"left behind: {left}"

    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        return runner.run(alone()), runner.get_loop().time()
