"""
Run the tests of one module's mutants, each in a fork of a process that has imported everything but
stepspec.

Most of a mutant's time is imports otherwise. Started by ``tests.mutate`` in the copy that is
mutated. A semicolon divides the tests: the slow ones after it run only for the mutants that pass
the others.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
import time
from importlib import import_module
from math import ceil
from pathlib import Path
from typing import Any

import aiohttp
import hypothesis
import openai
import orjson
import pydantic_settings
import pytest
import pytest_asyncio.plugin
import rich.progress
import tenacity
import typer

# Installed in the environment of the copy only.
mutating: Any = import_module("cosmic_ray.mutating")
work_db: Any = import_module("cosmic_ray.work_db")
work_item: Any = import_module("cosmic_ray.work_item")

PRELOADED = (
    aiohttp,
    hypothesis,
    openai,
    orjson,
    pydantic_settings,
    pytest,
    rich.progress,
    tenacity,
    typer,
)
# The others, which every fork would load again, take longer than most tests.
PLUGINS = ("-ppytest_timeout", f"-p{pytest_asyncio.plugin.__name__}")
SURVIVED = work_item.TestOutcome.SURVIVED
DEADLINE = 600.0  # seconds
LIMIT = 300.0  # seconds of one core, for the tests of the code without any mutant
PRELOADED_WARNING = "ignore::pytest.PytestAssertRewriteWarning"  # hypothesis is there already
OPTIONS = ("-x", "-q", "-p", "no:cacheprovider", "--timeout=30", "-W", PRELOADED_WARNING, *PLUGINS)


def processor_seconds() -> float:
    """Return the processor's time that the forks which have ended took."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def run_forked(tests: str, seconds: float, limit: float) -> tuple[Any, str]:
    """
    Run *tests* in a fork, which is killed after so many *seconds*, or *limit* seconds of the
    processor's time.

    The limit ends an endless loop, and is the same however busy the machine is.
    """
    child = os.fork()
    if child == 0:
        os.setsid()
        resource.setrlimit(resource.RLIMIT_CPU, (ceil(limit), ceil(limit)))
        nowhere = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(nowhere, stream)
        code = 1
        try:
            code = int(pytest.main([*OPTIONS, *tests.split()]))
        finally:  # After an error of pytest, this process must not continue the parent's loop.
            os._exit(code)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            passed = os.waitstatus_to_exitcode(status) == 0
            return (SURVIVED if passed else work_item.TestOutcome.KILLED), ""
        time.sleep(0.02)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return work_item.TestOutcome.KILLED, "timeout"


def main(session: Path, tests: str, every: int) -> None:
    limits: dict[str, float] = {}
    for part in tests.split(";"):
        before = processor_seconds()
        outcome, _ = run_forked(part, DEADLINE, LIMIT)
        if outcome is not SURVIVED:
            sys.exit(f"the tests fail without any mutant: {part}")
        limits[part] = 3 + 2 * (processor_seconds() - before)

    def run_parts(tests: str, seconds: float) -> tuple[Any, str]:
        outcome = SURVIVED, ""
        for part, limit in limits.items():
            if outcome[0] is SURVIVED:
                outcome = run_forked(part, seconds, limit)
        return outcome

    mutating.run_tests = run_parts
    with work_db.use_db(session, work_db.WorkDB.Mode.open) as work:
        survived = [
            item for item, result in work.completed_work_items if result.test_outcome == SURVIVED
        ]
        pending = sorted(work.pending_work_items, key=lambda item: item.mutations[0].start_pos)
        for item in [*pending[::every], *survived]:
            work.set_result(item.job_id, mutating.mutate_and_test(item.mutations, tests, DEADLINE))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
