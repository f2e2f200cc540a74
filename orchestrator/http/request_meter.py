"""The measurements of one request."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeAlias

from ..chain import Party
from ..endpoints.interfaces import Clock
from ..errors import EndpointUnreachable
from ..events import Called, Fate, Verb
from ..interfaces import REQUEST

CallObserver: TypeAlias = Callable[[Called], None]
"""Receives the end of a request."""


@dataclass(slots=True)
class RequestMeter:
    """What is counted of a request while it is under way."""

    clock: Clock
    """Returns the seconds since the run began."""
    started: float
    """When the request began, in seconds since the run began."""
    prompt: int = 0
    """Tokens of the prompt as it was sent, whatever the server reports."""
    cached: int = 0
    """Tokens of the prompt that the server read from its cache."""
    written: int = 0
    """Tokens that have arrived."""
    first: float | None = None
    """Seconds from the start to the first token. None: no token has arrived."""

    def add(self, written: int, cached: int = 0) -> None:
        """
        Count *written* tokens that have just arrived.

        *cached* counts the tokens of the prompt that the server's cache had. 0: not known.
        """
        if written and self.first is None:
            self.first = self.clock() - self.started
        self.written += written
        self.cached = min(cached or self.cached, self.prompt)


@contextmanager
def metered(
    role: Party,
    verb: Verb,
    observe: CallObserver,
    clock: Clock,
    prompt: int = 0,
    url: str = "",
) -> Generator[RequestMeter]:
    """
    Measure the request of the block, which asks the model in *role* for *verb*.

    At the end of the block *observe* receives `Called`, whether the request is done, failed or
    cancelled. *prompt* counts the tokens of its prompt. *url* is that of the server; "" if it has
    none.
    """
    request = REQUEST.get()
    meter = RequestMeter(clock, clock(), prompt)
    fate: Fate = "cancelled"
    try:
        yield meter
        fate = "done"
    except Exception as exc:
        fate = "failed"
        was_refused = getattr(exc, "status", 0) >= 400
        if was_refused or isinstance(exc, EndpointUnreachable):
            # The server has read nothing.
            meter.prompt = 0
            meter.cached = 0
        raise
    finally:
        observe(
            Called(
                role=role,
                verb=verb,
                fate=fate,
                started=meter.started,
                seconds=clock() - meter.started,
                first=meter.first,
                prompt=meter.prompt,
                cached=meter.cached,
                written=meter.written,
                url=url,
                purpose=request.purpose,
                step=request.step,
                last_step=request.step if request.purpose else -1,
            )
        )
