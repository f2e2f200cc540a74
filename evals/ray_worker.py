"""
A worker's process on another machine: results and failures are returned as values, so that they can
be sent.
"""

from __future__ import annotations

import importlib.metadata
import platform
from contextlib import AsyncExitStack

from stepspec.api import Solver
from stepspec.orchestrator.errors import StepspecError
from stepspec.orchestrator.solution import Solution
from stepspec.orchestrator.trace import Recorder, Stopwatch, dump
from stepspec.settings import Settings

from . import provenance
from .plan import Plan, Trial
from .runner import LocalWorker, local_worker


def describe_process() -> dict[str, str]:
    """Host and versions of this process; all workers of a run need the same versions."""
    return {
        "host": platform.node(),
        "python": platform.python_version(),
        "stepspec": importlib.metadata.version("stepspec"),
        "commit": provenance.commit() or "",
    }


class WorkerSession:
    """A warmed-up solver in a worker's process. It stays open as long as the process lives."""

    def __init__(self) -> None:
        self.stack = AsyncExitStack()
        self._worker: LocalWorker | None = None

    async def enter(self, settings: Settings, plan: Plan) -> StepspecError | None:
        """Connect to the servers and warm up; return the error if that fails, otherwise None."""
        try:
            solver = await self.stack.enter_async_context(Solver(settings))
            solver.require_both()
            self._worker = await self.stack.enter_async_context(local_worker(solver, plan))
        except StepspecError as exc:
            return exc
        return None

    async def solve(
        self,
        trial: Trial,
        traced: bool,
    ) -> tuple[Solution | StepspecError | None, bytes]:
        """
        Solve one problem; return the result or the error, and the trace (empty unless *traced*).
        """
        assert self._worker is not None
        recorder = Recorder(Stopwatch())
        solved: Solution | StepspecError | None
        try:
            solved = await self._worker.observed(trial, recorder)
        except StepspecError as exc:
            solved = exc
        return solved, b"".join(map(dump, recorder.moments)) if traced else b""
