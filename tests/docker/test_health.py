"""The health check of the images and of the chart."""

from __future__ import annotations

import asyncio
import shutil
import socket
import sys
import tempfile
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.docker.files import ROOT

from ..service.served import serving
from .files import DOCKER, Tree, outside
from .test_image import stage


async def health(*arguments: str, **environment: str) -> tuple[int, str]:
    """Run the probe as the image has it; return its exit status and its output."""
    with tempfile.TemporaryDirectory() as folder:
        sources, _ = stage("runtime")["COPY"].rsplit(maxsplit=1)
        for source in sources.split():
            shutil.copy(ROOT / source, folder)
        return await probe(Path(folder) / "health.py", *arguments, **environment)


async def probe(program: Path, *arguments: str, **environment: str) -> tuple[int, str]:
    """Run *program*; return its exit status and its output."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(program), *arguments, stderr=pipe, env={**outside(), **environment}
    )
    _, output = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode is not None
    return process.returncode, output.decode()


def nowhere() -> str:
    """Return the URL of a port where nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"http://127.0.0.1:{server.getsockname()[1]}/health"


@asynccontextmanager
async def answering(*statuses: int) -> AsyncGenerator[str]:
    """Serve those *statuses* one after the other, and the last one from then on."""
    left = list(statuses)

    async def answer(request: web.Request) -> web.Response:
        return web.Response(status=left.pop(0) if len(left) > 1 else left[0])

    app = web.Application()
    app.router.add_get("/health", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/health"
    finally:
        await runner.cleanup()


@pytest.mark.parametrize(("status", "code"), [(200, 0), (401, 0), (404, 0), (500, 1), (503, 1)])
async def test_up_means_that_it_responds_without_a_server_error(status: int, code: int) -> None:
    async with answering(status) as url:
        found, output = await health(url)
    assert found == code
    assert output == ("" if code == 0 else f"not up: {url}\n")


async def test_all_have_to_be_up_and_of_alternatives_one() -> None:
    none = nowhere()
    async with answering(200) as url:
        assert await health(f"{none},{url}", url) == (0, "")
        assert await health(url, none) == (1, f"not up: {none}\n")


async def test_it_waits_for_the_configured_time() -> None:
    async with answering(503, 200) as url:
        assert await health("--wait", "30", url) == (0, "")
        assert (await health("--wait", "0", nowhere()))[0] == 1


PROXIED = "http://large.models.svc:8000/health"


async def test_no_proxy_is_used_for_the_own_machine() -> None:
    async with answering(200) as url:
        assert await health(url, http_proxy="http://127.0.0.1:9") == (0, "")
        # the images of other servers have this file alone
        assert await probe(DOCKER / "health.py", url, http_proxy="http://127.0.0.1:9") == (0, "")


@pytest.mark.parametrize(
    "variables",
    [
        {"http_proxy": "{proxy}"},
        {"HTTP_PROXY": "{proxy}", "NO_PROXY": "models.example.com,10.0.0.0/8"},
        {"HTTP_PROXY": "{proxy}", "NO_PROXY": "large.models.svc:9000"},
    ],
)
async def test_a_server_elsewhere_is_asked_through_the_proxy(variables: dict[str, str]) -> None:
    async with answering(200) as url:
        proxy = url.removesuffix("/health")
        named = {name: text.replace("{proxy}", proxy) for name, text in variables.items()}
        assert await health(PROXIED, **named) == (0, "")


@pytest.mark.parametrize("excepted", ["*", "svc", ".svc", "large.models.svc:8000"])
async def test_what_needs_no_proxy_is_asked_directly(excepted: str) -> None:
    async with answering(200) as url:
        proxy = url.removesuffix("/health")
        found = await health(PROXIED, http_proxy=proxy, no_proxy=excepted)
    assert found == (1, f"not up: {PROXIED}\n")


async def test_a_server_behind_a_proxy_that_has_an_error_is_not_up() -> None:
    async with answering(502) as url:
        proxy = url.removesuffix("/health")
        assert (await health(PROXIED, http_proxy=proxy))[0] == 1
    assert (await health(PROXIED, http_proxy=nowhere()))[0] == 1


@pytest.fixture
def probed(rendered: Mapping[str, list[Tree]]) -> set[str]:
    """The paths that the chart and the image ask the service for."""
    (deployment,) = [each for each in rendered["pair"] if each["kind"] == "Deployment"]
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    probes: list[Any] = [
        container[f"{kind}Probe"]["httpGet"] for kind in ("startup", "liveness", "readiness")
    ]
    assert {probe["port"] for probe in probes} == {port["name"] for port in container["ports"]}
    url = stage("service")["HEALTHCHECK"].partition("http://127.0.0.1:8765")[2].rstrip('"]')
    return {url, *(probe["path"] for probe in probes)}


async def test_the_service_answers_its_probes(probed: set[str], bare: pytest.MonkeyPatch) -> None:
    assert probed == {"/health/liveness", "/health/readiness"}
    async with serving() as served:
        for path in probed:
            assert (await served.get(path)).status == 200
            assert await health("--wait", "30", served.base + path) == (0, "")
    assert (await health(served.base + "/health/liveness"))[0] == 1
