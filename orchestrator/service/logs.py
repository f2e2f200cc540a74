"""One structured line for every request, on standard error. No text of any problem, unless that is asked for."""

from __future__ import annotations

import logging
import sys
from typing import Any

import structlog
from structlog.tracebacks import ExceptionDictTransformer

from ..chain import Role
from ..events import Degraded, Event, Moved, Started
from ..solution import Solution
from .door import HEALTH
from .settings import ServiceSettings
from .visit import Visit

QUIET = HEALTH | {"/metrics"}  # asked for every few seconds, by machines


class Logs:
    """A `Witness` that writes what it sees."""

    def __init__(self, settings: ServiceSettings) -> None:
        self._prompts = settings.log_prompts
        self._up: dict[Role, bool] = {}
        self.log = _logger(settings)

    def tell(self, message: str, **more: Any) -> None:
        """Write a line about the service itself."""
        self.log.info(message, **more)

    def begins(self, visit: Visit) -> None:
        pass

    def sees(self, visit: Visit, index: int, event: Event) -> None:
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

    def solved(self, visit: Visit, index: int, solution: Solution) -> None:
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

    def failed(self, visit: Visit, exc: Exception) -> None:
        self.log.error("failed", request_id=visit.id, path=visit.path, exc_info=exc)

    def ends(self, visit: Visit) -> None:
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
