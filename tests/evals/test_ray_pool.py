"""The address of a cluster, and the errors where there is none."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from concurrent.futures import Future
from typing import Any, cast

import pytest
from rich.console import Console

from stepspec.evals import cli
from stepspec.evals.runner import WorkerLost
from stepspec.orchestrator.errors import ConfigurationError, WorkersLost
from stepspec.orchestrator.installation import install_command

from ..fakes import run

pytest.importorskip("ray")
QUIET = Console(quiet=True)


@pytest.mark.parametrize("address", ["", "here", "host", "host:port", "http://host:1", ":6379", "ray://host"])
async def test_an_invalid_address_is_refused(address: str) -> None:
    from stepspec.evals.ray_pool import cluster

    with pytest.raises(ConfigurationError, match=r"it is auto, local, HOST:PORT or ray://HOST:PORT"):
        async with cluster(address, 1, QUIET):
            pass


@pytest.mark.parametrize("scheme", ["", "ray://"])
async def test_an_address_that_refuses_connections_is_an_error_before_ray_waits(scheme: str) -> None:
    from stepspec.evals.ray_pool import cluster

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(ConfigurationError, match=rf"nothing listens at 127\.0\.0\.1:{port}: .*`ray start --head`"):
        async with cluster(f"{scheme}127.0.0.1:{port}", 1, QUIET):
            pass


def test_workers_without_a_cluster_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="name it with --ray"):
        cli._team(None, 3)  # pyright: ignore[reportPrivateUsage]


def test_without_ray_the_error_names_the_package_to_install() -> None:
    lines = "import sys; sys.modules['ray'] = None; from stepspec.cli import main; main()"
    words = [sys.executable, "-c", lines, "eval", "arithmetic", "--testbed", "--ray", "local"]
    run = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert run.returncode == 2
    assert run.stderr.strip() == f"error: --ray needs ray: {install_command('evals', 'ray')}"


class FakeRay:
    """A Ray with one actor, whose answers are the futures in *answers*, by method; the last one stays."""

    def __init__(self, **answers: Future[Any]) -> None:
        self.answers, self.calls, self.killed = answers, list[str](), 0

    def remote(self, kind: type) -> Any:
        return self

    def kill(self, handle: object) -> None:
        self.killed += 1
        for answer in self.answers.values():
            if not answer.done():
                answer.set_exception(_died("killed"))

    def options(self, **options: Any) -> Any:
        return FakeHandles(self)


class FakeHandles:
    """The options of an actor, and its handle."""

    def __init__(self, ray: FakeRay) -> None:
        self._ray = ray

    def remote(self) -> FakeHandles:
        return self

    def __getattr__(self, method: str) -> Any:
        return FakeMethod(self._ray, method)


class FakeMethod:
    """A method of an actor, and the reference to what it returns."""

    def __init__(self, ray: FakeRay, name: str) -> None:
        self._ray, self._name = ray, name

    def remote(self, *arguments: object) -> FakeMethod:
        self._ray.calls.append(self._name)
        return self

    def future(self) -> Future[Any]:
        return self._ray.answers[self._name]


def _died(why: str) -> Exception:
    from ray import exceptions

    return cast("Exception", cast("Any", exceptions).NodeDiedError(why))


def resolved(answer: object) -> Future[Any]:
    future: Future[Any] = Future()
    if isinstance(answer, Exception):
        future.set_exception(answer)
    else:
        future.set_result(answer)
    return future


def actor(monkeypatch: pytest.MonkeyPatch, ray: FakeRay) -> Any:
    from stepspec.evals import ray_pool

    monkeypatch.setattr(ray_pool, "ray", ray)
    return ray_pool._Actor()  # pyright: ignore[reportPrivateUsage]


@pytest.mark.parametrize(
    ("failure", "expected"),
    [
        (lambda: _died("The actor died.\n\tclass_name: StepspecWorker"), (WorkerLost, "^The actor died$")),
        (lambda: _died("The actor died because its node has died. Node Id: 7"), (WorkerLost, "^its node has died$")),
        (lambda: ConnectionError("gone"), (WorkersLost, "^the connection to the Ray cluster is lost: gone$")),
        (lambda: KeyError("a bug of ours"), (KeyError, "a bug of ours")),
    ],
)
def test_errors_of_ray_about_an_actor_are_reworded(
    monkeypatch: pytest.MonkeyPatch, failure: Any, expected: tuple[type[Exception], str]
) -> None:
    async def main() -> None:
        one = actor(
            monkeypatch, FakeRay(describe=resolved({"host": "there"}), enter=resolved(None), solve=resolved(failure()))
        )
        assert await one.describe() == {"host": "there"}
        assert await one.enter(None, None) is None
        kind, words = expected
        with pytest.raises(kind, match=words):
            await one.solve(None, {}, traced=False)

    run(main())


def test_a_worker_that_takes_long_is_waited_for_as_long_as_it_lives_and_not_when_it_is_silent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from stepspec.evals.ray_pool import ALIVE, QUIET

    async def main(ray: FakeRay, until: float) -> Any:
        one = actor(monkeypatch, ray)
        asyncio.get_running_loop().call_later(until, lambda: ray.answers["solve"].set_result(("solved", b"")))
        try:
            return await one.solve(None, {}, traced=False)
        finally:
            await one.stop()

    living = FakeRay(solve=Future(), alive=resolved(None))
    assert run(main(living, 20.5 * QUIET)) == (("solved", b""), 20.5 * QUIET)
    assert living.calls.count("alive") == 20
    silent = FakeRay(solve=Future(), alive=Future())
    with pytest.raises(WorkerLost, match="it has not answered for 60 s"):
        run(main(silent, 2 * (QUIET + ALIVE)))
    assert silent.killed == 1
