"""The service for its operators: metrics, spans, logs."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from typing import Any

import orjson
import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from prometheus_client.parser import text_string_to_metric_families

from stepspec import __version__
from stepspec.cli.program import logging_to_stderr
from stepspec.orchestrator.errors import EndpointUnavailable
from stepspec.orchestrator.events import Called, Drafted, Started
from stepspec.service.records import (
    RequestArrived,
    RequestFailed,
    RequestFinished,
    RunEvent,
    ServiceEvent,
    ServiceObserver,
    ServiceRequest,
)
from stepspec.service.watch import tracing
from stepspec.service.watch.observers import RequestLog

from ...stand_in import Refuse
from ..served import SCRIPT, Behind, FullDisk, Noting, Served, chosen, put_behind, serving, until

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


async def metrics(served: Served) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    text = (await served.get("/metrics")).body.decode()
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def found(samples: dict[Any, float], name: str, **labels: str) -> float:
    return samples[(f"stepspec_{name}", frozenset(labels.items()))]


async def test_metrics_count_requests_runs_steps_and_tokens() -> None:
    async with serving() as served:
        for stream in (False, True):
            await served.chat(stream=stream)
        await served.chat(method="nobody" * 9)
        await served.chat(tools=[{}])
        served.large.faults.extend([Refuse(500)] * 99)
        await served.chat(method="large")
        samples = await metrics(served)
    chat = {"endpoint": "/v1/chat/completions"}
    assert found(samples, "requests_total", **chat, model="specreason", status="200") == 2
    assert found(samples, "requests_total", **chat, model="specreason", status="400") == 1
    assert found(samples, "requests_total", **chat, model="unknown", status="404") == 1
    assert found(samples, "requests_total", **chat, model="large", status="503") == 1
    assert found(samples, "refusals_total", **chat, code="model_not_found") == 1
    assert found(samples, "steps_total", model="specreason", author="small", fate="kept") == 6
    assert found(samples, "tokens_total", model="specreason", role="small", fate="kept") == 16
    assert found(samples, "tokens_total", model="specreason", role="large", fate="kept") == 8
    assert found(samples, "tokens_total", model="specreason", role="large", fate="judging") > 0
    assert found(samples, "runs_total", model="specreason", reason="stop") == 2
    for name in ("request_seconds", "first_step_seconds", "overhead_seconds"):
        assert found(samples, f"{name}_count", **chat, model="specreason") == (
            3 if name == "request_seconds" else 2
        )
    assert found(samples, "waste_ratio_count", model="specreason", role="small") == 2
    assert found(samples, "accept_ratio_sum", model="specreason") == 2
    assert found(samples, "upstream_errors_total", role="large", verb="write") >= 1
    assert found(samples, "upstream_seconds_count", role="small", verb="write") >= 2
    assert found(samples, "queue_seconds_count") == 3
    assert (found(samples, "requests_running"), found(samples, "requests_waiting")) == (0, 0)
    assert (
        found(samples, "upstream_up", role="small"),
        found(samples, "upstream_up", role="large"),
    ) == (1, 0)  # the large model is down until a probe succeeds
    assert found(samples, "info", version=__version__) == 1


async def test_a_model_is_up_while_one_of_its_servers_is() -> None:
    async with serving(replicas=[Noting(SCRIPT, digits={"9": -0.1}, names=("huge",))]) as served:
        large: Any = served.service.context.offer.engine.large
        told = list[bool]()
        text = ""
        for replica in large.replicas:
            replica.open(EndpointUnavailable("it is gone"))
            text = served.service.metrics.scrape()[0].decode()
            told.append('stepspec_upstream_up{role="large"} 1.0' in text)
        assert told == [True, False]
        assert 'stepspec_upstream_up{role="small"} 1.0' in text


async def test_a_request_refused_before_its_body_has_no_model() -> None:
    async with serving(chosen(keys=("k",))) as served:
        await served.chat()
        await served.get("/v1/models", authorization="Bearer k")
        samples = await metrics(served)
    chat = {"endpoint": "/v1/chat/completions", "model": "none"}
    assert found(samples, "requests_total", **chat, status="401") == 1
    assert found(samples, "request_seconds_count", **chat) == 1
    assert found(samples, "requests_total", endpoint="other", model="none", status="200") == 1


async def test_decisions_are_counted_for_the_model_auto_and_for_no_method() -> None:
    async with serving(auto=None) as served:
        for method in ("auto", "specreason", "large"):
            assert (await served.chat(method=method)).status == 200
        samples = await metrics(served)
    assert found(samples, "decisions_total", model="specreason", choice="large") >= 1
    assert sum(name == "stepspec_decisions_total" for name, _ in samples) == 1


async def test_a_run_without_verdicts_has_no_accept_ratio() -> None:
    async with serving() as served:
        for method in ("large", "small"):
            assert (await served.chat(method=method)).status == 200
        samples = await metrics(served)
    assert found(samples, "runs_total", model="large", reason="stop") == 1
    assert not [name for name, _ in samples if name.startswith("stepspec_accept_ratio")]


async def test_labels_do_not_contain_values_of_clients() -> None:
    async with serving() as served:
        for number in range(5):
            await served.get(f"/nothing/{number}")
            await served.chat(method=f"model-{number}")
        samples = await metrics(served)
    named = [dict(labels) for name, labels in samples if name == "stepspec_requests_total"]
    assert {labels["endpoint"] for labels in named} == {"other", "/v1/chat/completions"}
    assert {labels["model"] for labels in named} == {"none", "unknown"}


class Tree:
    """Spans by what they are below of."""

    def __init__(self, finished: Iterable[ReadableSpan]) -> None:
        self.spans = list(finished)

    def below(self, above: ReadableSpan, name: str = "") -> list[ReadableSpan]:
        assert above.context is not None
        found = [
            span
            for span in self.spans
            if span.parent and span.parent.span_id == above.context.span_id
        ]
        return [span for span in found if span.name.startswith(name)]

    @property
    def request(self) -> ReadableSpan:
        (request,) = [span for span in self.spans if span.kind is SpanKind.SERVER]
        return request

    @property
    def clients(self) -> list[ReadableSpan]:
        return [span for span in self.spans if span.kind is SpanKind.CLIENT]


def about(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


@asynccontextmanager
async def traced_service(
    *before: ServiceObserver, **options: Any
) -> AsyncGenerator[tuple[Served, list[ReadableSpan]]]:
    """
    Serve with spans, which are there after the block. Observers *before* see every event before the
    tracing does.
    """
    exporter = InMemorySpanExporter()
    finished = list[ReadableSpan]()
    tracer = tracing.Tracing(tracing.connect("0", exporter))
    async with serving(observers=[*before, tracer], **options) as served, tracer.flushed():
        yield served, finished
        await until(lambda: not served.service.context.admission.running)
    finished.extend(exporter.get_finished_spans())


async def traced(*before: ServiceObserver, **fields: Any) -> tuple[Tree, Served]:
    async with traced_service(*before) as (served, finished):
        await served.chat(headers={"traceparent": PARENT}, user="ann", **fields)
        await served.get("/health")
    return Tree(finished), served


async def test_every_request_and_every_upstream_request_is_a_span() -> None:
    tree, served = await traced()
    request = tree.request
    assert request.context is not None
    assert request.parent is not None
    assert (f"{request.context.trace_id:032x}", f"{request.parent.span_id:016x}") == tuple(
        PARENT.split("-")[1:3]
    )
    assert request.name == "chat specreason"
    told = {"gen_ai.operation.name": "chat", "http.response.status_code": 200, "user.id": "ann"}
    assert about(request).items() >= told.items()
    assert len(tree.clients) == len(
        [head for server in (served.small, served.large) for head in server.heads]
    )
    for span in tree.clients:
        attributes = about(span)
        assert attributes["gen_ai.provider.name"] == "vllm"
        roles = {"small": "tiny", "large": "huge"}
        assert attributes["gen_ai.request.model"] == roles[attributes["stepspec.role"]]
        assert attributes["stepspec.verb"] in ("write", "ask")
        assert attributes["server.address"] == "127.0.0.1"
        assert span.name == f"text_completion {attributes['gen_ai.request.model']}"


async def test_a_request_to_a_model_says_its_choice_its_purpose_and_its_step() -> None:
    tree, _ = await traced(n=2, temperature=1)
    assert tree.below(tree.request) == tree.clients
    assert (
        about(tree.request)["stepspec.finish_reason"],
        about(tree.request)["stepspec.accept_rate"],
    ) == ("stop", 1)
    for choice in (0, 1):
        mine = [about(span) for span in tree.clients if about(span)["stepspec.choice"] == choice]
        made = sorted(
            (one["stepspec.purpose"], one["stepspec.step"], one["stepspec.verb"]) for one in mine
        )
        # A model that samples makes a request for every draft.
        drafts = [("draft", step, "write") for step in range(3)]
        assert made == [
            ("answer", 3, "write"),
            *drafts,
            *[("verify", step, "ask") for step in range(3)],
        ]


async def test_a_run_that_was_left_has_its_spans_too() -> None:
    async with traced_service() as (served, finished):
        served.small.gate = asyncio.Semaphore(4)
        asking = asyncio.create_task(served.chat())
        await until(lambda: any(isinstance(event, Drafted) for event in served.recorded.events))
        asking.cancel()
        await until(lambda: served.recorded.requests)
    tree = Tree(finished)
    assert "stepspec.finish_reason" not in about(tree.request)
    assert (
        about(tree.below(tree.request, "text_completion tiny")[0])["stepspec.fate"] == "cancelled"
    )


async def test_a_failed_request_is_a_failed_span() -> None:
    tree, _ = await traced(method="nobody")
    (request,) = tree.spans
    assert about(request)["error.type"] == "model_not_found"
    assert request.status.status_code is StatusCode.UNSET
    async with traced_service() as (served, finished):
        served.large.faults.extend([Refuse(500)] * 9)
        await served.chat(method="large")
    (call,) = Tree(finished).clients
    assert (about(call)["error.type"], call.status.status_code) == ("failed", StatusCode.ERROR)


async def test_models_are_called_as_they_are_served_the_critic_too() -> None:
    exporter = InMemorySpanExporter()
    tracer = tracing.Tracing(tracing.connect("0", exporter))
    request = ServiceRequest("r", "POST", "/v1/chat/completions", {}, model="reward")
    models = (("small", "middle"), ("critic", "prm"))
    async with tracer.flushed():
        tracer(RequestArrived(request))
        for event in (
            Started((), "reward", models),
            Called("critic", "rate", "done", 0.0, 0.1),
            Called("small", "score", "done", 0.0, 0.1),
        ):
            tracer(RunEvent(request, 0, 0.0, event))
        tracer(RequestFinished(request))
    names = {span.name for span in Tree(exporter.get_finished_spans()).clients}
    assert names == {"text_completion prm", "text_completion middle"}


async def test_other_routes_have_names_of_their_own() -> None:
    async with traced_service() as (served, finished):
        await served.post("/v1/responses", {"model": "auto", "input": "x"})
        await served.post("/v1/completions", {"model": "auto"})
    named = {
        (span.name, about(span)["gen_ai.operation.name"])
        for span in finished
        if span.kind is SpanKind.SERVER
    }
    assert named == {("chat specreason", "chat"), ("text_completion specreason", "text_completion")}


async def test_a_forwarded_request_has_one_span_and_the_server_gets_its_context() -> None:
    behind = Behind()
    async with traced_service() as (served, finished):
        runner = await put_behind(served, behind)
        await served.post("/v1/completions", {"model": "huge", "prompt": "x"})
        behind.status = 429
        await served.chat(method="huge")
        await runner.cleanup()
        await served.chat(method="huge")
    assert {span.kind for span in finished} == {SpanKind.SERVER}
    assert [span.name for span in finished] == [
        "text_completion raw:large",
        *["chat raw:large"] * 2,
    ]
    attributes = [about(span) for span in finished]
    assert [one["http.response.status_code"] for one in attributes] == [200, 429, 503]
    assert [one.get("error.type") for one in attributes] == [None, None, "upstream_unavailable"]
    contexts = [span.context for span in finished[:2] if span.context]
    assert [head["traceparent"].split("-")[1:3] for _, head, _ in behind.got] == [
        [f"{context.trace_id:032x}", f"{context.span_id:016x}"] for context in contexts
    ]


async def test_every_request_has_a_log_line_without_the_prompt(
    capsys: pytest.CaptureFixture[str],
) -> None:
    settings = chosen(log_format="json", log_level="debug")
    async with serving(settings, observers=[RequestLog(settings)]) as served:
        await served.chat(headers={"x_request_id": "r-1"}, user="ann")
        await served.chat(method="nobody", headers={"x_request_id": "r-2"})
    printed = capsys.readouterr().err
    lines = [orjson.loads(line) for line in printed.splitlines() if line.startswith("{")]
    by_id = {line["request_id"]: line for line in lines if line["event"] == "request"}
    assert (by_id["r-1"]["status"], by_id["r-1"]["model"], by_id["r-1"]["user"]) == (
        200,
        "specreason",
        "ann",
    )
    assert (by_id["r-1"]["finish"], by_id["r-1"]["level"]) == ("stop", "info")
    assert (by_id["r-2"]["status"], by_id["r-2"]["error"]) == (404, "model_not_found")
    assert "What is 1 + 1?" not in printed
    assert ("So one." in printed) is False


def test_a_path_with_the_escape_sequences_of_a_terminal_is_logged_as_text(
    capsys: pytest.CaptureFixture[str],
) -> None:
    RequestLog(chosen(log_format="console"))(
        RequestFailed(ServiceRequest("r", "GET", "/\x1b[31mX", {}), ValueError())
    )
    printed = capsys.readouterr().err
    assert "/\\x1b[31mX" in printed
    assert "\x1b" not in printed


@pytest.mark.parametrize("form", ["json", "console"])
def test_a_failure_is_logged_without_the_prompt(
    form: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The variables of the functions that failed have the key and the problem in them."""
    request = ServiceRequest(
        "r-1", "POST", "/v1/chat/completions", {"authorization": "Bearer sesame"}
    )

    def fail(problem: str) -> None:
        raise ValueError(f"nothing about {len(problem)} characters")

    try:
        fail("What is " + "1 + " * 3)
    except ValueError as exc:
        RequestLog(chosen(log_format=form))(RequestFailed(request, exc))
    printed = capsys.readouterr().err
    assert "nothing about 20 characters" in printed
    assert "in fail" in printed or '"name": "fail"' in printed
    assert "sesame" not in printed
    assert "1 + 1 + 1 + " not in printed


@pytest.mark.parametrize("form", ["json", "console"])
@pytest.mark.parametrize(
    "exc", [OSError(28, "No space left"), BrokenPipeError(), ValueError("closed"), None]
)
async def test_a_log_that_cannot_be_written_harms_no_request(
    form: str, exc: Exception | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = chosen(log_format=form, log_level="debug")
    monkeypatch.setattr(sys, "stderr", FullDisk(exc) if exc else None)
    async with serving(settings, observers=[RequestLog(settings)]) as served:
        with logging_to_stderr():
            logging.getLogger("stepspec.requests").warning("as the command line prints it")
        statuses = [(await served.chat(stream=stream)).status for stream in (False, True)]
        statuses.append((await served.chat(method="nobody")).status)
        monkeypatch.undo()
    assert statuses == [200, 200, 404]
    assert served.recorded.failures == []


async def test_an_observer_that_fails_is_logged_and_harms_no_request(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def failing(event: ServiceEvent) -> None:
        raise ArithmeticError(type(event).__name__)

    async with serving(observers=[failing]) as served:
        assert (await served.chat()).status == 200
        assert (await served.chat(stream=True)).lines[-1] == "data: [DONE]"
        assert (await served.get("/health/readiness")).status == 200
        samples = await metrics(served)
    chat = {"endpoint": "/v1/chat/completions"}
    assert found(samples, "requests_total", **chat, model="specreason", status="200") == 2
    for kind in ("RequestArrived", "RunEvent", "RunResult", "RequestFinished"):
        assert f"an observer failed at {kind}" in caplog.text


@pytest.mark.parametrize(
    ("variables", "name", "version"),
    [
        ({}, "stepspec", "7"),
        ({"OTEL_SERVICE_NAME": "mine"}, "mine", "7"),
        ({"OTEL_SERVICE_NAME": ""}, "stepspec", "7"),
        ({"OTEL_RESOURCE_ATTRIBUTES": "service.name=mine,service.version=8"}, "mine", "8"),
        (
            {"OTEL_SERVICE_NAME": "one", "OTEL_RESOURCE_ATTRIBUTES": "service.name=two,team=x"},
            "one",
            "7",
        ),
    ],
)
def test_the_variables_name_the_service_of_spans(
    variables: dict[str, str], name: str, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)
    provider = tracing.connect("7", InMemorySpanExporter())
    about = provider.resource.attributes
    provider.shutdown()
    assert (about["service.name"], about["service.version"]) == (name, version)
    assert about.get("team") == ("x" if "team" in str(variables) else None)
