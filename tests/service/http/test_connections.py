"""Connections of clients: both families of addresses, the end of a drain, paths, coding."""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import sys

import pytest
from fastapi.routing import APIRoute

from stepspec import service_factory
from stepspec.service.http.app import listen

from ..served import Served, chosen, serving, until


async def test_while_draining_each_answer_closes_its_connection() -> None:
    async with serving() as served:
        served.small.gate = asyncio.Semaphore(0)
        asking = asyncio.create_task(served.chat())
        await until(lambda: served.service.context.admission.running)
        before = await served.get("/v1/models")
        served.server.handle_exit(signal.SIGTERM, None)
        await until(lambda: served.service.context.admission.closed)
        refused = await served.chat()
        for _ in range(999):
            served.small.gate.release()
        answered = await asking
        await served.running
    assert "Connection" not in before.headers
    assert (refused.status, refused.headers["Connection"]) == (503, "close")
    assert (answered.status, answered.headers["Connection"]) == (200, "close")


async def test_every_answer_of_a_draining_service_closes_its_connection() -> None:
    origin = {"Origin": "https://a.example"}
    requests: tuple[tuple[str, str, dict[str, str]], ...] = (
        ("GET", "/", {}),
        ("GET", "/health", {}),
        ("HEAD", "/health/", {}),
        ("GET", "/health/readiness", {}),
        ("GET", "/metrics", {}),
        ("GET", "/v1/models", {}),
        ("GET", "/v1/models/nope", {}),
        ("GET", "/nope", {}),
        ("DELETE", "/v1/models", {}),
        ("POST", "/v1/chat/completions", {}),
        ("POST", "/v1/messages", {}),
        ("POST", "/v1/responses", {}),
        ("GET", "/v1/models", origin),
        ("GET", "/v1/models", {"Origin": "https://b.example"}),
        ("OPTIONS", "/v1/chat/completions", {}),
    )
    async with serving(chosen(cors_origins=("https://a.example",))) as served:
        served.small.gate = asyncio.Semaphore(0)
        asking = asyncio.create_task(served.chat())
        await until(lambda: served.service.context.admission.running)
        served.server.handle_exit(signal.SIGTERM, None)
        await until(lambda: served.service.context.admission.closed)
        closed: dict[object, str | None] = {}
        for method, path, headers in requests:
            request = served.http.request(method, served.base + path, headers=headers)
            async with request as reply:
                closed[method, path, reply.status, *headers] = reply.headers.get("Connection")
        for _ in range(999):
            served.small.gate.release()
        await asking
        await served.running
    assert {each for each, connection in closed.items() if connection != "close"} == set()


@pytest.mark.parametrize("path", ["/v1/models/", "/health/", "/health/readiness/", "/metrics/"])
async def test_a_slash_at_the_end_of_a_path_is_ignored(path: str) -> None:
    async with (
        serving() as served,
        served.http.get(served.base + path, allow_redirects=False) as reply,
    ):
        assert reply.status == 200


async def test_a_request_with_a_slash_at_the_end_is_answered() -> None:
    async with serving() as served:
        body = {"model": "auto", "messages": [{"role": "user", "content": "x"}]}
        assert (await served.post("/v1/chat/completions/", body)).status == 200


@pytest.mark.parametrize("root", ["", "/api"])
async def test_no_route_changes_by_a_slash_at_its_end(root: str) -> None:
    async with serving(chosen(root_path=root)) as served:
        routes = [route for route in served.service.app.routes if isinstance(route, APIRoute)]
        assert len(routes) > 9
        for route in routes:
            method = min(route.methods)
            if route.path == "/":
                continue
            path = root + route.path.replace("{", "").replace("}", "")
            found = [
                await answered(served, method, path.rstrip("/") + end)
                for end in ("", "/", "//", "?x=1", "/?x=1")
            ]
            assert len(set(found)) == 1, (path, found)
            assert found[0][0] not in (307, 308), path


@pytest.mark.parametrize(
    ("path", "location"),
    [
        ("/api", "/api/"),
        ("/api//", "/api/"),
        ("/api?x=1", "/api/?x=1"),
        ("/api/", None),
        ("/", None),
        ("/?x=1", None),
    ],
)
async def test_the_page_is_found_without_its_slash_at_the_scheme_of_the_proxy(
    path: str, location: str | None
) -> None:
    async with (
        serving(chosen(root_path="/api")) as served,
        served.http.get(served.base + path, allow_redirects=False) as reply,
    ):
        assert reply.headers.get("Location") == location
        assert reply.status == (307 if location else 200)


async def answered(served: Served, method: str, path: str) -> tuple[int, str]:
    """Return the status and the type of the answer at *path*."""
    request = served.http.request(
        method,
        served.base + path,
        json={},
        allow_redirects=False,
    )
    async with request as reply:
        return reply.status, reply.headers.get("Content-Type", "")


async def test_servers_are_asked_for_streams_without_compression() -> None:
    async with serving() as served:
        await served.chat()
        codings = {head["Accept-Encoding"] for head in served.small.heads}
    assert codings == {"identity"}


async def test_no_series_tells_when_another_was_created() -> None:
    async with serving() as served:
        await served.chat()
        assert b"_created" not in (await served.get("/metrics")).body


async def test_idle_connections_are_kept_as_long_as_the_settings_say() -> None:
    async with serving(chosen(idle_seconds=620)) as served:
        assert served.server.config.timeout_keep_alive == 620


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="the system has no dual stack")
@pytest.mark.parametrize("host", ["::", "[::]", "::0", "0:0:0:0:0:0:0:0"])
@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_any_address_of_ipv6_is_any_of_ipv4_too(host: str, address: str) -> None:
    with listen(host, 0) as listening:
        port = listening.getsockname()[1]
        with socket.create_connection((address, port), timeout=5):
            pass


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("localhost", "127.0.0.1"),
        ("127.0.0.1", "127.0.0.1"),
        ("0.0.0.0", "127.0.0.1"),
        ("::1", "::1"),
        ("[::1]", "::1"),
    ],
)
def test_a_host_is_reached_at_its_address(host: str, address: str) -> None:
    if ":" in address and not socket.has_dualstack_ipv6():
        pytest.skip("the system has no IPv6")
    with (
        listen(host, 0) as listening,
        socket.create_connection((address, listening.getsockname()[1]), timeout=5),
    ):
        pass


@pytest.mark.parametrize(
    ("name", "value", "traces"),
    [
        ("OTEL_TRACES_EXPORTER", "none", False),
        ("OTEL_TRACES_EXPORTER", "None", False),
        ("OTEL_SDK_DISABLED", "true", False),
        ("OTEL_TRACES_EXPORTER", " none ", False),
        ("OTEL_TRACES_EXPORTER", "console", False),
        ("OTEL_TRACES_EXPORTER", "zipkin,console", False),
        ("OTEL_TRACES_EXPORTER", "otlp", True),
        ("OTEL_TRACES_EXPORTER", "console, OTLP", True),
        ("OTEL_TRACES_EXPORTER", "otlp_proto_http", True),
        ("OTEL_TRACES_EXPORTER", "", True),
        ("OTEL_SDK_DISABLED", "TRUE", False),
        ("OTEL_SDK_DISABLED", "false", True),
        ("OTEL_SDK_DISABLED", "1", True),  # OpenTelemetry knows no other value than true
        ("OTEL_EXPORTER_OTLP_ENDPOINT", " ", False),
        ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://127.0.0.1:1/v1/traces", True),
    ],
)
def test_variables_switch_traces_off(
    name: str, value: str, traces: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setenv(name, value)
    assert service_factory._traces() is traces  # pyright: ignore[reportPrivateUsage]


def test_the_soft_limit_of_open_files_becomes_the_hard_one() -> None:
    program = (
        "import resource; from stepspec.service.http.descriptors import raise_limit;"
        " raise_limit(); print(resource.getrlimit(resource.RLIMIT_NOFILE))"
    )
    command = f"ulimit -S -n 256; ulimit -H -n 512; exec {sys.executable} -c '{program}'"
    done = subprocess.run(
        ["bash", "-c", command],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "(512, 512)"
