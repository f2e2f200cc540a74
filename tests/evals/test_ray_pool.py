"""A cluster and its actors; workers that arrive, that do not, that differ, and that are lost."""

from __future__ import annotations

import asyncio
import re
import socket
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import pytest
from ray import exceptions
from rich.console import Console

from stepspec import Solution
from stepspec.cli import eval as cli
from stepspec.evals import ray_pool
from stepspec.evals.arms import LARGE
from stepspec.evals.grading.graders import Answer
from stepspec.evals.plan import Plan, Trial
from stepspec.evals.ray_pool import (
    PATIENCE_SECONDS,
    PAUSE_SECONDS,
    RemoteWorker,
    WorkerPool,
    cluster,
)
from stepspec.evals.ray_worker import describe_process
from stepspec.evals.runner import WorkerLost, WorkerSlot
from stepspec.evals.sample import Task
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
from .scripted import solution

SILENT = Console(quiet=True)


@pytest.mark.parametrize(
    "address", ["", "here", "host", "host:port", "http://host:1", ":6379", "ray://host"]
)
async def test_an_invalid_address_is_refused(address: str) -> None:
    with pytest.raises(
        ConfigurationError, match=r"it is auto, local, HOST:PORT or ray://HOST:PORT"
    ):
        async with cluster(address, 1, SILENT):
            pass


@pytest.mark.parametrize("scheme", ["", "ray://"])
async def test_an_address_that_refuses_connections_is_an_error_before_ray_waits(
    scheme: str,
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(
        ConfigurationError, match=rf"nothing listens at 127\.0\.0\.1:{port}: .*`ray start --head`"
    ):
        async with cluster(f"{scheme}127.0.0.1:{port}", 1, SILENT):
            pass


@pytest.mark.parametrize(
    ("address", "workers", "complaint"),
    [(None, 3, "name it with --ray"), ("auto", None, "pass --ray local")],
)
def test_flags_that_do_not_go_together_are_refused(
    address: str | None, workers: int | None, complaint: str
) -> None:
    with pytest.raises(ConfigurationError, match=complaint):
        cli._team(address, workers, testbed=True)  # pyright: ignore[reportPrivateUsage]


def test_without_ray_the_error_names_the_package_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "stepspec.evals.ray_pool")
    with pytest.raises(
        ConfigurationError, match=re.escape(f"--ray needs ray: {install_command('evals', 'ray')}")
    ):
        cli._team("local", None, testbed=True)  # pyright: ignore[reportPrivateUsage]


class FakeRay:
    """A Ray with one actor, which answers every call with *answer*, an error or a value."""

    def __init__(self, answer: object) -> None:
        self.answer: Future[Any] = Future()
        if isinstance(answer, Exception):
            self.answer.set_exception(answer)
        else:
            self.answer.set_result(answer)

    def remote(self, kind: type) -> Any:
        method = SimpleNamespace(remote=self._call)
        handle = SimpleNamespace(describe=method, enter=method, solve=method)
        return SimpleNamespace(options=Mock(return_value=SimpleNamespace(remote=lambda: handle)))

    def _call(self, *arguments: object) -> Any:
        return SimpleNamespace(future=lambda: self.answer)


def _died(why: str) -> Exception:
    return cast("Exception", cast("Any", exceptions).NodeDiedError(why))


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (lambda: "solved", None),
        (
            lambda: _died("The actor died.\n\tclass_name: StepspecWorker"),
            (WorkerLost, "^The actor died$"),
        ),
        (
            lambda: _died("The actor died because its node has died. Node Id: 7"),
            (WorkerLost, "^its node has died$"),
        ),
        (
            lambda: ConnectionError("gone"),
            (WorkersLost, "^the connection to the Ray cluster is lost: gone$"),
        ),
        (lambda: KeyError("a bug of ours"), (KeyError, "a bug of ours")),
    ],
)
async def test_an_actor_answers_and_errors_of_ray_about_it_are_reworded(
    monkeypatch: pytest.MonkeyPatch, answer: Any, expected: tuple[type[Exception], str] | None
) -> None:
    monkeypatch.setattr(ray_pool, "ray", FakeRay(answer()))
    actor: Any = ray_pool._Actor()  # pyright: ignore[reportPrivateUsage]
    for method in ("describe", "enter", "solve"):
        if expected is None:
            assert await actor.call(method) == "solved"
            continue
        with pytest.raises(expected[0], match=expected[1]):
            await actor.call(method)


SETTINGS = Settings.model_validate(
    {"small": "http://a:1,http://b:1", "large": "http://c:1", "policy": "bild"}
)
PLAN = Plan((Task("1 + 1", Answer("2", "exact")),), (LARGE,), GREEDY, Budget(tokens=256))
TRIAL = Trial(0, 7, PLAN.tasks[0], LARGE)
SOLVED = solution("2")
DESCRIBED = describe_process()


@dataclass
class Scripted:
    """The scripted process of a worker; *calls* are the arguments of its methods."""

    comes: float = 0.0  # seconds until there is a place for it
    overrides: Mapping[str, str] = field(default_factory=dict[str, str])
    dies_entering: float = 0.0  # seconds of the clock until which it does
    entered: StepspecError | None = None
    solved: Solution | StepspecError | WorkerLost = SOLVED
    calls: list[tuple[Any, ...]] = field(default_factory=list[tuple[Any, ...]])
    stopped: int = 0

    async def call(self, method: str, *arguments: Any) -> Any:
        return await getattr(self, method)(*arguments)

    async def describe(self) -> Mapping[str, str]:
        await asyncio.sleep(self.comes)
        return {**DESCRIBED, "host": "there", "node": "n1", **self.overrides}

    async def enter(self, settings: Settings, plan: Plan) -> StepspecError | None:
        self.calls.append((settings, plan))
        if asyncio.get_running_loop().time() < self.dies_entering:
            raise WorkerLost("out of memory")
        return self.entered

    async def solve(
        self,
        trial: Trial,
        traced: bool,
    ) -> tuple[Any, bytes]:
        self.calls.append((trial, traced))
        if isinstance(self.solved, WorkerLost):
            raise self.solved
        return self.solved, b"trace" if traced else b""

    async def stop(self) -> None:
        self.stopped += 1


def staff(*remotes: Scripted, workers: int = 1, console: Console | None = None) -> WorkerPool:
    """
    Workers whose processes are *remotes*, in order; the last one's script is everybody's after it.
    """
    coming = iter(remotes)

    def ask() -> RemoteWorker:
        return next(coming, None) or replace(remotes[-1], calls=[], stopped=0)

    return WorkerPool(ask, workers, {"version": "2"}, console or SILENT)


async def work(staff: WorkerPool, trace_to: Path | None = None) -> Solution | None:
    (post,) = staff.slots(SETTINGS, PLAN)
    async with post() as worker:
        return await worker.solve(TRIAL, trace_to)


def test_a_worker_gets_all_settings_and_one_problem_at_a_time_and_its_trace_is_kept(
    tmp_path: Path,
) -> None:
    remote = Scripted()
    assert run(work(staff(remote)))[0] is SOLVED
    assert remote.calls == [(SETTINGS, replace(PLAN, tasks=())), (TRIAL, False)]
    assert remote.stopped == 1
    # the virtual clock waits for no thread
    asyncio.run(work(staff(remote), tmp_path / "trace.jsonl"))
    assert (tmp_path / "trace.jsonl").read_bytes() == b"trace"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            {"missing": "No module named 'stepspec'"},
            r"on there cannot use stepspec \(No module .*install the same",
        ),
        ({"python": "3.8.1"}, r"has python 3\.8\.1, and this machine 3\."),
        ({"stepspec": "0.0.9"}, r"has stepspec 0\.0\.9, and this machine"),
        (
            {"commit": "f00"},
            r"has commit f00, and this machine \S+: install the same on every machine",
        ),
    ],
)
def test_a_worker_that_would_solve_in_another_way_is_refused(
    overrides: dict[str, str], message: str
) -> None:
    remote = Scripted(overrides=overrides)
    with pytest.raises(ConfigurationError, match=message):
        run(work(staff(remote)))
    assert (remote.calls, remote.stopped) == ([], 1)


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
        await asyncio.sleep(10 * PATIENCE_SECONDS)  # What was before the first post does not count.
        began = asyncio.get_running_loop().time()
        with pytest.raises(
            WorkersLost, match=r"no worker for 180 s: the cluster has no CPU free .* `ray status`"
        ):
            await work(staff(remote))
        return asyncio.get_running_loop().time() - began

    assert PATIENCE_SECONDS <= run(main())[0] <= PATIENCE_SECONDS + 2
    assert remote.stopped == 1


async def _name(post: Callable[[], Any]) -> str:
    async with post() as worker:
        return str(worker.name)


@pytest.mark.parametrize(
    "late", [Scripted(comes=1.5 * PATIENCE_SECONDS), Scripted(dies_entering=1.5 * PATIENCE_SECONDS)]
)
def test_as_long_as_one_is_ready_another_may_take_its_time(late: Scripted) -> None:
    async def main() -> str:
        one, other = staff(Scripted(), late, workers=2).slots(SETTINGS, PLAN)
        async with one():
            waiting = asyncio.create_task(_name(other))
            await asyncio.sleep(1.4 * PATIENCE_SECONDS)
        return await waiting

    assert run(main())[0].endswith(" on there")


def test_a_worker_that_ends_before_it_is_ready_is_replaced_for_a_limited_time() -> None:
    frail = [Scripted(dies_entering=1e9), Scripted(dies_entering=1e9)]
    assert run(work(staff(*frail, Scripted()))) == (SOLVED, PAUSE_SECONDS * len(frail))
    assert [remote.stopped for remote in frail] == [1] * len(frail)
    with pytest.raises(
        WorkersLost, match=r"no worker for 180 s.* ended before it was ready: out of memory"
    ):
        run(work(staff(Scripted(dies_entering=1e9))))


def test_present_and_lost_workers_are_reported_once_and_recorded(
    capsys: pytest.CaptureFixture[str],
) -> None:
    team = staff(
        Scripted(solved=WorkerLost("its node is gone")),
        Scripted(),
        console=Console(stderr=True, width=300),
    )

    async def main() -> None:
        (post,) = team.slots(SETTINGS, PLAN)
        with pytest.raises(WorkerLost):
            await _two_runs(post)
        async with post():
            pass

    run(main())
    assert team.record() == {
        "version": "2",
        "workers": 1,
        "hired": [
            {
                "name": "worker 1 on there",
                "host": "there",
                "node": "n1",
                "lost": "its node is gone",
            },
            {"name": "worker 2 on there", "host": "there", "node": "n1"},
        ],
    }
    assert capsys.readouterr().err.splitlines() == [
        "worker 1 on there was lost (its node is gone): other workers take its problems, and a new"
        " worker is started"
    ]


async def _two_runs(post: WorkerSlot) -> None:
    async with post() as worker:
        runs = [worker.solve(TRIAL, None), worker.solve(TRIAL, None)]
        await asyncio.gather(*runs)


def test_cancelling_a_waiting_pool_leaves_no_worker() -> None:
    remotes = Scripted(comes=1e9), Scripted(comes=1e9)

    async def main() -> None:
        posts = staff(*remotes, workers=2).slots(SETTINGS, PLAN)
        waiting = [asyncio.create_task(_name(post)) for post in posts]
        await asyncio.sleep(5)
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting)

    run(main())
    assert [remote.stopped for remote in remotes] == [1, 1]
