"""What this machine lacks is no failure of a server. Limits that exclude each other are said."""

from __future__ import annotations

import asyncio
import errno
import signal
import socket
import subprocess
import sys
from resource import RLIM_INFINITY
from types import SimpleNamespace
from typing import Any, cast

import aiohttp
import pytest

from stepspec import Solver
from stepspec import settings as configuration
from stepspec.orchestrator.backends.vllm import RewardModelEndpoint
from stepspec.orchestrator.chain import Chain
from stepspec.orchestrator.endpoints import CriticEndpoint, Endpoint
from stepspec.orchestrator.errors import ConfigurationError, LocalShortage
from stepspec.orchestrator.http.client import connection_error
from stepspec.orchestrator.http.failures import shortage
from stepspec.orchestrator.http.http_errors import Call
from stepspec.service.errors import api_error
from stepspec.service.http.descriptors import OncePerSecond, connections_left, raise_limit
from stepspec.service.settings import ServiceSettings
from stepspec.service_factory import check_concurrency
from tests.service.served import down, until

from ...stand_in import FakeVllm
from ..served import chosen, serving


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.EADDRNOTAVAIL])
def test_the_cause_of_a_failed_connection_is_found(number: int) -> None:
    key = SimpleNamespace(host="x", port=1, is_ssl=False, ssl=True)
    wrapped = aiohttp.ClientConnectorError(cast("Any", key), OSError(number, "no"))
    assert shortage(wrapped)
    assert not shortage(aiohttp.ClientConnectorError(cast("Any", key), OSError(111, "refused")))


async def test_a_run_without_descriptors_fails_and_the_server_stays_usable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    key = SimpleNamespace(host="x", port=1, is_ssl=False, ssl=True)

    async def no_descriptor(*_: object, **__: object) -> None:
        raise aiohttp.ClientConnectorError(cast("Any", key), OSError(errno.EMFILE, "no"))

    fake = FakeVllm(("So",))
    async with (
        fake.serve("large", retries=1) as large,
        fake.serve("small") as small,
        Solver(small, large) as solver,
    ):
        model = solver.large.model()
        monkeypatch.setattr(aiohttp.ClientSession, "request", no_descriptor)
        with pytest.raises(LocalShortage, match="ulimit -n"):
            await model.score(Chain.of("?"), "a step")
        monkeypatch.undo()
        assert solver.large.usable
        assert not solver.down


@pytest.mark.parametrize(
    ("soft", "hard", "allowed", "raised"),
    [
        (256, 1024, True, 1024),
        (1024, 1024, True, 1024),
        (256, RLIM_INFINITY, True, 2**20),
        (RLIM_INFINITY, RLIM_INFINITY, True, 2**20),
        (256, RLIM_INFINITY, False, 256),
    ],
)
def test_the_soft_limit_is_raised_as_far_as_the_system_allows(
    soft: int, hard: int, allowed: bool, raised: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def limits(kind: int) -> tuple[int, int]:
        return soft, hard

    def refused(kind: int, wanted: tuple[int, int]) -> None:
        if not allowed:
            raise ValueError("current limit exceeds maximum limit")

    monkeypatch.setattr("resource.getrlimit", limits)
    monkeypatch.setattr("resource.setrlimit", refused)
    assert raise_limit() == raised


@pytest.mark.parametrize("descriptors", [True, False])
def test_a_name_that_is_not_found_without_descriptors_is_a_shortage(
    descriptors: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def opened(*_: object) -> socket.socket:
        raise OSError(errno.EMFILE, "no")

    key = SimpleNamespace(host="x", port=1, is_ssl=False, ssl=True)
    unknown = aiohttp.ClientConnectorDNSError(cast("Any", key), socket.gaierror(-2, "unknown"))
    if not descriptors:
        monkeypatch.setattr(socket, "socket", opened)
    call = Call("large", "http://x:1", "write")
    error = connection_error(call, unknown, 5.0)
    assert isinstance(error, LocalShortage) is not descriptors


def test_a_shortage_is_answered_with_the_request_to_come_back() -> None:
    error = api_error(LocalShortage("this process has too many open files"))
    assert (error.status, error.code, error.retry) == (503, "overloaded", True)
    assert "Retry-After" in error.all_headers


def test_a_start_that_cannot_hold_its_own_runs_says_so() -> None:
    settings = ServiceSettings(max_running=300)
    assert connections_left(4096, settings) == 4096 - 64 - 1200
    with pytest.raises(ConfigurationError, match="needs 1564 file descriptors"):
        connections_left(1024, settings)


@pytest.mark.parametrize(
    ("most", "runs", "fits"), [(None, 128, True), (64, 128, False), (64, 64, True)]
)
def test_a_model_takes_as_many_requests_as_the_service_runs(
    most: int | None, runs: int, fits: bool
) -> None:
    large = Endpoint(role="large", url="http://x:1", max_concurrency=most)
    service = ServiceSettings(max_running=runs)
    settings = configuration.load(small="http://x:2", large=large)
    solver = Solver(settings.model_copy(update={"service": service}))
    if fits:
        check_concurrency(solver, service)
        limit = solver.large.settings.max_concurrency
        assert limit is not None
        assert limit >= (most or 4 * runs)
    else:
        with pytest.raises(ConfigurationError, match="allows 64 requests at a time"):
            check_concurrency(solver, service)


@pytest.mark.parametrize(
    ("most", "runs", "limit"), [(None, 128, 512), (None, 8, 64), (200, 128, 200), (127, 128, 0)]
)
def test_a_reward_model_takes_as_many_requests_as_the_service_runs(
    most: int | None, runs: int, limit: int
) -> None:
    critic = CriticEndpoint(url="http://x:3", max_concurrency=most)
    settings = configuration.load(
        small="http://x:2", large="http://x:1", critic=critic, service={"max_running": runs}
    )
    solver = Solver(settings)
    if limit:
        check_concurrency(solver, settings.service)
        assert isinstance(solver.critic, RewardModelEndpoint)
        assert solver.critic.settings.max_concurrency == limit
    else:
        with pytest.raises(ConfigurationError, match="max_concurrency of the critic model"):
            check_concurrency(solver, settings.service)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_that_gets_no_slot_of_a_model_is_answered_and_seen(stream: bool) -> None:
    async with serving(chosen(max_wait=0.5), max_concurrency=1) as served:
        served.large.gate = asyncio.Semaphore(0)
        first = asyncio.create_task(served.chat(method="large"))
        await until(lambda: served.large.heads)
        second = asyncio.create_task(served.chat(method="large", stream=stream))
        engine = served.service.context.offer.engine
        await until(lambda: engine.waiting["large"])
        metrics = (await served.get("/metrics")).body.decode()
        refused = await second
        assert not first.done()
        assert not down(served), "a shortage of our own is no failure of the server"
        served.large.permit(1000)
        assert (await first).status == 200
        assert (await served.chat(method="large", stream=stream)).status == 200
    assert 'stepspec_upstream_waiting{role="large"} 1.0' in metrics
    assert 'stepspec_upstream_waiting{role="small"} 0.0' in metrics
    assert (refused.status, refused.error["code"]) == (503, "overloaded")
    assert refused.headers["Retry-After"]
    assert "max_concurrency in [large]" in refused.error["message"]


def test_a_warning_is_logged_once_a_second() -> None:
    said: list[str] = []
    warn = OncePerSecond(said.append)
    for _ in range(50):
        warn("no more")
    assert said == ["no more"]


async def test_connections_beyond_what_is_left_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    def three(descriptors: int, settings: ServiceSettings) -> int:
        return 3

    monkeypatch.setattr("stepspec.service.http.app.connections_left", three)
    async with serving(chosen()) as served:
        host, port = served.base.removeprefix("http://").split(":")
        held = [socket.create_connection((host, int(port)), timeout=5) for _ in range(6)]
        for each in held:
            each.setblocking(False)
        await until(lambda: sum(map(is_closed, held)) >= 3)
        for each in held:
            each.close()


def is_closed(connection: socket.socket) -> bool:
    """Whether the other side has closed *connection*, to which it sends nothing."""
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True
    except BlockingIOError:
        return False


def test_a_signal_before_serving_ends_with_the_code_of_one_afterwards() -> None:
    program = (
        "import os, signal; from stepspec.cli import serve as module;"
        " module.service_factory.require = lambda: None;"
        " module.Solver = lambda: os.kill(os.getpid(), signal.SIGTERM); module.serve.__wrapped__()"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(("command", "code"), [("serve", 0), ("solve", -signal.SIGTERM)])
def test_a_signal_while_modules_are_imported_ends_a_service_with_0(command: str, code: int) -> None:
    program = (
        "import os, signal, sys, types;"
        " end = lambda: os.kill(os.getpid(), signal.SIGTERM);"
        " sys.modules['stepspec.cli'] = types.SimpleNamespace(main=end);"
        f" sys.argv = ['stepspec', {command!r}]; from stepspec.__main__ import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (code, "")
