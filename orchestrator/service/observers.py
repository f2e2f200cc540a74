"""
Observing the service: the record of each request, the events, and the log that is written from them.

An observer is a callable that receives frozen events, as an observer of a run is (`orchestrator.events`). Observers
decide nothing. The metrics and the traces are observers too.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import structlog
from structlog.tracebacks import ExceptionDictTransformer

from ..chain import Role
from ..events import Degraded, Event, FellBack, Moved, Started
from ..solution import Solution
from .errors import ApiError
from .settings import ServiceSettings

HEALTH_PATHS = frozenset({"/health", "/health/liveness", "/health/liveliness", "/health/readiness", "/ping"})
QUIET_PATHS = HEALTH_PATHS | {"/metrics"}  # polled every few seconds, so logged at level debug only
MESSAGES_PATH, COUNT_PATH = "/v1/messages", "/v1/messages/count_tokens"
MODEL_PATHS = frozenset(
    {"/v1/chat/completions", "/v1/completions", "/v1/responses", MESSAGES_PATH, COUNT_PATH, "/live"}
)
TRACE_HEADERS = ("traceparent", "tracestate")

_SHARE_OF_TIMEOUT = 0.95  # the rest is left for the answer to travel


@dataclass(slots=True, eq=False)
class UpstreamCall:
    """
    One forwarded request to the served *model* at *url*. *started* is in seconds since the request arrived.

    *first* is the seconds from *started* to the beginning of the answer, None without an answer. *status* is the
    answer's, 0 without one. *failure* names the error; None if there was none.
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
        self.status, self.first = status, at - self.started
        self.failure = str(status) if status >= 400 else None


@dataclass(slots=True, eq=False)
class ServiceRequest:
    """
    The record of one HTTP request. Seconds count from *arrived*, on the monotonic clock.

    *queued* is the seconds in the queue, *admitted* the second at which the work began, *upstream* the seconds that a
    served model was busy with it, and *first_step* the second at which its first step was verified; the last three are
    None while unknown. *session* is the value of the session header, *client* the name of the client; "" without one.
    *large_tokens* are those that the large model has written, or read to judge, so far; its client's limit was charged
    with *charged_tokens* of them. *forwarded* are the headers that served models receive, at first those named by
    *forward*. *log_fields* are added to its line in the log. *calls* has one entry for each server that it was
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
    charged_tokens: int = 0
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
        """Whether the client uses Anthropic's API: all of its requests have the header ``anthropic-version``."""
        return "anthropic-version" in self.headers or self.path in (MESSAGES_PATH, COUNT_PATH)

    def in_its_api(self, error: ApiError) -> ApiError:
        """Return *error* as the API of this request has it."""
        return error.in_anthropic_api if self.anthropic else error

    def error_body(self, error: ApiError) -> bytes:
        """Return the body of *error* in the shape of the API of this request."""
        return error.anthropic_body(self.id) if self.anthropic else error.body

    @property
    def overhead(self) -> float:
        """Seconds spent in the service itself; of a stream that has only begun, those before it was admitted."""
        if self.admitted is not None and self.upstream is None:
            return max(0.0, self.admitted - self.queued)
        return max(0.0, self.seconds - self.queued - (self.upstream or 0.0))

    @property
    def client_timeout(self) -> float | None:
        """How many seconds the client waits for a byte, with a reserve, as the OpenAI SDK declares; None if unknown."""
        try:
            seconds = float(self.headers.get("x-stainless-read-timeout", ""))
        except ValueError:
            return None
        return seconds * _SHARE_OF_TIMEOUT if 0 < seconds < float("inf") else None


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


ServiceEvent: TypeAlias = RequestArrived | RunEvent | RunResult | RequestFailed | RequestFinished | HealthChecked
ServiceObserver: TypeAlias = Callable[[ServiceEvent], None]


def notify(observers: Sequence[ServiceObserver]) -> ServiceObserver:
    """Make one observer that calls all *observers* in order."""

    def observe(event: ServiceEvent) -> None:
        for observer in observers:
            observer(event)

    return observe


class RequestLog:
    """An observer that writes the log. Problems and answers appear in it only if `log_prompts` is set."""

    def __init__(self, settings: ServiceSettings) -> None:
        self._prompts = settings.log_prompts
        self._up: dict[Role, bool] = {}
        self.log = _logger(settings)

    def info(self, message: str, **fields: Any) -> None:
        """Write a line about the service itself."""
        self.log.info(message, **fields)

    def __call__(self, event: ServiceEvent) -> None:
        match event:
            case RunEvent(request, choice, _, run_event):
                self._run_event(request, choice, run_event)
            case RunResult(request, choice, solution):
                self._run_result(request, choice, solution)
            case RequestFailed(request, exception):
                self.log.error("failed", request_id=request.id, path=request.path, exc_info=exception)
            case RequestFinished(request):
                self._request(request)
            case HealthChecked(role, up):
                if self._up.get(role, True) != up:
                    (self.log.info if up else self.log.warning)("upstream", role=role, up=up)
                self._up[role] = up
            case RequestArrived():
                pass

    def _run_event(self, request: ServiceRequest, choice: int, event: Event) -> None:
        log = self.log.bind(request_id=request.id, choice=choice)
        match event:
            case Started(messages=messages) if self._prompts:
                log.info("started", messages=[(message.role, message.content) for message in messages])
            case Degraded(role=role, cause=cause):
                log.warning("degraded", role=role, cause=cause)
            case FellBack(stage=stage, cause=cause, fallback=fallback):
                log.warning("verifier_failed", stage=stage, cause=cause, fallback=fallback)
            case Moved(role=role, url=url, to=to, cause=cause):
                log.warning("moved", role=role, url=url, to=to, cause=cause)
            case _:
                pass

    def _run_result(self, request: ServiceRequest, choice: int, solution: Solution) -> None:
        request.log_fields["finish"] = solution.finish_reason
        ledger = solution.ledger
        self.log.debug(
            "solved",
            request_id=request.id,
            choice=choice,
            finish=solution.finish_reason,
            accept_rate=ledger.accept_rate,
            share_large=round(ledger.share_large, 3),
            kept=ledger.small.kept + ledger.large.kept,
            **({"answer": solution.answer} if self._prompts else {}),
        )

    def _request(self, request: ServiceRequest) -> None:
        error = request.error
        fields = {
            "status": request.status,
            "seconds": round(request.seconds, 4),
            "client": request.client or None,
            "model": request.model or None,
            "stream": request.stream or None,
            "queued": round(request.queued, 4) or None,
            "overhead": round(request.overhead, 4) if request.upstream is not None else None,
            "error": error.code or error.message if error else None,
            **request.log_fields,
        }
        failed = request.status >= 500
        quiet = request.path in QUIET_PATHS and not failed
        write = self.log.debug if quiet else self.log.warning if failed else self.log.info
        known = {key: value for key, value in fields.items() if value is not None}
        write("request", request_id=request.id, method=request.method, path=request.path, **known)


def _logger(settings: ServiceSettings) -> Any:
    level = logging.getLevelNamesMapping()[settings.log_level.upper()]
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    if settings.log_format == "json":
        traceback = ExceptionDictTransformer(show_locals=False)  # Keys and problems are among the variables.
        last: list[Any] = [structlog.processors.ExceptionRenderer(traceback), structlog.processors.JSONRenderer()]
    else:
        plain = structlog.dev.plain_traceback
        last = [structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=plain)]
    return structlog.wrap_logger(
        structlog.PrintLogger(sys.stderr),
        processors=[*shared, *last],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        cache_logger_on_first_use=True,
    )
