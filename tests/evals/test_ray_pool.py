"""A cluster and its actors; workers that arrive, that do not, that differ, and that are lost."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from ray import exceptions
from rich.console import Console

from stepspec.evals import cli, ray_pool
from stepspec.evals.arms import LARGE
from stepspec.evals.grading.graders import Answer
from stepspec.evals.plan import Plan, Trial
from stepspec.evals.ray_pool import ALIVE, PATIENCE, PAUSE, QUIET, STARTS, RemoteWorker, WorkerPool, cluster
from stepspec.evals.ray_worker import describe_process
from stepspec.evals.runner import Worker, WorkerLost
from stepspec.evals.sample import SolvedTask, Task
from stepspec.orchestrator.budget import Budget
from stepspec.orchestrator.endpoints import GREEDY
from stepspec.orchestrator.errors import (
    ConfigurationError,
    EndpointUnavailable,
    StepspecError,
    WorkersLost,
    install_command,
)
from stepspec.settings import Settings

from ..fakes import run

SILENT = Console(quiet=True)


@pytest.mark.parametrize("address", ["", "here", "host", "host:port", "http://host:1", ":6379", "ray://host"])
async def test_an_invalid_address_is_refused(address: str) -> None:
    with pytest.raises(ConfigurationError, match=r"it is auto, local, HOST:PORT or ray://HOST:PORT"):
        async with cluster(address, 1, SILENT):
            pass


@pytest.mark.parametrize("scheme", ["", "ray://"])
async def test_an_address_that_refuses_connections_is_an_error_before_ray_waits(scheme: str) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(ConfigurationError, match=rf"nothing listens at 127\.0\.0\.1:{port}: .*`ray start --head`"):
        async with cluster(f"{scheme}127.0.0.1:{port}", 1, SILENT):
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

    def options(self, **options: object) -> Any:
        handle = SimpleNamespace(**{name: SimpleNamespace(remote=partial(self._call, name)) for name in self.answers})
        return SimpleNamespace(remote=lambda: handle)

    def _call(self, name: str, *arguments: object) -> Any:
        self.calls.append(name)
        return SimpleNamespace(future=lambda: self.answers[name])

    def kill(self, handle: object) -> None:
        self.killed += 1
        for answer in self.answers.values():
            if not answer.done():
                answer.set_exception(_died("killed"))


def _died(why: str) -> Exception:
    return cast("Exception", cast("Any", exceptions).NodeDiedError(why))


def resolved(answer: object) -> Future[Any]:
    future: Future[Any] = Future()
    if isinstance(answer, Exception):
        future.set_exception(answer)
    else:
        future.set_result(answer)
    return future


def actor(monkeypatch: pytest.MonkeyPatch, ray: FakeRay) -> Any:
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


SETTINGS = Settings.model_validate({"small": "http://a:1,http://b:1", "large": "http://c:1", "policy": "bild"})
PLAN = Plan((Task("1 + 1", Answer("2", "exact")),), (LARGE,), GREEDY, Budget(256))
TRIAL = Trial(0, 0, 7, PLAN.tasks[0], LARGE)
SOLVED = SolvedTask(None, {})


@dataclass
class Scripted:
    """The scripted process of a worker; *calls* are the arguments of its methods."""

    comes: float = 0.0  # seconds until there is a place for it
    overrides: Mapping[str, str] = field(default_factory=dict[str, str])
    dies_entering: bool = False
    entered: StepspecError | None = None
    solved: SolvedTask | StepspecError | WorkerLost = SOLVED
    calls: list[tuple[Any, ...]] = field(default_factory=list[tuple[Any, ...]])
    stopped: int = 0

    async def describe(self) -> Mapping[str, str]:
        await asyncio.sleep(self.comes)
        return {**describe_process(), "host": "there", "node": "n1", **self.overrides}

    async def enter(self, settings: Settings, plan: Plan) -> StepspecError | None:
        self.calls.append((settings, plan))
        if self.dies_entering:
            raise WorkerLost("out of memory")
        return self.entered

    async def solve(self, trial: Trial, options: Mapping[str, Any], *, traced: bool) -> tuple[Any, bytes]:
        self.calls.append((trial, dict(options), traced))
        if isinstance(self.solved, WorkerLost):
            raise self.solved
        return self.solved, b"trace" if traced else b""

    async def stop(self) -> None:
        self.stopped += 1


def staff(*remotes: Scripted, workers: int = 1, console: Console | None = None) -> WorkerPool:
    """Workers whose processes are *remotes*, in order; the last one's script is everybody's after it."""
    coming = iter(remotes)

    async def ask() -> RemoteWorker:
        return next(coming, None) or replace(remotes[-1], calls=[], stopped=0)

    return WorkerPool(ask, workers, {"version": "2"}, console or SILENT)


async def work(staff: WorkerPool, *, local_servers: bool = False, trace_to: Path | None = None) -> SolvedTask:
    (post,) = staff.slots(SETTINGS, PLAN, local_servers=local_servers)
    async with post() as worker:
        return await worker.solve(TRIAL, {"p": 0.5}, trace_to)


def test_a_worker_gets_all_settings_and_one_problem_at_a_time() -> None:
    remote = Scripted()
    solved, _ = run(work(staff(remote)))
    assert solved is SOLVED
    assert remote.calls == [(SETTINGS, replace(PLAN, tasks=())), (TRIAL, {"p": 0.5}, False)]
    assert remote.stopped == 1


def test_workers_begin_with_different_replicas() -> None:
    first, second = Scripted(), Scripted()

    async def main() -> None:
        for post in staff(first, second, workers=2).slots(SETTINGS, PLAN, local_servers=False):
            async with post():
                pass

    run(main())
    ends = [remote.calls[0][0].small.urls for remote in (first, second)]
    assert ends == [("http://a:1", "http://b:1"), ("http://b:1", "http://a:1")]
    assert second.calls[0][0].model_copy(update={"small": SETTINGS.small}) == SETTINGS


def test_a_trace_is_written_to_the_folder_of_the_run(tmp_path: Path) -> None:
    remote = Scripted()
    run(work(staff(remote), trace_to=tmp_path / "trace.jsonl"))
    assert (tmp_path / "trace.jsonl").read_bytes() == b"trace"
    assert remote.calls[-1][-1] is True


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"missing": "No module named 'stepspec'"}, r"on there cannot use stepspec \(No module .*install the same"),
        ({"python": "3.8.1"}, r"has python 3\.8\.1, and this machine 3\."),
        ({"stepspec": "0.0.9"}, r"has stepspec 0\.0\.9, and this machine"),
        ({"code": "f00"}, r"another code of stepspec \S+ than this machine: install the same on every machine"),
    ],
)
def test_a_worker_that_would_solve_in_another_way_is_refused(overrides: dict[str, str], message: str) -> None:
    remote = Scripted(overrides=overrides)
    with pytest.raises(ConfigurationError, match=message):
        run(work(staff(remote)))
    assert (remote.calls, remote.stopped) == ([], 1)


def test_servers_that_only_this_machine_reaches_are_for_workers_of_this_machine() -> None:
    run(work(staff(Scripted()), local_servers=True))
    elsewhere = Scripted(overrides={"network": "another"})
    with pytest.raises(ConfigurationError, match="loopback, which the Ray worker on there does not reach: serve"):
        run(work(staff(elsewhere), local_servers=True))
    run(work(staff(elsewhere)))  # Where the servers are others, that does not matter.


@pytest.mark.parametrize(
    "remote",
    [
        Scripted(entered=EndpointUnavailable("gone", role="large", url="http://c:1")),
        Scripted(solved=EndpointUnavailable("gone", role="large", url="http://c:1")),
    ],
)
def test_an_endpoint_that_fails_at_a_worker_fails_here(remote: Scripted) -> None:
    with pytest.raises(EndpointUnavailable, match="the large model at http://c:1: gone"):
        run(work(staff(remote)))
    assert remote.stopped == 1


def test_a_run_without_any_worker_ends_with_an_error() -> None:
    remote = Scripted(comes=1e9)

    async def main() -> float:
        await asyncio.sleep(10 * PATIENCE)  # What was before the first post does not count.
        began = asyncio.get_running_loop().time()
        with pytest.raises(WorkersLost, match=r"no worker for 180 s: the cluster has no CPU free .* `ray status`"):
            await work(staff(remote))
        return asyncio.get_running_loop().time() - began

    assert PATIENCE <= run(main())[0] <= PATIENCE + 2
    assert remote.stopped == 1


def test_as_long_as_one_is_there_another_may_take_its_time() -> None:
    async def main(first: Scripted, late: Scripted) -> str:
        one, other = staff(first, late, workers=2).slots(SETTINGS, PLAN, local_servers=False)
        async with one():
            waiting = asyncio.create_task(_name(other))
            await asyncio.sleep(10 * PATIENCE)
        return await waiting

    assert run(main(Scripted(), Scripted(comes=10.5 * PATIENCE)))[0] == "worker 2 on there"
    with pytest.raises(WorkersLost, match="no worker for 180 s"):
        run(main(Scripted(), Scripted(comes=12 * PATIENCE)))


async def _name(post: Callable[[], Any]) -> str:
    async with post() as worker:
        return str(worker.name)


def test_a_worker_that_ends_before_it_is_ready_is_replaced_a_limited_number_of_times() -> None:
    frail = [Scripted(dies_entering=True) for _ in range(STARTS - 1)]
    assert run(work(staff(*frail, Scripted()))) == (SOLVED, PAUSE * len(frail))
    assert [remote.stopped for remote in frail] == [1] * len(frail)
    with pytest.raises(WorkersLost, match="3 workers ended before they were ready, the last because out of memory"):
        run(work(staff(Scripted(dies_entering=True))))


def test_as_long_as_one_is_ready_others_may_fail_as_often_as_they_like() -> None:
    async def main() -> str:
        frail = (Scripted(dies_entering=True) for _ in range(10 * STARTS))
        one, other = staff(Scripted(), *frail, Scripted(), workers=2).slots(SETTINGS, PLAN, local_servers=False)
        async with one():
            return await _name(other)

    assert run(main())[0] == f"worker {2 + 10 * STARTS} on there"


def test_the_count_of_failures_restarts_after_a_worker_was_ready() -> None:
    frail = [Scripted(dies_entering=True) for _ in range(2 * (STARTS - 1))]
    team = staff(*frail[: STARTS - 1], Scripted(), *frail[STARTS - 1 :], Scripted())

    async def main() -> list[str]:
        (post,) = team.slots(SETTINGS, PLAN, local_servers=False)
        return [await _name(post), await _name(post)]

    assert run(main())[0] == ["worker 3 on there", "worker 6 on there"]


def test_present_and_lost_workers_are_reported_once_and_recorded(capsys: pytest.CaptureFixture[str]) -> None:
    team = staff(Scripted(solved=WorkerLost("its node is gone")), Scripted(), console=Console(stderr=True, width=300))

    async def main() -> None:
        (post,) = team.slots(SETTINGS, PLAN, local_servers=False)
        async with post() as lost:
            for _ in range(2):  # as if two runs had gone on there
                await _lose(lost)
        async with post():
            pass

    run(main())
    assert team.record() == {
        "version": "2",
        "workers": 1,
        "hired": [
            {"name": "worker 1 on there", "host": "there", "node": "n1", "lost": "its node is gone"},
            {"name": "worker 2 on there", "host": "there", "node": "n1"},
        ],
    }
    assert capsys.readouterr().err.splitlines() == [
        "worker 1 on there was lost (its node is gone): other workers take its problems, and a new worker is started"
    ]


async def _lose(worker: Worker) -> None:
    with pytest.raises(WorkerLost):
        await worker.solve(TRIAL, {}, None)


def test_cancelling_a_waiting_pool_leaves_no_worker() -> None:
    remotes = Scripted(comes=1e9), Scripted(comes=1e9)

    async def main() -> None:
        posts = staff(*remotes, workers=2).slots(SETTINGS, PLAN, local_servers=False)
        waiting = [asyncio.create_task(_name(post)) for post in posts]
        await asyncio.sleep(5)
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting)

    run(main())
    assert [remote.stopped for remote in remotes] == [1, 1]
