"""
Run the tests of one module's mutants, each in a fork of a process that has imported everything but stepspec.

Most of a mutant's time is imports otherwise. Started by ``tests/mutate.py`` in the copy that is mutated.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import aiohttp
import hypothesis
import openai
import orjson
import pydantic_settings
import pytest
import rich.progress
import tenacity
import typer

# Installed beside the copy only.
mutating: Any = import_module("cosmic_ray.mutating")
work_db: Any = import_module("cosmic_ray.work_db")
work_item: Any = import_module("cosmic_ray.work_item")

PRELOADED = (aiohttp, hypothesis, openai, orjson, pydantic_settings, pytest, rich.progress, tenacity, typer)

PRELOADED_WARNING = "ignore::pytest.PytestAssertRewriteWarning"  # hypothesis is there already
OPTIONS = ("-x", "-q", "-p", "no:cacheprovider", "-W", PRELOADED_WARNING)


def run_forked(tests: str, seconds: float) -> tuple[Any, str]:
    """Run *tests* in a fork, which is killed after so many *seconds*: an endless loop is noticed, too."""
    child = os.fork()
    if child == 0:
        os.setsid()
        nowhere = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(nowhere, stream)
        os._exit(int(pytest.main([*OPTIONS, *tests.split()])))
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            passed = os.waitstatus_to_exitcode(status) == 0
            return (work_item.TestOutcome.SURVIVED if passed else work_item.TestOutcome.KILLED), ""
        time.sleep(0.02)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return work_item.TestOutcome.KILLED, "timeout"


def main(session: Path, tests: str) -> None:
    outcome, _ = run_forked(tests, 600.0)
    if outcome is not work_item.TestOutcome.SURVIVED:
        sys.exit(f"the tests fail without any mutant: {tests}")
    mutating.run_tests = run_forked
    with work_db.use_db(session, work_db.WorkDB.Mode.open) as work:
        for item in list(work.pending_work_items):
            work.set_result(item.job_id, mutating.mutate_and_test(item.mutations, tests, 120.0))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
