"""
Two observers of the service: the log, a line for each request and for what goes wrong, and the
metrics.

The metrics are in Prometheus' text format, in a registry of their own. Labels have few values,
whatever clients send.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
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

from stepspec.orchestrator.chain import Party, Role
from stepspec.orchestrator.errors import GuardedStream
from stepspec.orchestrator.events import (
    AnswerJudged,
    Called,
    Decided,
    Degraded,
    Event,
    FellBack,
    Moved,
    Started,
)
from stepspec.orchestrator.ledger import Account
from stepspec.orchestrator.solution import Solution

from ..admission import Admission
from ..formats.requests import ROLES
from ..records import (
    MODEL_PATHS,
    POLLED_PATHS,
    HealthChecked,
    RequestFailed,
    RequestFinished,
    RunEvent,
    RunResult,
    ServiceEvent,
    ServiceRequest,
)
from ..settings import ServiceSettings


class RequestLog:
    """
    An observer that writes the log. Problems and answers appear in it only if `log_prompts` is set.
    """

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
                self.log.error(
                    "failed",
                    request_id=request.id,
                    path=request.path,
                    exc_info=exception,
                )
            case RequestFinished(request):
                self._request(request)
            case HealthChecked(role, up):
                write = self.log.info if up else self.log.warning
                if self._up.get(role, True) != up:
                    write("upstream", role=role, up=up)
                self._up[role] = up
            case _:
                pass

    def _run_event(self, request: ServiceRequest, choice: int, event: Event) -> None:
        log = self.log.bind(request_id=request.id, choice=choice)
        match event:
            case Started(messages=messages) if self._prompts:
                log.info(
                    "started", messages=[(message.role, message.content) for message in messages]
                )
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
        fields = {"answer": solution.answer} if self._prompts else {}
        self.log.debug(
            "solved",
            request_id=request.id,
            choice=choice,
            finish=solution.finish_reason,
            accept_rate=ledger.accept_rate,
            share_large=round(ledger.share_large, 3),
            kept=ledger.small.kept + ledger.large.kept,
            **fields,
        )

    def _request(self, request: ServiceRequest) -> None:
        error = request.error
        overhead = None
        if request.upstream_seconds is not None:
            overhead = round(request.overhead, 4)
        fields = {
            "status": request.status,
            "seconds": round(request.seconds, 4),
            "client": request.client or None,
            "model": request.model or None,
            "stream": request.stream or None,
            "queued": round(request.queued, 4) or None,
            "overhead": overhead,
            "error": error.code or error.message if error else None,
            **request.log_fields,
        }
        failed = request.status >= 500
        write = self.log.info
        if failed:
            write = self.log.warning
        elif request.path in POLLED_PATHS:
            write = self.log.debug
        known = {key: value for key, value in fields.items() if value is not None}
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
        plain = structlog.dev.plain_traceback
        console = structlog.dev.ConsoleRenderer(colors=stream.isatty(), exception_formatter=plain)
        processors += [_printable, console]
    return structlog.wrap_logger(
        structlog.PrintLogger(cast("TextIO", stream)),
        processors=processors,
        wrapper_class=structlog.make_filtering_bound_logger(level),
        cache_logger_on_first_use=True,
    )


def _printable(logger: Any, name: str, fields: Any) -> Any:
    """
    Return *fields* with escaped control characters.

    Clients choose paths and users, and a terminal obeys the escape sequences in them.
    """
    escaped = {
        name: value.encode("unicode_escape").decode()
        for name, value in fields.items()
        if isinstance(value, str) and not value.isprintable()
    }
    return {**fields, **escaped}


SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1000)
MILLISECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1)
RATIOS = (0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1)
OUTCOMES = {True: "accepted", False: "rejected", None: "unjudged"}
"""The label of a judged answer, by the verdict."""
NAMESPACE = "stepspec"
"""The beginning of the name of every metric."""
NO_MODEL = "none"
"""The label of requests that name no model, or that were refused unread."""


class Metrics:
    """
    An observer that counts; *waiting* returns the requests to models that wait for a slot, by role.
    """

    def __init__(
        self,
        admission: Admission,
        version: str,
        waiting: Callable[[], Mapping[Party, int]] = dict[Party, int],
    ) -> None:
        self._waiting = waiting
        disable_created_metrics()  # type: ignore[no-untyped-call]  # a sixth of all series
        self.registry = registry = CollectorRegistry()
        labels = ("endpoint", "model")
        counter = partial(Counter, namespace=NAMESPACE, registry=registry)
        gauge = partial(Gauge, namespace=NAMESPACE, registry=registry)
        histogram = partial(Histogram, namespace=NAMESPACE, registry=registry, buckets=SECONDS)
        self._requests = counter(
            "requests",
            "Answered requests, by HTTP status.",
            (*labels, "status"),
        )
        self._seconds = histogram(
            "request_seconds",
            "Seconds from request to end of answer.",
            labels,
        )
        self._first = histogram(
            "first_step_seconds",
            "Seconds from a request to its first verified step.",
            labels,
        )
        self._queued = histogram("queue_seconds", "Seconds that a request waited for admission.")
        self._overhead = histogram(
            "overhead_seconds",
            "Seconds in the service itself: no queue, no model.",
            labels,
            buckets=MILLISECONDS,
        )
        self._refused = counter(
            "refusals",
            "Requests without an answer or with an incomplete one.",
            ("endpoint", "code"),
        )
        self._add_run_metrics(counter, histogram)
        self._clients = counter(
            "client_requests",
            "Answered requests of a named client.",
            ("client", "status"),
        )
        self._client_tokens = counter(
            "client_large_tokens",
            "Tokens that the large model wrote, or read to judge, for a client.",
            ["client"],
        )
        self._up = gauge("upstream_up", "1 if a server of the role is up, else 0.", ["role"])
        gauge("requests_running", "Requests that are running.").set_function(
            lambda: admission.running
        )
        gauge("requests_waiting", "Requests that wait for admission.").set_function(
            lambda: admission.waiting
        )
        self._upstream_waiting = gauge(
            "upstream_waiting",
            "Requests to a model that wait for a slot of its endpoint.",
            ["role"],
        )
        self._tasks = gauge("tasks", "Tasks of the event loop; without requests, a few.")
        Info(NAMESPACE, "Version of the service.", registry=registry).info({"version": version})

    def _add_run_metrics(
        self,
        counter: Callable[..., Counter],
        histogram: Callable[..., Histogram],
    ) -> None:
        self._steps = counter("steps", "Written steps, by fate.", ("model", "author", "fate"))
        self._tokens = counter("tokens", "Written tokens, by fate.", ("model", "role", "fate"))
        self._prompt = counter(
            "prompt_tokens",
            "Prompt tokens sent to a server.",
            ("model", "role", "cached"),
        )
        self._waste = histogram(
            "waste_ratio",
            "Discarded tokens over written ones, per run.",
            ("model", "role"),
            buckets=RATIOS,
        )
        self._accepted = histogram(
            "accept_ratio",
            "Accepted drafts over judged ones, per run.",
            ["model"],
            buckets=RATIOS,
        )
        self._ended = counter("runs", "Finished runs, by finish reason.", ("model", "reason"))
        self._upstream = histogram(
            "upstream_seconds",
            "Seconds of requests to a model.",
            ("role", "verb"),
        )
        self._failed = counter("upstream_errors", "Failed requests to a model.", ("role", "verb"))
        self._decisions = counter(
            "decisions",
            "Decisions of auto: the method, or the large model.",
            ("model", "choice"),
        )
        self._answers = counter(
            "judged_answers",
            "Answers that a verifier judged.",
            ("model", "outcome"),
        )
        self._fallbacks = counter(
            "verifier_failures",
            "Failures of the verifier, by fallback.",
            ("stage", "fallback"),
        )

    def scrape(self) -> tuple[bytes, str]:
        """Return the metrics as text, and its content type."""
        with suppress(RuntimeError):  # outside of an event loop
            self._tasks.set(len(asyncio.all_tasks()))
        for role, number in self._waiting().items():
            self._upstream_waiting.labels(role).set(number)
        return generate_latest(self.registry), CONTENT_TYPE_LATEST

    def __call__(self, event: ServiceEvent) -> None:
        match event:
            case RunEvent(request, _, _, run_event):
                self._run_event(request, run_event)
            case RunResult(request, _, solution):
                self._run_result(request.model, solution)
            case RequestFinished(request):
                self._request(request)
            case HealthChecked(role, up):
                self._up.labels(role).set(up)
            case _:
                pass

    def _run_event(self, request: ServiceRequest, event: Event) -> None:
        match event:
            case Called():
                self._upstream.labels(event.role, event.verb).observe(event.seconds)
                if event.fate == "failed":
                    self._failed.labels(event.role, event.verb).inc()
            case Decided(choice=choice):
                self._decisions.labels(request.model, choice).inc()
            case AnswerJudged(accepted=accepted):
                self._answers.labels(request.model, OUTCOMES[accepted]).inc()
            case FellBack(stage=stage, fallback=fallback):
                self._fallbacks.labels(stage, fallback).inc()
            case _:
                pass

    def _run_result(self, model: str, solution: Solution) -> None:
        self._ended.labels(model, solution.finish_reason).inc()
        for step in solution.steps:
            self._steps.labels(model, step.author, step.fate).inc()
        ledger = solution.ledger
        for account in (ledger.small, ledger.large):
            if account.written:
                self._waste.labels(model, account.role).observe(account.waste)
        # the baselines judge nothing
        if ledger.accept_rate is not None and model not in ROLES:
            self._accepted.labels(model).observe(ledger.accept_rate)

    def _request(self, request: ServiceRequest) -> None:
        endpoint = request.path if request.path in MODEL_PATHS else "other"
        model = request.model or NO_MODEL
        self._requests.labels(endpoint, model, str(request.status)).inc()
        if request.client:
            self._clients.labels(request.client, str(request.status)).inc()
            self._client_tokens.labels(request.client).inc(request.large_tokens)
        for ledger in request.ledgers:
            for account in (ledger.small, ledger.large, ledger.critic):
                self._count_tokens(model, account)
        if request.error is not None:
            self._refused.labels(endpoint, request.error.label).inc()
        if endpoint == "other":
            return
        self._seconds.labels(endpoint, model).observe(request.seconds)
        if request.first_step is not None:
            self._first.labels(endpoint, model).observe(request.first_step)
        if request.admitted is not None:
            self._queued.observe(request.queued)
        if request.upstream_seconds is not None:
            self._overhead.labels(endpoint, model).observe(request.overhead)

    def _count_tokens(self, model: str, account: Account) -> None:
        for fate in ("kept", "discarded", "judging"):
            self._tokens.labels(model, account.role, fate).inc(getattr(account, fate))
        uncached = max(0, account.prompt - account.cached)
        for cached, tokens in (("true", account.cached), ("false", uncached)):
            self._prompt.labels(model, account.role, cached).inc(tokens)
