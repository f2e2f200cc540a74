"""The log: an observer that writes a line for each request, and for what goes wrong in runs and servers."""

from __future__ import annotations

import io
import logging
import sys
from contextlib import suppress
from typing import Any, TextIO, cast

import structlog
from structlog.tracebacks import ExceptionDictTransformer

from ...chain import Role
from ...events import Degraded, Event, FellBack, Moved, Started
from ...solution import Solution
from ..settings import ServiceSettings
from .records import (
    HEALTH_PATHS,
    HealthChecked,
    RequestArrived,
    RequestFailed,
    RequestFinished,
    RunEvent,
    RunResult,
    ServiceEvent,
    ServiceRequest,
)

QUIET_PATHS = HEALTH_PATHS | {"/metrics"}  # polled every few seconds, so logged at level debug only


class GuardedStream(io.TextIOBase):
    """Standard error, which loses what cannot be written: a full disk or a lost reader must not end a request."""

    def write(self, text: str, /) -> int:
        with suppress(OSError, ValueError):
            return sys.stderr.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError, ValueError):
            sys.stderr.flush()


class RequestLog:
    """An observer that writes the log. Problems and answers appear in it only if `log_prompts` is set."""

    def __init__(self, settings: ServiceSettings) -> None:
        self._prompts = settings.log_prompts
        self._up: dict[Role, bool] = {}
        self.log = _logger(settings)

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
        structlog.PrintLogger(cast("TextIO", GuardedStream())),
        processors=[*shared, *last],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        cache_logger_on_first_use=True,
    )
