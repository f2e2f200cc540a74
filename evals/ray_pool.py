"""Workers on other machines: asked for, checked when they come, and asked for again when they are lost."""

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
from urllib.parse import urlsplit

import ray as _ray
from ray import exceptions
from rich.console import Console

from stepspec.orchestrator.errors import ConfigurationError, StepspecError, WorkersLost
from stepspec.settings import Settings

from .plan import Plan, Trial
from .ray_worker import about
from .runner import Post, WorkerLost
from .sample import SolvedTask

PATIENCE = 180.0  # seconds without any worker, after which there will be none
LOOK = 1.0  # seconds between looks at whether that is so
PAUSE = 2.0  # seconds before another is asked for
STARTS = 3  # for each post: how many workers may end before they begin, while there is no other
ALIKE = ("python", "stepspec", "code")


class RemoteWorker(Protocol):
    """A worker's process elsewhere. All but `dismiss` raise `WorkerLost` when it is gone."""

    async def about(self) -> Mapping[str, str]:
        """Who it is, as soon as there is a place for it: `remote.about`, or what is "missing" for that."""
        ...

    async def enter(self, settings: Settings, plan: Plan) -> StepspecError | None: ...

    async def solve(
        self, trial: Trial, options: Mapping[str, Any], *, traced: bool
    ) -> tuple[SolvedTask | StepspecError, bytes]: ...

    async def dismiss(self) -> None:
        """End it, and what it is at."""
        ...


class WorkerPool:
    """
    So many *workers*, whose processes *ask* begins; *known* is what to record of where they come from.

    A post whose worker is lost waits for another, while the other posts go on. Raise `WorkersLost` if nobody has been
    there for *patience* seconds.
    """

    def __init__(
        self,
        ask: Callable[[], RemoteWorker],
        workers: int,
        known: Mapping[str, Any],
        console: Console,
        patience: float = PATIENCE,
    ) -> None:
        self._ask, self._workers, self._known, self._console = ask, workers, known, console
        self._patience, self._own = patience, about()
        self._hired: list[dict[str, str]] = []
        self._present = 0  # those who have come, ready or not
        self._ready = 0
        self._alone = 0.0  # since when nobody is there
        self._failures = 0

    def record(self) -> Mapping[str, Any]:
        return {**self._known, "workers": self._workers, "hired": list(self._hired)}

    def posts(self, settings: Settings, plan: Plan, *, near: bool) -> Sequence[Post]:
        self._alone, rules = asyncio.get_running_loop().time(), replace(plan, tasks=())
        return [partial(self._filled, settings.turned(at), rules, near) for at in range(self._workers)]

    @asynccontextmanager
    async def _filled(self, settings: Settings, plan: Plan, near: bool) -> AsyncGenerator[_Hired]:
        while True:
            remote = self._ask()
            try:
                async with self._there(remote, near) as record:
                    if failed := await remote.enter(settings, plan):
                        raise failed
                    self._failures = 0
                    self._ready += 1
                    try:
                        yield _Hired(remote, record, self._console)
                        return
                    finally:
                        self._ready -= 1
            except WorkerLost as lost:
                self._missed(lost)
            finally:
                await remote.dismiss()
            await asyncio.sleep(PAUSE)

    @asynccontextmanager
    async def _there(self, remote: RemoteWorker, near: bool) -> AsyncGenerator[dict[str, str]]:
        """Wait until the worker is there, and check that it is the right one."""
        told = await self._awaited(remote)
        self._check(told, near)
        name = f"worker {len(self._hired) + 1} on {told['host']}"
        record = {"name": name, **{key: told[key] for key in ("host", "node") if key in told}}
        self._hired.append(record)
        self._present += 1
        try:
            yield record
        finally:
            self._present -= 1
            self._alone = asyncio.get_running_loop().time()

    async def _awaited(self, remote: RemoteWorker) -> Mapping[str, str]:
        telling = asyncio.create_task(remote.about())
        try:
            while not (await asyncio.wait([telling], timeout=LOOK))[0]:
                self._be_patient()
            return telling.result()
        finally:
            telling.cancel()
            await asyncio.wait([telling])

    def _be_patient(self) -> None:
        if self._present or asyncio.get_running_loop().time() - self._alone < self._patience:
            return
        raise WorkersLost(
            f"no worker for {self._patience:.0f} s: the cluster has no CPU free for one, or its machines are gone; "
            "`ray status` says which"
        )

    def _missed(self, lost: WorkerLost) -> None:
        """Note a worker who ended before it could begin."""
        self._failures += 1
        if self._failures >= STARTS * self._workers and not self._ready:
            raise WorkersLost(f"{self._failures} workers ended before they could begin, the last because {lost}")

    def _check(self, told: Mapping[str, str], near: bool) -> None:
        """Raise `ConfigurationError` if a worker would solve in another way, or not reach the servers."""
        host = told["host"]
        if "missing" in told:
            raise ConfigurationError(
                f"the Ray worker on {host} cannot use stepspec ({told['missing']}): install the same stepspec[ray] "
                "there, into the environment that `ray start` runs in"
            )
        for what in ALIKE:
            if told[what] != self._own[what]:
                other = f"{what} {told[what]}, and this machine {self._own[what]}"
                changed = f"another code of stepspec {told['stepspec']} than this machine"
                raise ConfigurationError(
                    f"the Ray worker on {host} has {changed if what == 'code' else other}: install the same on every "
                    "machine, and begin its Ray anew"
                )
        if near and told["network"] != self._own["network"]:
            raise ConfigurationError(
                f"the servers of --testbed listen on this machine's loopback, which the Ray worker on {host} does not "
                "reach: serve the models where every machine reaches them and name them with --small and --large, or "
                "pass --ray local"
            )


def _write(path: Path, trace: bytes) -> None:
    path.write_bytes(trace)


@dataclass(frozen=True, slots=True)
class _Hired:
    """A worker who is there and ready."""

    remote: RemoteWorker
    record: dict[str, str]
    console: Console

    @property
    def name(self) -> str:
        return self.record["name"]

    async def solve(self, trial: Trial, options: Mapping[str, Any], trace_to: Path | None) -> SolvedTask:
        try:
            solved, trace = await self.remote.solve(trial, options, traced=trace_to is not None)
        except WorkerLost as lost:
            self._tell(lost)
            raise
        if trace_to is not None and trace:
            _write(trace_to, trace)
        if isinstance(solved, StepspecError):
            raise solved
        return solved

    def _tell(self, lost: WorkerLost) -> None:
        if "lost" not in self.record:
            self.record["lost"] = str(lost)
            said = f"{self.name} was lost ({lost}): others take what it had, and another worker is asked for"
            self.console.print(said, style="yellow", highlight=False, soft_wrap=True)


ray = cast("Any", _ray)  # parts of its signatures have no types

LOCAL, AUTO, CLIENT = "local", "auto", "ray"
DIED = (exceptions.RayActorError, exceptions.WorkerCrashedError, exceptions.NodeDiedError, exceptions.ObjectLostError)
# No telemetry, no warning about accelerators; and workers of a cluster of our own yield to nobody, who are timed.
ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_worker_niceness": "0",
}
OBJECTS = 100 * 2**20  # bytes of shared memory for a cluster of our own; what is sent is small
CONNECT = 5.0  # seconds for the head of a cluster to accept a connection
QUIET = 30.0  # seconds without an answer, after which a worker is asked whether it lives
LIVING = 60.0  # seconds to answer that
BECAUSE = re.compile(r"because ([^.\n]+)")
CLOSING = 5.0  # seconds for what a dismissed worker was asked to be over


@asynccontextmanager
async def cluster(address: str, workers: int | None, console: Console) -> AsyncGenerator[WorkerPool]:
    """
    Join the Ray cluster at *address*, or begin one, and yield so many *workers* of it: one a node unless told.

    What Ray prints goes nowhere; it has logs of its own. Raise `ConfigurationError` if there is no such cluster.
    """
    os.environ.update(ENVIRONMENT)
    with redirect_stdout(_Nowhere()):
        await _join(address, workers or 1)
        try:
            nodes = [_node(node) for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU", 0) >= 1]
            known = {"address": address, "version": ray.__version__, "nodes": nodes}
            yield WorkerPool(lambda: _Actor(), workers or max(1, len(nodes)), known, console)
        finally:
            ray.shutdown()


class _Nowhere(io.TextIOBase):
    """Takes any text, and does nothing with it."""

    def write(self, text: str) -> int:
        return len(text)


def _node(node: Mapping[str, Any]) -> dict[str, Any]:
    return {"node": node["NodeID"], "host": node["NodeManagerHostname"], "cpus": node["Resources"]["CPU"]}


async def _join(address: str, workers: int) -> None:
    own = {"num_cpus": workers, "object_store_memory": OBJECTS, "include_dashboard": False}
    if address not in (LOCAL, AUTO):
        await _reach(address)
    try:  # In this thread: a cluster of our own ends with the thread that began it.
        ray.init(
            address=address,
            log_to_driver=False,
            logging_level=logging.CRITICAL,
            **(own if address == LOCAL else {}),
        )
    except (ConnectionError, RuntimeError, ValueError) as exc:
        raise ConfigurationError(
            f"cannot join the Ray cluster at {address!r}: {' '.join(str(exc).split())}; every machine of it, and this "
            "one, needs the same versions of Python and Ray"
        ) from exc


async def _reach(address: str) -> None:
    """Raise `ConfigurationError` unless somebody listens at *address*: Ray itself takes minutes to find out."""
    parts = urlsplit(address if "://" in address else f"//{address}")
    try:
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if not host or not port or parts.scheme not in ("", CLIENT):
        raise ConfigurationError(f"--ray {address!r}: it is auto, local, HOST:PORT or ray://HOST:PORT")
    try:
        async with asyncio.timeout(CONNECT):
            _, writer = await asyncio.open_connection(host, port)
            writer.close()
    except (OSError, TimeoutError) as exc:
        raise ConfigurationError(
            f"nothing listens at {host}:{port}: begin a cluster with `ray start --head` there, and `ray start "
            "--address=HOST:PORT` on the other machines"
        ) from exc


def _kind() -> type[Any]:
    """The class of the actors: made here, so that it travels as a value and also runs where stepspec is missing."""

    class StepspecWorker:
        async def about(self) -> dict[str, str]:
            import platform

            import ray

            node = {"node": str(ray.get_runtime_context().get_node_id())}
            try:
                from . import ray_worker
            except ImportError as exc:
                return {"host": platform.node(), "missing": str(exc), **node}
            return {**ray_worker.about(), **node}

        async def enter(self, settings: Any, plan: Any) -> Any:
            from contextlib import AsyncExitStack

            from .ray_worker import Room

            self._room = Room(AsyncExitStack())
            return await self._room.enter(settings, plan)

        async def solve(self, trial: Any, options: Any, traced: bool) -> Any:
            return await self._room.solve(trial, options, traced=traced)

        async def alive(self) -> None:
            pass

    return StepspecWorker


class _Actor:
    """An actor, which begins as soon as a node has a CPU for it, and is not begun again by Ray."""

    def __init__(self) -> None:
        options = {"num_cpus": 1, "max_restarts": 0, "max_task_retries": 0, "scheduling_strategy": "SPREAD"}
        self._handle = ray.remote(_kind()).options(**options).remote()
        self._asked: set[asyncio.Future[Any]] = set()

    async def about(self) -> Mapping[str, str]:
        return cast("Mapping[str, str]", await self._told(self._ask("about")))

    async def enter(self, settings: Settings, plan: Plan) -> StepspecError | None:
        return cast("StepspecError | None", await self._alive(self._ask("enter", settings, plan)))

    async def solve(
        self, trial: Trial, options: Mapping[str, Any], *, traced: bool
    ) -> tuple[SolvedTask | StepspecError, bytes]:
        answer = await self._alive(self._ask("solve", trial, options, traced))
        return cast("tuple[SolvedTask | StepspecError, bytes]", answer)

    async def dismiss(self) -> None:
        ray.kill(self._handle)
        if self._asked:
            await asyncio.wait(self._asked, timeout=CLOSING)

    def _ask(self, method: str, *arguments: Any) -> asyncio.Future[Any]:
        asked = asyncio.wrap_future(getattr(self._handle, method).remote(*arguments).future())
        self._asked.add(asked)
        asked.add_done_callback(self._over)
        return asked

    def _over(self, asked: asyncio.Future[Any]) -> None:
        self._asked.discard(asked)
        if not asked.cancelled():
            asked.exception()  # Whoever was to hear of it may be gone.

    async def _alive(self, asked: asyncio.Future[Any]) -> Any:
        """Wait for an answer as long as the worker shows that it lives: a network may be gone without a word."""
        while not (await asyncio.wait([asked], timeout=QUIET))[0]:
            if not (await asyncio.wait([asked, self._ask("alive")], timeout=LIVING, return_when="FIRST_COMPLETED"))[0]:
                raise WorkerLost(f"it has not answered for {LIVING:.0f} s")
        return await self._told(asked)

    async def _told(self, asked: asyncio.Future[Any]) -> Any:
        try:
            await asyncio.wait([asked])  # which, other than to await it, leaves it alone when we are cancelled
            return asked.result()
        except DIED as exc:
            raise WorkerLost(_why(exc)) from exc
        except ConnectionError as exc:
            raise WorkersLost(f"the connection to the Ray cluster is lost: {exc}") from exc


def _why(exc: Exception) -> str:
    """The reason in what Ray tells at length."""
    said = BECAUSE.search(str(exc))
    return said[1] if said else str(exc).partition("\n")[0].rstrip(".")
