"""
Two observers of the service: the log, a line for each request and for what goes wrong, and the
metrics.

The metrics are in Prometheus' text format, in a registry of their own. Labels have few values,
whatever clients send.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, TextIO, cast

import structlog
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Info,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from structlog.tracebacks import ExceptionDictTransformer

from stepspec.orchestrator.errors import GuardedStream
from stepspec.orchestrator.events import (
    AnswerJudged,
    Called,
    Decided,
    Degraded,
    Event,
    FellBack,
    Moved,
)
from stepspec.orchestrator.ledger import Account
from stepspec.orchestrator.solution import Solution

from ..admission import Admission
from ..formats.requests import ROLES, Offer
from ..json_types import JsonObject
from ..records import (
    MODEL_PATHS,
    POLLED_PATHS,
    RequestFailed,
    RequestFinished,
    RunEvent,
    RunResult,
    ServiceEvent,
    ServiceRequest,
)
from ..settings import ServiceSettings

WARNINGS: Mapping[type[Event], str] = {
    Degraded: "degraded",
    FellBack: "verifier_failed",
    Moved: "moved",
}
"""What the log calls the events of a run that are warnings."""


class RequestLog:
    """An observer that writes the log, without problems and answers."""

    def __init__(self, settings: ServiceSettings) -> None:
        self.log = _logger(settings)

    def __call__(self, event: ServiceEvent) -> None:
        match event:
            case RunEvent(request, choice, _, Degraded() | FellBack() | Moved() as warning):
                name = WARNINGS[type(warning)]
                self.log.warning(name, request_id=request.id, choice=choice, **asdict(warning))
            case RunResult(request, choice, solution):
                request.log_fields["finish"] = solution.finish_reason
                self._solved(request, choice, solution)
            case RequestFailed(request, exception):
                self.log.error(
                    "failed",
                    request_id=request.id,
                    path=request.path,
                    exc_info=exception,
                )
            case RequestFinished(request):
                self._request(request)
            case _:
                pass

    def _solved(self, request: ServiceRequest, choice: int, solution: Solution) -> None:
        ledger = solution.ledger
        self.log.debug(
            "solved",
            request_id=request.id,
            choice=choice,
            finish=solution.finish_reason,
            accept_rate=ledger.accept_rate,
            share_large=round(ledger.share_large, 3),
            kept=ledger.small.kept + ledger.large.kept,
        )

    def _request(self, request: ServiceRequest) -> None:
        fields: JsonObject = {
            "status": request.status,
            "seconds": round(request.seconds, 4),
            "client": request.client,
            "model": request.model,
            "stream": request.stream,
            "queued": round(request.queued, 4),
            **request.log_fields,
        }
        if request.upstream_seconds is not None:
            fields["overhead"] = round(request.overhead, 4)
        if request.error is not None:
            fields["error"] = request.error.code or request.error.message
        write = self.log.info
        if request.status >= 500:
            write = self.log.warning
        elif request.path in POLLED_PATHS:
            write = self.log.debug
        known = {name: value for name, value in fields.items() if value}
        write("request", request_id=request.id, method=request.method, path=request.path, **known)


def _logger(settings: ServiceSettings) -> Any:
    level = logging.getLevelNamesMapping()[settings.log_level.upper()]
    stream = GuardedStream()
    processors: list[Any] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    if settings.log_format == "json":
        # keys and problems are among the local variables
        traceback = ExceptionDictTransformer(show_locals=False)
        processors += [
            structlog.processors.ExceptionRenderer(traceback),
            structlog.processors.JSONRenderer(),
        ]
    else:
        console = structlog.dev.ConsoleRenderer(
            colors=stream.isatty(),
            exception_formatter=structlog.dev.plain_traceback,
            # clients choose paths and users, and a terminal obeys the escape sequences in them
            repr_native_str=True,
        )
        processors.append(console)
    return structlog.wrap_logger(
        structlog.PrintLogger(cast("TextIO", stream)),
        processors=processors,
        wrapper_class=structlog.make_filtering_bound_logger(level),
        cache_logger_on_first_use=True,
    )


SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1000)
MILLISECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1)
RATIOS = (0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1)
BUCKETS: Mapping[str, Sequence[float]] = {
    "overhead_seconds": MILLISECONDS,
    "waste_ratio": RATIOS,
    "accept_ratio": RATIOS,
}
"""The buckets of a histogram by its name. The others have `SECONDS`."""
NAMESPACE = "stepspec"
"""The beginning of the name of every metric."""
COUNTERS: Mapping[str, Sequence[str]] = {
    "requests": ("Answered requests, by HTTP status.", "endpoint", "model", "status"),
    "refusals": ("Requests without an answer or with an incomplete one.", "endpoint", "code"),
    "client_requests": ("Answered requests of a named client.", "client", "status"),
    "runs": ("Finished runs, by finish reason.", "model", "reason"),
    "steps": ("Written steps, by fate.", "model", "author", "fate"),
    "tokens": ("Written tokens, by fate.", "model", "role", "fate"),
    "prompt_tokens": ("Prompt tokens sent to a server.", "model", "role", "cached"),
    "upstream_errors": ("Failed requests to a model.", "role", "verb"),
    "decisions": ("Decisions of auto: the method, or the large model.", "model", "choice"),
    "judged_answers": ("Answers that a verifier judged.", "model", "outcome"),
    "verifier_failures": ("Failures of the verifier, by fallback.", "stage", "fallback"),
}
"""The description of each counter by its name, then its labels."""
HISTOGRAMS: Mapping[str, Sequence[str]] = {
    "request_seconds": ("Seconds from request to end of answer.", "endpoint", "model"),
    "first_step_seconds": (
        "Seconds from a request to its first verified step.",
        "endpoint",
        "model",
    ),
    "overhead_seconds": (
        "Seconds in the service itself: no queue, no model.",
        "endpoint",
        "model",
    ),
    "queue_seconds": ("Seconds that a request waited for admission.",),
    "upstream_seconds": ("Seconds of requests to a model.", "role", "verb"),
    "waste_ratio": ("Discarded tokens over written ones, per run.", "model", "role"),
    "accept_ratio": ("Accepted drafts over judged ones, per run.", "model"),
}
"""The description of each histogram by its name, then its labels."""
GAUGES: Mapping[str, Sequence[str]] = {
    "upstream_up": ("1 if a server of the role is up, else 0.", "role"),
    "upstream_waiting": ("Requests to a model that wait for a slot of its endpoint.", "role"),
    "requests_running": ("Requests that are running.",),
    "requests_waiting": ("Requests that wait for admission.",),
    "tasks": ("Tasks of the event loop; without requests, a few.",),
}
"""The description of each gauge by its name, then its labels."""
OUTCOMES = {True: "accepted", False: "rejected", None: "unjudged"}
"""The label of a judged answer, by the verdict."""
NO_MODEL = "none"
"""The label of requests that name no model, or that were refused unread."""


class Metrics:
    """An observer that counts what a service with *admission* and *offer* does."""

    def __init__(self, admission: Admission, offer: Offer) -> None:
        self._admission = admission
        self._offer = offer
        disable_created_metrics()  # type: ignore[no-untyped-call]  # a sixth of all series
        self.registry = registry = CollectorRegistry()
        self._counters = {
            name: Counter(name, about, labels, NAMESPACE, registry=registry)
            for name, (about, *labels) in COUNTERS.items()
        }
        self._histograms = {
            name: Histogram(
                name,
                about,
                labels,
                NAMESPACE,
                registry=registry,
                buckets=BUCKETS.get(name, SECONDS),
            )
            for name, (about, *labels) in HISTOGRAMS.items()
        }
        self._gauges = {
            name: Gauge(name, about, labels, NAMESPACE, registry=registry)
            for name, (about, *labels) in GAUGES.items()
        }
        version = Info(NAMESPACE, "Version of the service.", registry=registry)
        version.info({"version": offer.version})

    def scrape(self) -> tuple[bytes, str]:
        """Return the metrics as text, and its content type."""
        self._gauges["requests_running"].set(self._admission.running)
        self._gauges["requests_waiting"].set(self._admission.waiting)
        self._gauges["tasks"].set(len(asyncio.all_tasks()))
        engine = self._offer.engine
        for role, number in engine.waiting.items():
            self._gauges["upstream_waiting"].labels(role).set(number)
        for endpoint in (engine.small, engine.large):
            self._gauges["upstream_up"].labels(endpoint.role).set(endpoint.usable)
        return generate_latest(self.registry), CONTENT_TYPE_LATEST

    def _count(self, name: str, *labels: str, by: float = 1) -> None:
        self._counters[name].labels(*labels).inc(by)

    def _measure(self, name: str, value: float, *labels: str) -> None:
        self._histograms[name].labels(*labels).observe(value)

    def __call__(self, event: ServiceEvent) -> None:
        match event:
            case RunEvent(request, _, _, run_event):
                self._run_event(request.model, run_event)
            case RunResult(request, _, solution):
                self._run_result(request.model, solution)
            case RequestFinished(request):
                self._request(request)
            case _:
                pass

    def _run_event(self, model: str, event: Event) -> None:
        match event:
            case Called(role=role, verb=verb):
                self._measure("upstream_seconds", event.seconds, role, verb)
                if event.fate == "failed":
                    self._count("upstream_errors", role, verb)
            case Decided(choice=choice):
                self._count("decisions", model, choice)
            case AnswerJudged(accepted=accepted):
                self._count("judged_answers", model, OUTCOMES[accepted])
            case FellBack(stage=stage, fallback=fallback):
                self._count("verifier_failures", stage, fallback)
            case _:
                pass

    def _run_result(self, model: str, solution: Solution) -> None:
        self._count("runs", model, solution.finish_reason)
        for step in solution.steps:
            self._count("steps", model, step.author, step.fate)
        ledger = solution.ledger
        for account in (ledger.small, ledger.large):
            if account.written:
                self._measure("waste_ratio", account.waste, model, account.role)
        # the baselines judge nothing
        if ledger.accept_rate is not None and model not in ROLES:
            self._measure("accept_ratio", ledger.accept_rate, model)

    def _request(self, request: ServiceRequest) -> None:
        endpoint = request.path if request.path in MODEL_PATHS else "other"
        model = request.model or NO_MODEL
        status = str(request.status)
        self._count("requests", endpoint, model, status)
        if request.client:
            self._count("client_requests", request.client, status)
        if request.error is not None:
            self._count("refusals", endpoint, request.error.label)
        for ledger in request.ledgers:
            for account in (ledger.small, ledger.large, ledger.critic):
                self._count_tokens(model, account)
        if endpoint == "other":
            return
        self._measure("request_seconds", request.seconds, endpoint, model)
        if request.first_step is not None:
            self._measure("first_step_seconds", request.first_step, endpoint, model)
        if request.admitted is not None:
            self._histograms["queue_seconds"].observe(request.queued)
        if request.upstream_seconds is not None:
            self._measure("overhead_seconds", request.overhead, endpoint, model)

    def _count_tokens(self, model: str, account: Account) -> None:
        role = account.role
        for fate in ("kept", "discarded", "judging"):
            self._count("tokens", model, role, fate, by=getattr(account, fate))
        uncached = max(0, account.prompt - account.cached)
        self._count("prompt_tokens", model, role, "true", by=account.cached)
        self._count("prompt_tokens", model, role, "false", by=uncached)
