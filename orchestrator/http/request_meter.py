"""The measurements of one request."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self, TypeAlias

from ..chain import Party
from ..endpoints.interfaces import Clock
from ..errors import EndpointError, EndpointUnreachable
from ..events import Called, Fate, Verb
from ..interfaces import REQUEST, RequestContext

CallObserver: TypeAlias = Callable[[Called], None]
"""Receives the end of a request."""


@dataclass(slots=True)
class RequestMeter:
    """
    Measures the request that is sent within its block.

    Leaving the block emits `Called`, whether the request is done, failed or cancelled.
    """

    role: Party
    """The model that the request is for."""
    verb: Verb
    """What the model is asked to do."""
    observe: CallObserver
    """Receives the event at the end of the block."""
    clock: Clock
    """Returns the seconds since the run began."""
    prompt: int = 0
    """Tokens of the prompt as it was sent, whatever the server reports."""
    cached: int = 0
    """Tokens of the prompt that the server read from its cache."""
    written: int = 0
    """Tokens that have arrived."""
    first: float | None = None
    """Seconds from the start to the first token. None: no token has arrived."""
    url: str = ""
    """The URL of the server. "": it has none."""
    started: float = field(init=False)
    """When the block was entered, in seconds since the run began."""
    request: RequestContext = field(init=False)
    """The request's place in its run."""

    def __enter__(self) -> Self:
        self.started = self.clock()
        self.request = REQUEST.get()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        seconds = self.clock() - self.started
        if _was_refused(exc):
            self.prompt = 0
            self.cached = 0
        purpose = self.request.purpose
        step = self.request.step
        self.observe(
            Called(
                role=self.role,
                verb=self.verb,
                fate=_fate(exc),
                started=self.started,
                seconds=seconds,
                first=self.first,
                prompt=self.prompt,
                cached=self.cached,
                written=self.written,
                url=self.url,
                purpose=purpose,
                step=step,
                last_step=step if purpose else -1,
            )
        )

    def add(self, written: int, cached: int = 0) -> None:
        """
        Count *written* tokens that have just arrived.

        *cached* counts the tokens of the prompt that the server's cache had. 0: not known.
        """
        if written and self.first is None:
            self.first = self.clock() - self.started
        self.written += written
        self.cached = min(cached or self.cached, self.prompt)


def _fate(exc: BaseException | None) -> Fate:
    if exc is None:
        return "done"
    if isinstance(exc, Exception):
        return "failed"
    return "cancelled"


def _was_refused(exc: BaseException | None) -> bool:
    """Return whether the server read nothing of a request that ended with *exc*."""
    if isinstance(exc, EndpointUnreachable):
        return True
    return isinstance(exc, EndpointError) and exc.status >= 400
