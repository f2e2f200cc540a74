"""Spans as a collector gets them, over OTLP/HTTP, from the service as its users run it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from stepspec import __version__

from ...program import Program, serve
from ..served import TURN, Noting, until
from .test_observers import PARENT

SCRIPT = ("So", " one", ".\n\n", "Done", "</think>", "\n\n", "It is ", "\\boxed{2}", ".")
TRACE, CLIENT = PARENT.split("-")[1:3]
LONG = 100  # seconds that the SDK goes on trying, left alone
SOON = 30.0  # seconds


@dataclass
class Collector:
    """Takes what is exported; a *silent* one takes it, and says nothing."""

    silent: bool = False
    got: list[ExportTraceServiceRequest] = field(default_factory=list[ExportTraceServiceRequest])
    requested: asyncio.Event = field(default_factory=asyncio.Event)

    async def take(self, request: web.Request) -> web.Response:
        assert request.content_type == "application/x-protobuf"
        self.got.append(ExportTraceServiceRequest.FromString(await request.read()))
        self.requested.set()
        if self.silent:
            await asyncio.Event().wait()
        return web.Response(content_type="application/x-protobuf")

    @property
    def spans(self) -> list[Span]:
        groups = [each for request in self.got for each in request.resource_spans]
        return [span for group in groups for scope in group.scope_spans for span in scope.spans]

    @property
    def resources(self) -> list[dict[str, Any]]:
        return [
            attributes_of(each.resource.attributes)
            for request in self.got
            for each in request.resource_spans
        ]

    @asynccontextmanager
    async def listening(self) -> AsyncGenerator[str]:
        """Listen on a free port; yield the address that exporters are given."""
        app = web.Application()
        app.router.add_post("/v1/traces", self.take)
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.0)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        try:
            yield f"http://127.0.0.1:{runner.addresses[0][1]}"
        finally:
            await runner.cleanup()


def attributes_of(attributes: Any) -> dict[str, Any]:
    """Attributes as values."""
    pairs: list[KeyValue] = list(attributes)
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: AnyValue) -> Any:
    return getattr(value, str(value.WhichOneof("value")))


@dataclass
class Running:
    """A service that is a program of its own, and the two servers behind it."""

    program: Program
    servers: tuple[Noting, Noting]

    async def chat(self) -> None:
        body = {
            "model": "auto",
            "messages": [TURN],
            "user": "ann",
            "stepspec": {"ahead": 0, "auto": False, "ending": "small", "answer": "large"},
        }
        async with (
            aiohttp.ClientSession(headers={"traceparent": PARENT}) as http,
            http.post(f"{self.program.base}/v1/chat/completions", json=body) as reply,
        ):
            assert reply.status == 200, await reply.text()
            assert (await reply.json())["stepspec"]["answer"] == "2"


@asynccontextmanager
async def exporting(to: str, log: Path) -> AsyncGenerator[Running]:
    """Run a service that sends its spans to a collector."""
    small, large = (
        Noting(
            SCRIPT,
            digits={"9": -0.1},
            names=(name,),
        )
        for name in ("tiny", "huge")
    )
    large._ids = small._ids  # pyright: ignore[reportPrivateUsage]  # one vocabulary
    settings = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": to,
        "OTEL_EXPORTER_OTLP_TIMEOUT": str(LONG),
        "OTEL_BSP_SCHEDULE_DELAY": "50",
    }
    async with (
        small.serve("small") as one,
        large.serve("large") as other,
        serve(one.url, other.url, log, settings=settings) as program,
    ):
        for server in (small, large):
            server.heads.clear()  # those of the warm-up, which belongs to no run
        yield Running(program, (small, large))


async def test_a_collector_gets_the_spans_of_a_run_and_does_not_keep_the_service_from_ending(
    tmp_path: Path,
) -> None:
    collector = Collector()
    async with (
        collector.listening() as address,
        exporting(address, tmp_path / "service.log") as running,
    ):
        await running.chat()
        await until(lambda: any(span.kind == Span.SPAN_KIND_SERVER for span in collector.spans))
        spans = collector.spans
        heads = [head["traceparent"] for each in running.servers for head in each.heads]
        collector.silent = True
        collector.requested.clear()
        await running.chat()
        await collector.requested.wait()  # The exporter hangs.
        await running.chat()
        running.program.terminate()
        async with asyncio.timeout(SOON):
            assert await running.program.child.ended == 0
    assert "the last spans are lost" in (tmp_path / "service.log").read_text()
    assert TURN["content"] not in str(collector.got)
    (request,) = [span for span in spans if span.kind == Span.SPAN_KIND_SERVER]
    below = [span for span in spans if span.kind == Span.SPAN_KIND_CLIENT]
    versions = {(each["service.name"], each["service.version"]) for each in collector.resources}
    assert versions == {("stepspec", __version__)}
    assert (request.name, request.trace_id.hex(), request.parent_span_id.hex()) == (
        "chat specreason",
        TRACE,
        CLIENT,
    )
    assert len(heads) == len(below) == len(spans) - 1
    assert set(heads) == {f"00-{TRACE}-{request.span_id.hex()}-01"}
    for span in below:
        assert (span.trace_id.hex(), attributes_of(span.attributes)["stepspec.fate"]) == (
            TRACE,
            "done",
        )
        assert request.start_time_unix_nano <= span.start_time_unix_nano <= span.end_time_unix_nano
        assert span.end_time_unix_nano <= request.end_time_unix_nano
