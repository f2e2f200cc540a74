"""One request to the service, from the door and back: what is known about it, for headers, logs and metrics."""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import HTTPConnection

from ..chain import Role
from .errors import Refusal

CARRIED = ("traceparent", "tracestate")

_NAME = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_SHARE_OF_TIMEOUT = 0.95  # the rest is for the answer to travel


@dataclass(slots=True, eq=False)
class Passed:
    """
    That a request was passed on to the server at *url*, for *seconds* from the second *started* of the visit.

    *first* is when the answer began, in seconds since then, and *status* its own; 0 if there was none. *failure* names
    what went wrong, if anything did.
    """

    role: Role
    model: str
    url: str
    started: float
    seconds: float = 0.0
    first: float | None = None
    status: int = 0
    failure: str | None = None

    def answered(self, status: int, at: float) -> None:
        """Note that an answer with this *status* began *at* that second of the visit."""
        self.status, self.first = status, at - self.started
        self.failure = str(status) if status >= 400 else None


@dataclass(slots=True, eq=False)
class Visit:
    """
    What is known about one request. Seconds are since *began*, on the monotonic clock.

    *queued* it waited for a place; *begun* is when the engine took over and *upstream* how long some served model was
    working for it, None while that is not known. *first_step* is when its first verified step was sent. *carried* are
    the headers that go on to the served models, at first those named by *carries*; *notes* are what the log tells
    besides. *passed* has one entry for each server that the request was passed on to.
    """

    id: str
    method: str
    path: str
    headers: Mapping[str, str]
    carries: tuple[str, ...] = CARRIED
    began: float = field(default_factory=time.perf_counter)
    model: str = ""
    stream: bool = False
    status: int = 0
    refusal: Refusal | None = None
    queued: float = 0.0
    begun: float | None = None
    upstream: float | None = None
    first_step: float | None = None
    carried: Mapping[str, str] = field(init=False)
    notes: dict[str, Any] = field(default_factory=dict[str, Any])
    passed: list[Passed] = field(default_factory=list[Passed])

    def __post_init__(self) -> None:
        self.carried = {name: self.headers[name] for name in self.carries if name in self.headers}

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.began

    @contextmanager
    def passing(self, role: Role, model: str, url: str) -> Generator[Passed]:
        """Note in `passed` what becomes of the request that is passed on in the block."""
        passed = Passed(role, model, url, self.seconds)
        self.passed.append(passed)
        try:
            yield passed
        except BaseException as exc:
            passed.failure = passed.failure or type(exc).__name__
            raise
        finally:
            passed.seconds = self.seconds - passed.started

    @property
    def overhead(self) -> float:
        """Seconds that were the service's own; of a stream that has only begun, until the engine took over."""
        if self.begun is not None and self.upstream is None:
            return max(0.0, self.begun - self.queued)
        return max(0.0, self.seconds - self.queued - (self.upstream or 0.0))

    @property
    def patience(self) -> float | None:
        """How long the client waits for an answer, if it says so (the OpenAI SDK does), with time to spare."""
        try:
            seconds = float(self.headers.get("x-stainless-read-timeout", ""))
        except ValueError:
            return None
        return seconds * _SHARE_OF_TIMEOUT if 0 < seconds < float("inf") else None


def visit_of(connection: HTTPConnection) -> Visit:
    """The visit that a request belongs to."""
    visit = connection.scope["stepspec.visit"]
    assert isinstance(visit, Visit)
    return visit


def request_id(given: str | None) -> str:
    """The client's own id, if it can stand in a header and in a log; otherwise a new one."""
    return given if given and _NAME.fullmatch(given) else uuid.uuid4().hex
