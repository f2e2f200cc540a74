"""
Observing the service: the record of each request, and the events that observers receive.

An observer is a callable that receives frozen events, as an observer of a run is
(`orchestrator.events`). Observers decide nothing. The metrics, the traces and the log are
observers.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from stepspec.orchestrator.chain import Role
from stepspec.orchestrator.events import Event
from stepspec.orchestrator.ledger import Ledger
from stepspec.orchestrator.solution import Solution

from .errors import OVERLOADED, QUEUE_FULL, QUEUE_TIMEOUT, ApiError

log = logging.getLogger("stepspec")

HEALTH_PATHS = frozenset({"/health", "/health/liveness", "/health/readiness"})
MESSAGES_PATH = "/v1/messages"
COUNT_PATH = "/v1/messages/count_tokens"
MODEL_PATHS = frozenset(
    {"/v1/chat/completions", "/v1/completions", "/v1/responses", MESSAGES_PATH, COUNT_PATH, "/live"}
)
TRACE_HEADERS = ("traceparent", "tracestate")


@dataclass(slots=True, eq=False)
class UpstreamCall:
    """
    One forwarded request to the served *model* at *url*. *started* is in seconds since the request
    arrived.

    *first* is the seconds from *started* to the beginning of the answer, None without an answer.
    *status* is the answer's, 0 without one. *failure* names the error; None if there was none.
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
        """Note that an answer with this *status* began *at* that second of the request."""
        self.status = status
        self.first = at - self.started
        self.failure = str(status) if status >= 400 else None


@dataclass(slots=True, eq=False)
class ServiceRequest:
    """
    The record of one HTTP request. Seconds count from *arrived*, on the monotonic clock.

    *queued* is the seconds in the queue, *admitted* the second at which the work began, *upstream*
    the seconds that a served model was busy with it, and *first_step* the second at which its first
    step was verified; the last three are None while unknown. *session* is the value of the session
    header, *client* the name of the client; "" without one. *large_tokens* are those that the large
    model has written, or read to judge, so far, *ledgers* those of its runs at their end.
    *forwarded* are the headers that served models receive, at first those named by *forward*.
    *log_fields* are added to its line in the log. *calls* has one entry for each server that it was
    forwarded to.
    """

    id: str
    method: str
    path: str
    headers: Mapping[str, str]
    forward: tuple[str, ...] = TRACE_HEADERS
    session: str = ""
    client: str = ""
    large_tokens: int = 0
    ledgers: Sequence[Ledger] = ()
    arrived: float = field(default_factory=time.perf_counter)
    model: str = ""
    stream: bool = False
    status: int = 0
    error: ApiError | None = None
    queued: float = 0.0
    admitted: float | None = None
    upstream: float | None = None
    first_step: float | None = None
    forwarded: Mapping[str, str] = field(init=False)
    log_fields: dict[str, Any] = field(default_factory=dict[str, Any])
    calls: list[UpstreamCall] = field(default_factory=list[UpstreamCall])

    def __post_init__(self) -> None:
        self.forwarded = {name: self.headers[name] for name in self.forward if name in self.headers}

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.arrived

    @contextmanager
    def calling(self, role: Role, model: str, url: str) -> Generator[UpstreamCall]:
        """Record in `calls` the request that is forwarded in the block."""
        call = UpstreamCall(role, model, url, self.seconds)
        self.calls.append(call)
        try:
            yield call
        except BaseException as exc:
            call.failure = call.failure or type(exc).__name__
            raise
        finally:
            call.seconds = self.seconds - call.started

    @property
    def anthropic(self) -> bool:
        """
        Whether the client uses Anthropic's API: all of its requests have the header
        ``anthropic-version``.
        """
        return "anthropic-version" in self.headers or self.path in (MESSAGES_PATH, COUNT_PATH)

    def in_its_api(self, error: ApiError) -> ApiError:
        """Return *error* as the API of this request has it."""
        overloaded = self.anthropic and error.code in (QUEUE_FULL, QUEUE_TIMEOUT)
        return replace(error, status=OVERLOADED) if overloaded else error

    def error_body(self, error: ApiError) -> bytes:
        """Return the body of *error* in the shape of the API of this request."""
        return error.anthropic_body(self.id) if self.anthropic else error.body

    @property
    def overhead(self) -> float:
        """
        Seconds spent in the service itself; of a stream that has only begun, those before it was
        admitted.
        """
        if self.admitted is not None and self.upstream is None:
            return max(0.0, self.admitted - self.queued)
        return max(0.0, self.seconds - self.queued - (self.upstream or 0.0))


@dataclass(frozen=True, slots=True)
class RequestArrived:
    """A request arrived. An observer may add to its `forwarded` headers and `log_fields`."""

    request: ServiceRequest


@dataclass(frozen=True, slots=True)
class RunEvent:
    """*event* happened in the run of one *choice* (an index), *at* seconds after that run began."""

    request: ServiceRequest
    choice: int
    at: float
    event: Event


@dataclass(frozen=True, slots=True)
class RunResult:
    """The run of one *choice* (an index) is over."""

    request: ServiceRequest
    choice: int
    solution: Solution


@dataclass(frozen=True, slots=True)
class RequestFailed:
    """A request met an unexpected exception: a bug."""

    request: ServiceRequest
    exception: Exception


@dataclass(frozen=True, slots=True)
class RequestFinished:
    """A request was answered, or its client disconnected."""

    request: ServiceRequest


@dataclass(frozen=True, slots=True)
class HealthChecked:
    """The servers of *role* were checked: *up* says whether at least one of them is."""

    role: Role
    up: bool


ServiceEvent: TypeAlias = (
    RequestArrived | RunEvent | RunResult | RequestFailed | RequestFinished | HealthChecked
)
ServiceObserver: TypeAlias = Callable[[ServiceEvent], None]


def notify(observers: Sequence[ServiceObserver]) -> ServiceObserver:
    """
    Make one observer that calls all *observers* in order. One that raises is logged, and harms no
    request.
    """

    def observe(event: ServiceEvent) -> None:
        for observer in observers:
            try:
                observer(event)
            except Exception:
                log.exception("an observer failed at %s", type(event).__name__)

    return observe
