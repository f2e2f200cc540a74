"""
A pool of workers on the machines of a Ray cluster.

The pool starts the workers, checks them, and replaces lost ones.
"""

from __future__ import annotations

import asyncio
import io
import logging
import os
import re
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, redirect_stdout
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol, cast

import ray as _ray
from ray import exceptions
from rich.console import Console

from stepspec.orchestrator.concurrency import background
from stepspec.orchestrator.errors import ConfigurationError, StepspecError, WorkersLost
from stepspec.orchestrator.solution import Solution
from stepspec.settings import Settings

from .plan import Plan, Trial
from .ray_worker import describe_process
from .runner import WorkerLost, WorkerSlot

PATIENCE_SECONDS = 180.0
"""Without a worker for so long, the run ends."""
POLL_SECONDS = 1.0
"""Seconds between checks of the patience."""
PAUSE_SECONDS = 2.0
"""Seconds before a lost worker is replaced."""
MUST_AGREE = ("python", "stepspec", "commit")
"""What has to be the same in all processes. Two clones may have one version and other code."""


class RemoteWorker(Protocol):
    """The process of a worker on another machine, with the methods of `ray_worker`."""

    async def call(self, method: str, *arguments: Any) -> Any:
        """
        Call ``describe``, ``enter`` or ``solve``.

        ``describe`` waits until the process runs. It returns `ray_worker.describe_process()`, or
        what is "missing" for it. Raise `WorkerLost` if the process is gone.
        """
        ...

    async def stop(self) -> None:
        """End the process and its run."""
        ...


class WorkerPool:
    """
    A number of *workers*, whose processes *start* begins.

    A slot whose worker is lost waits for another one, while the other slots go on. Raise
    `WorkersLost` after `PATIENCE_SECONDS` without any worker. *cluster_record* describes the
    cluster in the run folder.
    """

    def __init__(
        self,
        start: Callable[[], RemoteWorker],
        workers: int,
        cluster_record: Mapping[str, Any],
        console: Console,
    ) -> None:
        self._start = start
        self._workers = workers
        self._cluster_record = cluster_record
        self._console = console
        self._local = describe_process()
        self._records: list[dict[str, str]] = []
        self._entering = 0  # Workers whose processes run, and that are not ready.
        self._ready = 0
        self._alone_since = 0.0  # When the last worker that was ready left.
        self._cause = ""

    def record(self) -> Mapping[str, Any]:
        return {**self._cluster_record, "workers": self._workers, "hired": self._records}

    def slots(self, settings: Settings, plan: Plan) -> Sequence[WorkerSlot]:
        self._alone_since = asyncio.get_running_loop().time()
        rules = replace(plan, tasks=())
        return [partial(self._slot, settings, rules)] * self._workers

    @asynccontextmanager
    async def _slot(self, settings: Settings, plan: Plan) -> AsyncGenerator[_PooledWorker]:
        remote, record = await self._hire(settings, plan)
        self._ready += 1
        try:
            yield _PooledWorker(remote, record["name"])
        except WorkerLost as lost:
            record["lost"] = str(lost)
            message = (
                f"{record['name']} was lost ({lost}): other workers take its problems, and a new"
                " worker is started"
            )
            self._console.print(message, style="yellow", highlight=False, soft_wrap=True)
            raise
        finally:
            self._ready -= 1
            self._alone_since = asyncio.get_running_loop().time()
            await remote.stop()

    async def _hire(
        self,
        settings: Settings,
        plan: Plan,
    ) -> tuple[RemoteWorker, dict[str, str]]:
        """Start processes until one has warmed up. Return this one, with its record."""
        while True:
            remote = self._start()
            is_ready = False
            try:
                record = await self._described(remote)
                self._entering += 1
                try:
                    failed = await remote.call("enter", settings, plan)
                finally:
                    self._entering -= 1
                if failed is not None:
                    raise failed
                is_ready = True
                return remote, record
            except WorkerLost as lost:
                self._cause = f"; the last one ended before it was ready: {lost}"
                self._check_patience(self._ready)
            finally:
                if not is_ready:
                    await remote.stop()
            await asyncio.sleep(PAUSE_SECONDS)

    async def _described(self, remote: RemoteWorker) -> dict[str, str]:
        """
        Wait until the worker's process runs, and return its record.

        Raise `ConfigurationError` if its versions differ from those here.
        """
        async with background(remote.call("describe")) as (describing,):
            while not (await asyncio.wait([describing], timeout=POLL_SECONDS))[0]:
                self._check_patience(self._ready + self._entering)
            process = describing.result()
        host = process["host"]
        if "missing" in process:
            raise ConfigurationError(
                f"the Ray worker on {host} cannot use stepspec ({process['missing']}): install the"
                " same stepspec[ray] there, into the environment that `ray start` runs in"
            )
        for key in MUST_AGREE:
            if process[key] != self._local[key]:
                raise ConfigurationError(
                    f"the Ray worker on {host} has {key} {process[key]}, and this machine"
                    f" {self._local[key]}: install the same on every machine, and begin its Ray"
                    " anew"
                )
        name = f"worker {len(self._records) + 1} on {host}"
        record = {"name": name, "host": host, "node": process["node"]}
        self._records.append(record)
        return record

    def _check_patience(self, others: int) -> None:
        """Raise `WorkersLost` if no worker was ready for too long, and there are no *others*."""
        if not others and asyncio.get_running_loop().time() - self._alone_since >= PATIENCE_SECONDS:
            raise WorkersLost(
                f"no worker for {PATIENCE_SECONDS:.0f} s: the cluster has no CPU free for one, or"
                f" its machines are gone; `ray status` says which{self._cause}"
            )


@dataclass(frozen=True, slots=True)
class _PooledWorker:
    """A worker of the pool that is ready."""

    remote: RemoteWorker
    """Its process."""
    name: str
    """Its name."""

    async def solve(self, trial: Trial, trace_to: Path | None) -> Solution | None:
        solved, trace = await self.remote.call("solve", trial, trace_to is not None)
        if trace_to is not None and trace:
            await asyncio.to_thread(trace_to.write_bytes, trace)
        if isinstance(solved, StepspecError):
            raise solved
        return cast("Solution | None", solved)


ray = cast("Any", _ray)  # parts of its signatures have no types

DIED = (
    exceptions.RayActorError,
    exceptions.OutOfMemoryError,
    exceptions.NodeDiedError,
    exceptions.ObjectLostError,
)
# No telemetry, no warning about accelerators; workers of a local cluster are timed, so they keep
# the normal priority.
ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_worker_niceness": "0",
}
LOCAL_OPTIONS = {
    "object_store_memory": 100 * 2**20,  # bytes; messages are small
    "include_dashboard": False,
}
CONNECT_SECONDS = 5.0
"""The head of a cluster accepts a connection in so many seconds."""
STOP_SECONDS = 5.0
"""The calls of a stopped worker end in so many seconds."""
ADDRESS = re.compile(r"(?:ray://)?\[?([^\[\]/@]+)\]?:(\d{1,5})")
BECAUSE = re.compile(r"because ([^.\n]+)")


@asynccontextmanager
async def cluster(
    address: str,
    workers: int | None,
    console: Console,
) -> AsyncGenerator[WorkerPool]:
    """
    Join the Ray cluster at *address*, or start a local one, and yield a pool of *workers*.

    None: one worker per node. The output of Ray is discarded; Ray has log files. Raise
    `ConfigurationError` if there is no such cluster.
    """
    os.environ.update(ENVIRONMENT)
    with redirect_stdout(io.StringIO()):
        await _join(address, workers or 1)
        try:
            nodes = [
                {
                    "node": node["NodeID"],
                    "host": node["NodeManagerHostname"],
                    "cpus": node["Resources"]["CPU"],
                }
                for node in ray.nodes()
                if node["Alive"] and node["Resources"].get("CPU", 0) >= 1
            ]
            record = {"address": address, "version": ray.__version__, "nodes": nodes}
            yield WorkerPool(_Actor, workers or max(1, len(nodes)), record, console)
        finally:
            ray.shutdown()


async def _join(address: str, workers: int) -> None:
    options: dict[str, Any] = {}
    if address == "local":
        options = {**LOCAL_OPTIONS, "num_cpus": workers}
    elif address != "auto":
        await _reach(address)
    try:  # In this thread: a local cluster ends with the thread that started it.
        ray.init(
            address=address,
            log_to_driver=False,
            logging_level=logging.CRITICAL,
            **options,
        )
    except (ConnectionError, RuntimeError, ValueError) as exc:
        raise ConfigurationError(
            f"cannot join the Ray cluster at {address!r}: {' '.join(str(exc).split())}; every"
            " machine of it, and this one, needs the same versions of Python and Ray"
        ) from exc


async def _reach(address: str) -> None:
    """Raise `ConfigurationError` if no server listens at *address*. Ray needs minutes to notice."""
    match = ADDRESS.fullmatch(address)
    if match is None:
        raise ConfigurationError(
            f"--ray {address!r}: it is auto, local, HOST:PORT or ray://HOST:PORT"
        )
    host, port = match.groups()
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            _, writer = await asyncio.open_connection(host, port)
            writer.close()
    except (OSError, TimeoutError) as exc:
        raise ConfigurationError(
            f"nothing listens at {host}:{port}: begin a cluster with `ray start --head` there, and"
            " `ray start --address=HOST:PORT` on the other machines"
        ) from exc


def _actor_class() -> type[Any]:
    """
    Return the class of the actors.

    The class is local. Ray sends it by value, so that it also runs on machines without stepspec.
    """

    class StepspecWorker:
        async def describe(self) -> dict[str, str]:
            import platform

            import ray

            node = {"node": str(ray.get_runtime_context().get_node_id())}
            try:
                from stepspec.evals import ray_worker
            except ImportError as exc:
                return {"host": platform.node(), "missing": str(exc), **node}
            return {**ray_worker.describe_process(), **node}

        async def enter(self, settings: Any, plan: Any) -> Any:
            from stepspec.evals.ray_worker import WorkerSession

            self._session = WorkerSession()
            return await self._session.enter(settings, plan)

        async def solve(self, trial: Any, traced: bool) -> Any:
            return await self._session.solve(trial, traced)

    return StepspecWorker


class _Actor:
    """An actor. It starts as soon as a node has a CPU for it, and Ray does not restart it."""

    def __init__(self) -> None:
        kind = ray.remote(_actor_class()).options(
            num_cpus=1,
            max_restarts=0,
            max_task_retries=0,
            scheduling_strategy="SPREAD",
        )
        self._handle = kind.remote()
        self._calls: set[asyncio.Future[Any]] = set()

    async def call(self, method: str, *arguments: Any) -> Any:
        call = asyncio.wrap_future(getattr(self._handle, method).remote(*arguments).future())
        self._calls.add(call)
        call.add_done_callback(self._finished)
        try:
            await asyncio.wait([call])  # Awaiting the call itself would cancel it with the caller.
            return call.result()
        except DIED as exc:
            raise WorkerLost(_reason(exc)) from exc
        except ConnectionError as exc:
            raise WorkersLost(f"the connection to the Ray cluster is lost: {exc}") from exc

    async def stop(self) -> None:
        ray.kill(self._handle)
        if self._calls:
            await asyncio.wait(self._calls, timeout=STOP_SECONDS)

    def _finished(self, call: asyncio.Future[Any]) -> None:
        self._calls.discard(call)
        if not call.cancelled():
            call.exception()  # Retrieved here, because the caller may have been cancelled.


def _reason(exc: Exception) -> str:
    """Return the reason within Ray's long message."""
    match = BECAUSE.search(str(exc))
    return match[1] if match else str(exc).partition("\n")[0].rstrip(".")
