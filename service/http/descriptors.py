"""The file descriptors of a service: their number, and the connections that they allow."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from contextlib import suppress

from stepspec.orchestrator.errors import ConfigurationError

from ..settings import ServiceSettings

OWN_DESCRIPTORS = 64
"""Descriptors of the process itself: logs, libraries, health checks, metrics."""
DESCRIPTORS_PER_RUN = 4
"""Descriptors of one run: its client, a draft, a verdict, and a repair or a bet."""
MAX_DESCRIPTORS = 2**20
"""The kernel's own limit by default, in place of a hard limit that is infinite."""
LOG_SECONDS = 1.0
"""Seconds between two messages about the same shortage."""


def raise_limit() -> int:
    """
    Set the soft limit of this process to its hard one, and return it.

    Some systems allow less than an infinite hard limit says. The soft limit then stays.
    """
    limit, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else hard
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        limit = wanted
    return limit


def connections_left(descriptors: int, settings: ServiceSettings) -> int:
    """
    Return how many connections of clients a process with *descriptors* may hold.

    Raise `ConfigurationError` if it cannot hold those of `max_running` requests.
    """
    reserved = OWN_DESCRIPTORS + DESCRIPTORS_PER_RUN * settings.max_running
    needed = reserved + settings.max_running
    if descriptors < needed:
        raise ConfigurationError(
            f"max_running is {settings.max_running}, for which this process needs {needed} file"
            f" descriptors, and it may have {descriptors}: raise the hard limit (ulimit -Hn), or"
            " lower max_running"
        )
    return descriptors - reserved


class OncePerSecond:
    """Passes a message on to *log*, unless the last one was less than `LOG_SECONDS` ago."""

    def __init__(self, log: Callable[[str], None]) -> None:
        self._log = log
        self._last = -LOG_SECONDS

    def __call__(self, message: str) -> None:
        now = time.monotonic()
        if now - self._last >= LOG_SECONDS:
            self._last = now
            self._log(message)
