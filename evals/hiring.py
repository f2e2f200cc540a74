"""Workers on other machines: asked for, checked when they come, and asked for again when they are lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console

from ..orchestrator.errors import ConfigurationError, StepspecError, WorkersLost
from ..settings import Settings
from .plan import Plan, Trial
from .remote import about
from .trial import Solved
from .workers import Post, WorkerLost

PATIENCE = 180.0  # seconds without any worker, after which there will be none
LOOK = 1.0  # seconds between looks at whether that is so
PAUSE = 2.0  # seconds before another is asked for
STARTS = 3  # for each post: how many workers may end before they begin, while there is no other
ALIKE = ("python", "stepspec", "code")


class Remote(Protocol):
    """A worker's process elsewhere. All but `dismiss` raise `WorkerLost` when it is gone."""

    async def about(self) -> Mapping[str, str]:
        """Who it is, as soon as there is a place for it: `remote.about`, or what is "missing" for that."""
        ...

    async def enter(self, settings: Settings, plan: Plan) -> StepspecError | None: ...

    async def solve(
        self, trial: Trial, options: Mapping[str, Any], *, traced: bool
    ) -> tuple[Solved | StepspecError, bytes]: ...

    async def dismiss(self) -> None:
        """End it, and what it is at."""
        ...


class Staff:
    """
    So many *workers*, whose processes *ask* begins; *known* is what to record of where they come from.

    A post whose worker is lost waits for another, while the other posts go on. Raise `WorkersLost` if nobody has been
    there for *patience* seconds.
    """

    def __init__(
        self,
        ask: Callable[[], Remote],
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
    async def _there(self, remote: Remote, near: bool) -> AsyncGenerator[dict[str, str]]:
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

    async def _awaited(self, remote: Remote) -> Mapping[str, str]:
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

    remote: Remote
    record: dict[str, str]
    console: Console

    @property
    def name(self) -> str:
        return self.record["name"]

    async def solve(self, trial: Trial, options: Mapping[str, Any], trace_to: Path | None) -> Solved:
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
