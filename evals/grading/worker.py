"""Compare answers in a process of its own, which has limits and may be killed."""

from __future__ import annotations

import resource
import signal

MEMORY_BYTES = 4 * 2**30
"""Address space of the process: enough for any answer, and too little to starve the machine."""


def compare(answer: str, gold: str, seconds: float) -> bool:
    """
    Whether *answer* means the same as *gold*, the true answer.

    The process ends after so many *seconds* of computing. Computing time does not depend on how
    busy the machine is.
    """
    _, hard_limit = resource.getrlimit(resource.RLIMIT_AS)
    memory_bytes = MEMORY_BYTES
    if hard_limit != resource.RLIM_INFINITY:
        memory_bytes = min(MEMORY_BYTES, hard_limit)
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that asks.
    # Only this process needs the algebra library. Its import does not count.
    from .compare import same

    signal.setitimer(signal.ITIMER_PROF, seconds)  # Nothing handles its signal.
    right = same(answer, gold)
    signal.setitimer(signal.ITIMER_PROF, 0)
    return right
