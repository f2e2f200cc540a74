"""Connections of clients: both families of addresses, the end of a drain, paths, coding."""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import sys

import pytest

from stepspec import service_factory
from stepspec.service.http.app import listen

from ..served import chosen, serving, until


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
@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_any_address_of_ipv6_is_any_of_ipv4_too(address: str) -> None:
    with listen("::", 0) as listening:
        port = listening.getsockname()[1]
        with socket.create_connection((address, port), timeout=5):
            pass


@pytest.mark.parametrize(
    ("name", "value", "traces"),
    [
        ("OTEL_TRACES_EXPORTER", "none", False),
        ("OTEL_TRACES_EXPORTER", "None", False),
        ("OTEL_SDK_DISABLED", "true", False),
        ("OTEL_TRACES_EXPORTER", "otlp", True),
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
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "(512, 512)"
