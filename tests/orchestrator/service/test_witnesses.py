"""What the service tells whoever runs it: metrics, spans, logs."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from prometheus_client.parser import text_string_to_metric_families

from stepspec.orchestrator.service import spans
from stepspec.orchestrator.service.logs import Logs
from stepspec.orchestrator.service.visit import Visit

from ..endpoints.server import Refuse
from .served import TURN, Served, chosen, serving

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


async def test_metrics_count_what_happened() -> None:
    async with serving() as served:
        for stream in (False, True):
            await served.chat(stream=stream)
        await served.chat(method="nobody" * 9)
        await served.chat(tools=[{}])
        served.large.faults.extend([Refuse(500)] * 99)
        await served.chat(method="large")
        told = await metrics(served)
    chat = {"endpoint": "/v1/chat/completions"}
    assert found(told, "requests_total", **chat, model="specreason", status="200") == 2
    assert found(told, "requests_total", **chat, model="specreason", status="400") == 1
    assert found(told, "requests_total", **chat, model="unknown", status="404") == 1
    assert found(told, "requests_total", **chat, model="large", status="503") == 1
    assert found(told, "refusals_total", **chat, code="model_not_found") == 1
    assert found(told, "steps_total", model="specreason", author="small", fate="kept") == 6
    assert found(told, "tokens_total", model="specreason", role="small", fate="kept") == 16
    assert found(told, "tokens_total", model="specreason", role="large", fate="kept") == 8
    assert found(told, "tokens_total", model="specreason", role="large", fate="judging") > 0
    assert found(told, "runs_total", model="specreason", reason="stop") == 2
    for name in ("request_seconds", "first_step_seconds", "overhead_seconds"):
        assert found(told, f"{name}_count", **chat, model="specreason") == (3 if name == "request_seconds" else 2)
    assert found(told, "waste_ratio_count", model="specreason", role="small") == 2
    assert found(told, "accept_ratio_sum", model="specreason") == 2
    assert found(told, "upstream_errors_total", role="large", verb="write") >= 1
    assert found(told, "upstream_seconds_count", role="small", verb="write") >= 2
    assert found(told, "queue_seconds_count") == 3
    assert (found(told, "requests_running"), found(told, "requests_waiting")) == (0, 0)
    assert (found(told, "upstream_up", role="small"), found(told, "upstream_up", role="large")) == (1, 1)
    assert found(told, "info", version="0.1.0") == 1


async def test_what_a_run_is_given_is_told_where_it_is_adapted() -> None:
    async with serving(adapt=0.1) as served:
        for method in ("specreason", "large"):
            assert (await served.chat(method=method)).status == 200
        told = await metrics(served)
    assert found(told, "adapted_value", model="specreason", option="threshold") == 7
    assert found(told, "adapted_ahead", model="specreason") == 2
    assert sum(name.startswith("stepspec_adapted") for name, _ in told) == 2


async def test_what_judges_nothing_has_no_accept_ratio() -> None:
    async with serving() as served:
        for method in ("large", "small"):
            assert (await served.chat(method=method)).status == 200
        told = await metrics(served)
    assert found(told, "runs_total", model="large", reason="stop") == 1
    assert not [name for name, _ in told if name.startswith("stepspec_accept_ratio")]


async def test_labels_do_not_follow_what_clients_make_up() -> None:
    async with serving() as served:
        for number in range(5):
            await served.get(f"/nothing/{number}")
            await served.chat(method=f"model-{number}")
        told = await metrics(served)
    assert {dict(labels)["endpoint"] for name, labels in told if name == "stepspec_requests_total"} == {
        "other",
        "/v1/chat/completions",
    }
    assert {dict(labels)["model"] for name, labels in told if name == "stepspec_requests_total"} == {"", "unknown"}


async def traced(**asked: Any) -> tuple[list[ReadableSpan], Served]:
    exporter = InMemorySpanExporter()
    provider = spans.connect("0", exporter)
    witness = spans.Spans(provider, {"small": "tiny", "large": "huge"})
    async with serving(witnesses=[witness]) as served, witness.flushed():
        await served.chat(headers={"traceparent": PARENT}, user="ann", **asked)
        await served.get("/health")
    return list(exporter.get_finished_spans()), served


async def test_a_request_is_a_span_and_so_is_every_request_below_it() -> None:
    finished, served = await traced()
    (request,) = [span for span in finished if span.kind is SpanKind.SERVER]
    below = [span for span in finished if span.kind is SpanKind.CLIENT]
    assert request.context is not None
    assert request.parent is not None
    assert (f"{request.context.trace_id:032x}", f"{request.parent.span_id:016x}") == tuple(PARENT.split("-")[1:3])
    assert request.name == "chat specreason"
    told = dict(request.attributes or {})
    assert (told["gen_ai.operation.name"], told["http.response.status_code"], told["user.id"]) == ("chat", 200, "ann")
    assert len(below) == len([head for server in (served.small, served.large) for head in server.heads])
    for span in below:
        assert span.parent is not None
        assert span.parent.span_id == request.context.span_id
        assert span.start_time is not None
        assert span.end_time is not None
        assert request.start_time is not None
        assert request.start_time <= span.start_time <= span.end_time
        about = dict(span.attributes or {})
        assert about["gen_ai.provider.name"] == "vllm"
        assert (about["stepspec.role"], about["gen_ai.request.model"]) in {("small", "tiny"), ("large", "huge")}
        assert about["stepspec.verb"] in ("write", "ask")
        assert about["server.address"] == "127.0.0.1"
        assert span.name == f"text_completion {about['gen_ai.request.model']}"
    carried = {head["traceparent"] for server in (served.small, served.large) for head in server.heads}
    assert carried == {f"00-{request.context.trace_id:032x}-{request.context.span_id:016x}-01"}


async def test_spans_tell_no_text() -> None:
    finished, _ = await traced()
    assert TURN["content"] not in str([(span.attributes, span.events) for span in finished])


async def test_a_failed_request_is_a_failed_span() -> None:
    finished, _ = await traced(method="nobody")
    (request,) = finished
    assert dict(request.attributes or {})["error.type"] == "model_not_found"
    assert request.status.status_code is StatusCode.UNSET


def test_where_spans_go_is_for_the_environment_to_say(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in spans.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    assert not spans.wanted()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://localhost:4318")
    assert spans.wanted()


@pytest.mark.parametrize("prompts", [False, True])
async def test_a_log_line_for_every_request_and_prompts_only_if_asked_for(
    prompts: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = chosen(log_format="json", log_level="debug", log_prompts=prompts)
    async with serving(settings, witnesses=[Logs(settings)]) as served:
        await served.chat(headers={"x_request_id": "r-1"}, user="ann")
        await served.chat(method="nobody", headers={"x_request_id": "r-2"})
    printed = capsys.readouterr().err
    lines = [orjson.loads(line) for line in printed.splitlines() if line.startswith("{")]
    asked = {line["request_id"]: line for line in lines if line["event"] == "request"}
    assert (asked["r-1"]["status"], asked["r-1"]["model"], asked["r-1"]["user"]) == (200, "specreason", "ann")
    assert (asked["r-1"]["finish"], asked["r-1"]["level"]) == ("stop", "info")
    assert (asked["r-2"]["status"], asked["r-2"]["error"]) == (404, "model_not_found")
    assert ("What is 1 + 1?" in printed) is prompts
    assert ("So one." in printed) is False


@pytest.mark.parametrize("form", ["json", "console"])
def test_a_failure_is_logged_without_what_was_asked(form: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The variables of the functions that failed have the key and the problem in them."""
    visit = Visit("r-1", "POST", "/v1/chat/completions", {"authorization": "Bearer sesame"})

    def fail(problem: str) -> None:
        raise ValueError(f"nothing about {len(problem)} characters")

    try:
        fail("What is " + "1 + " * 3)
    except ValueError as exc:
        Logs(chosen(log_format=form)).failed(visit, exc)
    printed = capsys.readouterr().err
    assert "nothing about 20 characters" in printed
    assert "in fail" in printed or '"name": "fail"' in printed
    assert "sesame" not in printed
    assert "1 + 1 + 1 + " not in printed
