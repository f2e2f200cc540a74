"""
The record of each request, and the events that observers of the service receive.

An observer is a callable that receives frozen events, like an observer of a run
(`orchestrator.events`). Observers decide nothing. The metrics, the traces and the log are
observers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from stepspec.orchestrator.events import Event
from stepspec.orchestrator.ledger import Ledger
from stepspec.orchestrator.solution import Solution

from .errors import OVERLOADED, QUEUE_FULL, QUEUE_TIMEOUT, ApiError, api_error
from .json_types import HttpHeaders, JsonObject

POLLED_PATHS = frozenset({"/health", "/health/liveness", "/health/readiness", "/metrics"})
"""The paths that monitoring asks for all the time. The log has such requests only at "debug"."""
PUBLIC_PATHS = POLLED_PATHS | {"/", "/version", "/openapi.json"}
"""The only paths that need no key. The page at "/" asks for the key itself."""
MESSAGES_PATH = "/v1/messages"
COUNT_PATH = "/v1/messages/count_tokens"
MODEL_PATHS: Mapping[str, str] = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "text_completion",
    "/v1/responses": "chat",
    MESSAGES_PATH: "chat",
    COUNT_PATH: "count_tokens",
    "/live": "chat",
}
"""
All POST routes, which call models, with OpenTelemetry's name for what the models do.

Nothing else has to name a new path: clients have limits for these paths, the metrics count each of
these paths by itself, and each request has a span with this name. A test compares the paths with
the routes.
"""
NEVER_FORWARDED = frozenset({"/live"})
"""The paths of `MODEL_PATHS` whose requests are never forwarded to a server."""
TRACE_HEADERS = ("traceparent", "tracestate")
"""The headers with the trace to which a request belongs."""


@dataclass(slots=True, eq=False)
class ServiceRequest:
    """The record of one HTTP request. Seconds are of the monotonic clock."""

    id: str
    """The id that the client sent, or a new id."""
    method: str
    """The HTTP method."""
    path: str
    """The path without a proxy's prefix."""
    headers: HttpHeaders
    """The headers of the request."""
    session_header: str = ""
    """The name of the session header, in lower case. "": the service has no sessions."""
    client: str = ""
    """The name of the client. "": it has no name."""
    partial: bool = False
    """Whether a model has written tokens for a run of the request."""
    ledgers: Sequence[Ledger] = ()
    """The ledgers of the runs. Empty: not all runs are over."""
    arrived: float = field(default_factory=time.perf_counter)
    """The time at which the request arrived, in seconds."""
    model: str = ""
    """The label of the model in metrics. "": the model is not known yet."""
    stream: bool = False
    """Whether the reply is a stream."""
    status: int = 0
    """The HTTP status of the response. 0: no response has begun."""
    error: ApiError | None = None
    """The error of the response. None: there is none."""
    queued: float = 0.0
    """Seconds that the request has waited for its admission."""
    admitted: float | None = None
    """Seconds from the arrival to the admission. None: the request is not admitted yet."""
    upstream_seconds: float | None = None
    """Seconds in which at least one model worked for the request. None: not known yet."""
    first_step: float | None = None
    """Seconds from the arrival to the first verified step. None: no step is verified yet."""
    forwarded: HttpHeaders = field(init=False)
    """The headers that served models receive, among them the session header."""
    log_fields: JsonObject = field(default_factory=JsonObject)
    """Further fields for the request's line in the log."""

    def __post_init__(self) -> None:
        names = (*TRACE_HEADERS, self.session_header)
        self.forwarded = {name: self.headers[name] for name in names if name in self.headers}

    @property
    def session(self) -> str:
        """The value of the session header. "": there is none."""
        return self.forwarded.get(self.session_header, "")

    @property
    def seconds(self) -> float:
        """Seconds since the request arrived."""
        return time.perf_counter() - self.arrived

    @property
    def anthropic(self) -> bool:
        """
        Whether the client uses Anthropic's API.

        All requests of Anthropic's clients have the header ``anthropic-version``.
        """
        return "anthropic-version" in self.headers or self.path in (MESSAGES_PATH, COUNT_PATH)

    def error_of(self, exc: BaseException) -> ApiError:
        """Return the error that tells the client of *exc*, with its status in this API."""
        error = api_error(exc, partial=self.partial)
        overloaded = self.anthropic and error.code in (QUEUE_FULL, QUEUE_TIMEOUT)
        return replace(error, status=OVERLOADED) if overloaded else error

    def error_body(self, error: ApiError) -> bytes:
        """Return the body of *error* in the form of this request's API."""
        return error.anthropic_body(self.id) if self.anthropic else error.body

    @property
    def overhead(self) -> float:
        """
        Seconds that the service itself needed, without the models' work and the wait for admission.

        Of a stream that has only begun, only the seconds before its admission count.
        """
        seconds = self.seconds - (self.upstream_seconds or 0.0)
        if self.admitted is not None and self.upstream_seconds is None:
            seconds = self.admitted
        return max(0.0, seconds - self.queued)


@dataclass(frozen=True, slots=True)
class RequestArrived:
    """A request arrived."""

    request: ServiceRequest
    """The request. An observer may add to its `forwarded` headers and its `log_fields`."""


@dataclass(frozen=True, slots=True)
class RunEvent:
    """An event of a run."""

    request: ServiceRequest
    """The request."""
    choice: int
    """The index of the run among those of the request."""
    at: float
    """Seconds from the start of the run to the event."""
    event: Event
    """The event."""


@dataclass(frozen=True, slots=True)
class RunResult:
    """A run is over."""

    request: ServiceRequest
    """The request."""
    choice: int
    """The index of the run among those of the request."""
    solution: Solution
    """The result of the run."""


@dataclass(frozen=True, slots=True)
class RequestFailed:
    """A request met an unexpected exception, which is a bug."""

    request: ServiceRequest
    """The request."""
    exception: Exception
    """The exception."""


@dataclass(frozen=True, slots=True)
class RequestFinished:
    """A request was answered, or its client disconnected."""

    request: ServiceRequest
    """The request."""


ServiceEvent: TypeAlias = RequestArrived | RunEvent | RunResult | RequestFailed | RequestFinished
ServiceObserver: TypeAlias = Callable[[ServiceEvent], None]
