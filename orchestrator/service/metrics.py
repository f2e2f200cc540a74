"""Metrics in Prometheus' text format, in a registry of their own. Labels take few values, whatever clients send."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from ..chain import Role
from ..events import Adapted, Called, Event
from ..feedback.drift import Drift
from ..feedback.shadow import ShadowRecord
from ..solution import Solution
from ..stats import Acceptance
from .admission import Admission
from .interfaces import JudgeStatus
from .middleware import ServiceRequest

SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1000)
MILLISECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1)
RATIOS = (0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1)
NO_MODEL = "none"  # is what a request asks for that was not read, or that is not about a model
PATHS = frozenset({"/v1/chat/completions", "/v1/completions", "/v1/responses", "/live"})


class Metrics:
    """A `Witness` that counts. Methods that are *unjudged* accept everything, and have no accept ratio."""

    def __init__(
        self,
        gate: Admission,
        version: str,
        trust: Callable[[], JudgeStatus] = JudgeStatus,
        unjudged: Collection[str] = (),
        speculation: Callable[[], Mapping[str, Acceptance]] = dict[str, Acceptance],
    ) -> None:
        self._unjudged = unjudged
        self._trust, self._graded_before, self._shadows_before = trust, 0, ShadowRecord()
        self._speculation, self._speculated = speculation, dict[str, Acceptance]()
        self.registry = registry = CollectorRegistry()
        asked = ("endpoint", "model")

        def histogram(name: str, about: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
            return Histogram(f"stepspec_{name}", about, labels, buckets=buckets, registry=registry)

        def counter(name: str, about: str, *labels: str) -> Counter:
            return Counter(f"stepspec_{name}", about, labels, registry=registry)

        def gauge(name: str, about: str, *labels: str) -> Gauge:
            return Gauge(f"stepspec_{name}", about, labels, registry=registry)

        self._requests = counter("requests", "Requests that were answered, by HTTP status.", *asked, "status")
        self._seconds = histogram("request_seconds", "From a request to the end of its answer.", SECONDS, *asked)
        self._first = histogram(
            "first_step_seconds", "From a request to its first verified step.", SECONDS, "endpoint", "model"
        )
        self._queued = histogram("queue_seconds", "What a request waited for a place.", SECONDS)
        self._overhead = histogram("overhead_seconds", "The service's own part of a request.", MILLISECONDS, *asked)
        self._refused = counter("refusals", "Requests that got no answer, or only a part.", "endpoint", "code")
        self._steps = counter("steps", "Steps that were written, by what became of them.", "model", "author", "fate")
        self._tokens = counter("tokens", "Tokens by what became of them.", "model", "role", "fate")
        self._prompt = counter("prompt_tokens", "Prompt tokens sent to a server.", "model", "role", "cached")
        self._waste = histogram("waste_ratio", "Discarded tokens over written ones, per run.", RATIOS, "model", "role")
        self._accepted = histogram("accept_ratio", "Accepted drafts over judged ones, per run.", RATIOS, "model")
        self._ended = counter("runs", "Runs that came to an end, by why.", "model", "reason")
        self._upstream = histogram("upstream_seconds", "Requests to a served model.", SECONDS, "role", "verb")
        self._failed = counter("upstream_errors", "Requests to a served model that failed.", "role", "verb")
        self._depth = gauge("adapted_ahead", "The depth that runs are given, where it is adapted.", "model")
        self._value = gauge("adapted_value", "The value of the option that is adapted.", "model", "option")
        self._up = gauge("upstream_up", "Whether a server of the role is up.", "role")
        self._graded = counter("grades", "Grades that were compared with those of the calibration.", "model")
        self._moved = gauge("grade_drift", "Share of these grades in other bins than the calibration's.", "model")
        self._drifted = gauge("grade_drifted", "Whether that share is large, and no chance.", "model")
        self._shadows = counter("shadows", "Accepted steps that were to be checked once more, by outcome.", "outcome")
        self._own_disputed = counter("shadow_own_disputed", "Own steps of the large model that its check disputed.")
        self._shadow_tokens = counter("shadow_tokens", "Tokens that shadows read and wrote.", "verb")
        self._passes = counter("speculation_passes", "Passes of a role's servers that verified drafted tokens.", "role")
        self._drafted = counter("speculation_drafted_tokens", "Tokens that a role's servers drafted.", "role")
        self._accepted_tokens = counter("speculation_accepted_tokens", "Those of them that were accepted.", "role")
        running = gauge("requests_running", "Requests that are being worked on.")
        waiting = gauge("requests_waiting", "Requests that wait for a place.")
        running.set_function(lambda: gate.running)
        waiting.set_function(lambda: gate.waiting)
        Info("stepspec", "The version.", registry=registry).info({"version": version})

    def scrape(self) -> tuple[bytes, str]:
        """The metrics as text, and its content type."""
        trust = self._trust()
        if trust.promise is not None and trust.drift is not None:
            self._note_drift(trust.promise.policy, trust.drift)
        if trust.shadows is not None:
            self._count_shadows(trust.shadows)
        for role, counted in self._speculation().items():
            self._count_speculation(role, counted)
        return generate_latest(self.registry), CONTENT_TYPE_LATEST

    def _count_speculation(self, role: str, counted: Acceptance) -> None:
        grown = counted - self._speculated.get(role, Acceptance())
        self._speculated[role] = counted
        self._passes.labels(role).inc(grown.drafts)
        self._drafted.labels(role).inc(grown.drafted)
        self._accepted_tokens.labels(role).inc(grown.accepted)

    def _note_drift(self, model: str, drift: Drift) -> None:
        self._graded.labels(model).inc(drift.live.n - self._graded_before)
        self._graded_before = drift.live.n
        self._moved.labels(model).set(drift.moved)
        self._drifted.labels(model).set(drift.drifted)

    def _count_shadows(self, record: ShadowRecord) -> None:
        before, self._shadows_before = self._shadows_before, record
        for outcome in ("agreed", "disputed", "failed", "skipped"):
            self._shadows.labels(outcome).inc(getattr(record, outcome) - getattr(before, outcome))
        self._own_disputed.inc(record.own_disputed - before.own_disputed)
        for verb in ("read", "written"):
            self._shadow_tokens.labels(verb).inc(getattr(record, verb) - getattr(before, verb))

    def begins(self, visit: ServiceRequest) -> None:
        pass

    def sees(self, visit: ServiceRequest, index: int, event: Event) -> None:
        match event:
            case Called():
                self._upstream.labels(event.role, event.verb).observe(event.seconds)
                if event.fate == "failed":
                    self._failed.labels(event.role, event.verb).inc()
            case Adapted(option, value, ahead):
                self._depth.labels(visit.model).set(ahead)
                if value is not None:
                    self._value.labels(visit.model, option).set(value)
            case _:
                pass

    def solved(self, visit: ServiceRequest, index: int, solution: Solution) -> None:
        model = visit.model
        self._ended.labels(model, solution.finish_reason).inc()
        for step in solution.steps:
            self._steps.labels(model, step.author, step.fate).inc()
        for account in (solution.ledger.small, solution.ledger.large, solution.ledger.critic):
            for fate, tokens in (
                ("kept", account.kept),
                ("discarded", account.discarded),
                ("judging", account.judging),
            ):
                self._tokens.labels(model, account.role, fate).inc(tokens)
            self._prompt.labels(model, account.role, "true").inc(account.cached)
            self._prompt.labels(model, account.role, "false").inc(account.prompt - account.cached)
            if account.written:
                self._waste.labels(model, account.role).observe(account.waste)
        if solution.ledger.accept_rate is not None and model not in self._unjudged:
            self._accepted.labels(model).observe(solution.ledger.accept_rate)

    def failed(self, visit: ServiceRequest, exc: Exception) -> None:
        pass

    def ends(self, visit: ServiceRequest) -> None:
        endpoint, model = visit.path if visit.path in PATHS else "other", visit.model or NO_MODEL
        self._requests.labels(endpoint, model, str(visit.status)).inc()
        if visit.refusal is not None:
            self._refused.labels(endpoint, visit.refusal.code or str(visit.refusal.status)).inc()
        if endpoint == "other":
            return
        self._seconds.labels(endpoint, model).observe(visit.seconds)
        if visit.first_step is not None:
            self._first.labels(endpoint, model).observe(visit.first_step)
        if visit.begun is not None:
            self._queued.observe(visit.queued)
        if visit.upstream is not None:
            self._overhead.labels(endpoint, model).observe(visit.overhead)

    def looked(self, role: Role, up: bool) -> None:
        self._up.labels(role).set(up)
