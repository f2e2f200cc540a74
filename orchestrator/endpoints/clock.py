"""The clock of a run."""

from __future__ import annotations

import time
from collections.abc import Callable


def or_now(clock: Callable[[], float] | None) -> Callable[[], float]:
    """Return *clock*; without one, a clock that begins now, in seconds."""
    began = time.perf_counter()
    return clock or (lambda: time.perf_counter() - began)
