"""``stepspec serve`` as a program of its own, in front of a pair."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from anyio.from_thread import start_blocking_portal

from ...program import logged, serve
from ..conftest import Pair

__all__ = ["KEY", "Service", "logged", "serving_pair"]

KEY = "sesame"
SETTINGS = {"STEPSPEC_SERVICE__KEYS": KEY, "STEPSPEC_SAMPLING__TEMPERATURE": "0"}
LOGGING = ("--log-level", "debug", "--log-prompts")


@dataclass(frozen=True, slots=True)
class Service:
    """Where it is reached, and what it writes."""

    base_url: str
    log: Path


@contextmanager
def serving_pair(pair: Pair, log: Path) -> Generator[Service]:
    """Start a service with a key over *pair*, greedy unless a request says otherwise, and stop it."""
    starting = serve(pair.small.base_url, pair.large.base_url, log, *LOGGING, settings=SETTINGS)
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(starting) as program:
        yield Service(f"{program.base}/v1", log)
