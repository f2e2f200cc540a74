"""Workers as actors of a Ray cluster. The only place of the evals that knows Ray."""

from __future__ import annotations

import asyncio
import io
import logging
import os
import re
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, redirect_stdout
from typing import Any, cast
from urllib.parse import urlsplit

import ray as _ray
from ray import exceptions
from rich.console import Console

from ..orchestrator.errors import ConfigurationError, StepspecError, WorkersLost
from ..settings import Settings
from .hiring import Staff
from .plan import Plan, Trial
from .trial import Solved
from .workers import WorkerLost

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
async def cluster(address: str, workers: int | None, console: Console) -> AsyncGenerator[Staff]:
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
            yield Staff(lambda: _Actor(), workers or max(1, len(nodes)), known, console)
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
                from stepspec.evals import remote
            except ImportError as exc:
                return {"host": platform.node(), "missing": str(exc), **node}
            return {**remote.about(), **node}

        async def enter(self, settings: Any, plan: Any) -> Any:
            from contextlib import AsyncExitStack

            from stepspec.evals.remote import Room

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
    ) -> tuple[Solved | StepspecError, bytes]:
        answer = await self._alive(self._ask("solve", trial, options, traced))
        return cast("tuple[Solved | StepspecError, bytes]", answer)

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
