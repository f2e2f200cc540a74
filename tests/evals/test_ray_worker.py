"""The process of a worker: its description, and its results."""

from __future__ import annotations

import pickle
import platform
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from stepspec import Solution
from stepspec.cli.eval import arms
from stepspec.evals import provenance
from stepspec.evals.grading.graders import Answer
from stepspec.evals.plan import Plan, Trial, trials
from stepspec.evals.ray_worker import WorkerSession, describe_process
from stepspec.evals.sample import Task
from stepspec.orchestrator.budget import Budget
from stepspec.orchestrator.endpoints import GREEDY
from stepspec.orchestrator.errors import EndpointError, EndpointUnavailable
from stepspec.orchestrator.trace import read
from stepspec.settings import Settings
from tests.fakes import replay

from ..stand_in import FakeVllm, Refuse

SCRIPT = ("So", " one", ".\n\n", "Then", " two", ".\n\n", "Done", "</think>", "\n\n\\boxed{2}")
PLAN = Plan(
    (Task("What is 1 + 1?", Answer("2", "exact")),),
    arms(["specreason"], ["large"]),
    GREEDY,
    Budget(tokens=256),
)


@asynccontextmanager
async def served() -> AsyncGenerator[tuple[Settings, FakeVllm]]:
    small = FakeVllm(SCRIPT, digits={"9": -0.1})
    large = replace(small, requests=[])
    async with small.serve("small") as s, large.serve("large", retries=0) as one:
        yield Settings.model_validate({"small": s, "large": one}), large


def specreason() -> Trial:
    return next(trial for trial in trials(PLAN) if trial.arm.name == "specreason")


async def test_a_worker_solves_with_the_settings_it_is_sent_and_sends_the_trace_along(
    tmp_path: Path,
) -> None:
    room = WorkerSession()
    async with served() as (settings, large), room.stack:
        assert await room.enter(pickle.loads(pickle.dumps(settings)), PLAN) is None
        warmed = len(large.requests)
        assert warmed > 1
        solved, trace = await room.solve(specreason(), True)
        assert len(large.requests) > warmed
        again, nothing = await room.solve(specreason(), False)
    assert isinstance(solved, Solution)
    assert isinstance(again, Solution)
    assert pickle.loads(pickle.dumps(solved)) == solved
    assert again.answer == solved.answer == "2"
    (tmp_path / "trace").write_bytes(trace)
    assert replay(moment.event for moment in read(tmp_path / "trace")).text.endswith(r"\boxed{2}")
    assert nothing == b""


async def test_an_error_of_an_endpoint_is_sent_back_with_the_trace_of_the_failed_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # the worker waits for no server to come back
    monkeypatch.setattr("stepspec.api.OUTAGE_SECONDS", 0.0)
    room = WorkerSession()
    async with served() as (settings, large), room.stack:
        await room.enter(settings, PLAN)
        large.faults.extend([Refuse(500, "dead")] * 9)
        failed, trace = await room.solve(specreason(), True)
        assert trace
        large.faults.extend([Refuse(500, "dead")] * 9)
        other = WorkerSession()
        async with other.stack:
            unable = await other.enter(settings, PLAN)
    for error in (failed, unable):
        assert isinstance(error, EndpointUnavailable)
        sent = pickle.loads(pickle.dumps(error))
        assert isinstance(sent, EndpointError)
        assert (type(sent), str(sent)) == (type(error), str(error))
        assert (sent.role, sent.url, sent.cause) == (error.role, error.url, error.cause)


def test_a_worker_describes_its_process_and_imports_no_packages_that_only_the_command_needs() -> (
    None
):
    described = describe_process()
    assert (described["host"], described["python"], described["commit"]) == (
        platform.node(),
        platform.python_version(),
        provenance.commit(),
    )
    extras = "{'datasets', 'latex2sympy2_extended', 'numpy', 'ray', 'scipy', 'sympy', 'torch'}"
    lines = (
        f"import sys; from stepspec.evals.ray_worker import *; print(describe_process(), {extras} &"
        " set(sys.modules))"
    )
    run = subprocess.run(
        [sys.executable, "-c", lines], capture_output=True, text=True, check=True, timeout=120
    )
    assert run.stdout.strip() == f"{described} set()"


def test_an_actor_reports_a_missing_stepspec() -> None:
    cloudpickle = pytest.importorskip("ray").cloudpickle
    from stepspec.evals import ray_pool

    actor = cloudpickle.dumps(ray_pool._actor_class())  # pyright: ignore[reportPrivateUsage]
    there = """if True:
        import asyncio, sys, types
        from ray import cloudpickle
        import ray
        sys.modules["stepspec"] = None
        ray.get_runtime_context = lambda: types.SimpleNamespace(get_node_id=lambda: "n1")
        described = asyncio.run(cloudpickle.loads(sys.stdin.buffer.read())().describe())
        print(described["node"], described["missing"])
    """
    run = subprocess.run(
        [sys.executable, "-c", there], input=actor, capture_output=True, check=True, timeout=120
    )
    assert run.stdout.decode().startswith("n1 No module named 'stepspec")
