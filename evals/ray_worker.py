"""What a worker does in its process on another machine; what it says there arrives as a value, failures included."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack
from hashlib import blake2b
from pathlib import Path
from typing import Any

import stepspec
from stepspec.api import Solver
from stepspec.orchestrator.errors import StepspecError
from stepspec.settings import Settings

from .plan import Plan, Trial
from .runner import LocalWorker, here
from .sample import SolvedTask

CODE = (".py", ".txt", ".toml")  # what decides how a problem is solved: code, prompts, settings that are shipped
BOOT, NETWORK = Path("/proc/sys/kernel/random/boot_id"), Path("/proc/self/ns/net")


def about() -> dict[str, str]:
    """Who this process is: whoever shares samples has to agree in all but the host and the network."""
    return {
        "host": platform.node(),
        "network": _network(),
        "python": platform.python_version(),
        "stepspec": importlib.metadata.version("stepspec"),
        "code": code(),
    }


def code() -> str:
    """A hash of the installed package, for the versions of two clones are seldom different."""
    root, made = Path(stepspec.__file__).parent, blake2b(digest_size=16)
    for path in sorted(_sources(root)):
        made.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes() + b"\0")
    return made.hexdigest()


def _sources(root: Path) -> Iterator[Path]:
    for folder, _, names in os.walk(root, followlinks=True):
        yield from (Path(folder, name) for name in names if name.endswith(CODE))


def _network() -> str:
    """What two processes share that mean the same by 127.0.0.1."""
    try:
        return f"{BOOT.read_text().strip()} {NETWORK.readlink()}"
    except OSError:
        return platform.node()


def _read(path: Path) -> bytes:
    return path.read_bytes() if path.exists() else b""


class Room:
    """Where a worker works: its solver, warmed up, and *open* as long as its process lives."""

    def __init__(self, open: AsyncExitStack) -> None:
        self._open = open
        self._worker: LocalWorker | None = None

    async def enter(self, settings: Settings, plan: Plan) -> StepspecError | None:
        """Connect to the servers, and warm up; return what went wrong."""
        try:
            solver = await self._open.enter_async_context(Solver(settings))
            self._worker = await self._open.enter_async_context(here(solver, plan))
        except StepspecError as exc:
            return exc
        return None

    async def solve(
        self, trial: Trial, options: Mapping[str, Any], *, traced: bool
    ) -> tuple[SolvedTask | StepspecError, bytes]:
        """Solve one problem; return what came of it, and its trace if it is to be *traced*."""
        assert self._worker is not None
        if not traced:
            return await self._solved(self._worker, trial, options, None), b""
        with tempfile.TemporaryDirectory(prefix="stepspec-") as folder:
            path = Path(folder, "trace.jsonl")
            solved = await self._solved(self._worker, trial, options, path)
            return solved, _read(path)

    async def _solved(
        self, worker: LocalWorker, trial: Trial, options: Mapping[str, Any], trace_to: Path | None
    ) -> SolvedTask | StepspecError:
        try:
            return await worker.solve(trial, options, trace_to)
        except StepspecError as exc:
            return exc
