"""Whoever watches the service: metrics, spans, logs. They learn everything and decide nothing."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import structlog
from structlog.tracebacks import ExceptionDictTransformer

from ..chain import Role
from ..events import Degraded, Event, Moved, Started
from ..solution import Solution
from .middleware import HEALTH, ServiceRequest
from .settings import ServiceSettings


class ServiceObserver(Protocol):
    """Sees every request to the service, and everything that happens in its runs."""

    def begins(self, visit: ServiceRequest) -> None:
        """A request came in."""
        ...

    def sees(self, visit: ServiceRequest, index: int, event: Event) -> None:
        """Something happened in the run of choice *index*."""
        ...

    def solved(self, visit: ServiceRequest, index: int, solution: Solution) -> None:
        """The run of choice *index* is over."""
        ...

    def failed(self, visit: ServiceRequest, exc: Exception) -> None:
        """Something failed that nobody foresaw."""
        ...

    def ends(self, visit: ServiceRequest) -> None:
        """A request was answered, or its client went away."""
        ...

    def looked(self, role: Role, up: bool) -> None:
        """Somebody looked whether the servers of *role* are up."""
        ...


@dataclass(frozen=True, slots=True)
class ServiceObservers:
    """Several as one."""

    all: Sequence[ServiceObserver]

    def begins(self, visit: ServiceRequest) -> None:
        for witness in self.all:
            witness.begins(visit)

    def sees(self, visit: ServiceRequest, index: int, event: Event) -> None:
        for witness in self.all:
            witness.sees(visit, index, event)

    def solved(self, visit: ServiceRequest, index: int, solution: Solution) -> None:
        for witness in self.all:
            witness.solved(visit, index, solution)

    def failed(self, visit: ServiceRequest, exc: Exception) -> None:
        for witness in self.all:
            witness.failed(visit, exc)

    def ends(self, visit: ServiceRequest) -> None:
        for witness in self.all:
            witness.ends(visit)

    def looked(self, role: Role, up: bool) -> None:
        for witness in self.all:
            witness.looked(role, up)


QUIET = HEALTH | {"/metrics"}  # asked for every few seconds, by machines


class RequestLog:
    """A `Witness` that writes what it sees."""

    def __init__(self, settings: ServiceSettings) -> None:
        self._prompts = settings.log_prompts
        self._up: dict[Role, bool] = {}
        self.log = _logger(settings)

    def tell(self, message: str, **more: Any) -> None:
        """Write a line about the service itself."""
        self.log.info(message, **more)

    def begins(self, visit: ServiceRequest) -> None:
        pass

    def sees(self, visit: ServiceRequest, index: int, event: Event) -> None:
        log = self.log.bind(request_id=visit.id, choice=index)
        match event:
            case Started(messages=messages) if self._prompts:
                log.info("started", messages=[(one.role, one.content) for one in messages])
            case Degraded(role=role, cause=cause):
                log.warning("degraded", role=role, cause=cause)
            case Moved(role=role, url=url, to=to, cause=cause):
                log.warning("moved", role=role, url=url, to=to, cause=cause)
            case _:
                pass

    def solved(self, visit: ServiceRequest, index: int, solution: Solution) -> None:
        more = {"answer": solution.answer} if self._prompts else {}
        visit.notes["finish"] = solution.finish_reason
        self.log.debug(
            "solved",
            request_id=visit.id,
            choice=index,
            finish=solution.finish_reason,
            accept_rate=solution.ledger.accept_rate,
            share_large=round(solution.ledger.share_large, 3),
            kept=solution.ledger.small.kept + solution.ledger.large.kept,
            **more,
        )

    def failed(self, visit: ServiceRequest, exc: Exception) -> None:
        self.log.error("failed", request_id=visit.id, path=visit.path, exc_info=exc)

    def ends(self, visit: ServiceRequest) -> None:
        quiet = visit.path in QUIET and visit.status < 500
        refusal = visit.refusal
        told = {
            "status": visit.status,
            "seconds": round(visit.seconds, 4),
            "model": visit.model or None,
            "stream": visit.stream or None,
            "queued": round(visit.queued, 4) or None,
            "overhead": round(visit.overhead, 4) if visit.upstream is not None else None,
            "error": refusal.code or refusal.message if refusal else None,
            **visit.notes,
        }
        write = self.log.debug if quiet else self.log.warning if visit.status >= 500 else self.log.info
        shown = {key: value for key, value in told.items() if value is not None}
        write("request", request_id=visit.id, method=visit.method, path=visit.path, **shown)

    def looked(self, role: Role, up: bool) -> None:
        if self._up.get(role, True) != up:
            (self.log.info if up else self.log.warning)("upstream", role=role, up=up)
        self._up[role] = up


def _logger(settings: ServiceSettings) -> Any:
    level = logging.getLevelNamesMapping()[settings.log_level.upper()]
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    if settings.log_format == "json":
        told = ExceptionDictTransformer(show_locals=False)  # Keys and problems are among the variables.
        last: list[Any] = [structlog.processors.ExceptionRenderer(told), structlog.processors.JSONRenderer()]
    else:
        plain = structlog.dev.plain_traceback
        last = [structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=plain)]
    return structlog.wrap_logger(
        structlog.PrintLogger(sys.stderr),
        processors=[*shared, *last],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        cache_logger_on_first_use=True,
    )
