"""Grading by algebra: right where it is right, and no expression takes anything down but itself."""

from __future__ import annotations

import asyncio
import os
import pickle
import re
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any, cast

import pytest
from anyio import to_process
from anyio.abc import Process

from stepspec.evals.grading import graders as graders_module
from stepspec.evals.grading.answers import Metric
from stepspec.evals.grading.graders import LIBRARY, Answer, Graders, Mark, require_graders
from stepspec.evals.grading.worker import compare
from stepspec.orchestrator.errors import ConfigurationError, install_command

# Its import takes seconds, and only the graders' processes need it.
if find_spec(LIBRARY) is None:
    pytest.skip(f"there is no {LIBRARY}", allow_module_level=True)

ANSWERS = Path(__file__).with_name("data") / "answers.txt"
ENDLESS = r"9^{9^{9^{9}}}"  # which nobody has ever written down
DEADLINE = 120  # seconds, after which a test has failed


def known_grades() -> Iterator[tuple[str, str, str, str]]:
    """
    The texts of the file, each with its true answer, its metric and its grade.

    A line with a place, a metric and a true answer goes before the lines of its texts, which have
    their grade: right or wrong. The place says whether they stand in a box or are whole texts. ⏎ is
    the end of a line.
    """
    place = metric = gold = ""
    for line in ANSWERS.read_text("utf-8").split("\n")[:-1]:
        first, *rest = line.replace("⏎", "\n").split("\t")
        if first in ("box", "text"):
            place = first
            (metric, gold) = rest
        else:
            yield rf"\boxed{{{rest[0]}}}" if place == "box" else rest[0], gold, metric, first


def grader_process() -> Process:
    """The process of the only grader."""
    (process,) = to_process._process_pool_workers.get()  # pyright: ignore[reportPrivateUsage]
    return process


def dies(*_: object) -> bool:
    os._exit(1)


def waits(*_: object) -> bool:
    time.sleep(3600)
    return True


def nests_too_deeply(*_: object) -> bool:
    raise RecursionError


def misses_a_library(*_: object) -> bool:
    raise ImportError("there is no antlr4")


async def test_answers_are_right_that_mean_the_same_and_no_others() -> None:
    known = list(known_grades())
    graders = Graders(2)
    grades = await asyncio.gather(
        *(
            Answer(gold, cast("Metric", metric)).grade(text, graders)
            for text, gold, metric, _ in known
        )
    )
    assert [
        (case, grade) for case, grade in zip(known, grades, strict=True) if grade != case[-1]
    ] == []


async def test_an_endless_expression_and_a_grader_that_dies_cost_one_sample(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    graders = Graders(1, seconds=1)
    answers = [r"\boxed{0.5}", rf"\boxed{{{ENDLESS}}}", r"\boxed{\frac{2}{4}}"]
    async with asyncio.timeout(DEADLINE):
        grades = await asyncio.gather(
            *(graders.grade(text, r"\frac{1}{2}", "math") for text in answers)
        )
        assert grades == ["right", "ungraded", "right"]
        with monkeypatch.context() as patch:
            patch.setattr(graders_module, "compare", dies)
            assert await graders.compare("0.5 + 0", r"\frac{1}{2}") == "ungraded"
        assert await graders.compare("0.5 + 0", r"\frac{1}{2}") == "right"
        process = grader_process()
        process.kill()
        await process.wait()
        assert await graders.compare("0.5 + 0", r"\frac{1}{2}") == "right"


async def test_cancelling_a_grade_leaves_no_busy_process() -> None:
    graders = Graders(1, seconds=DEADLINE)
    assert await graders.compare("1 + 0", "2") == "wrong"
    process = grader_process()
    grading = asyncio.create_task(graders.compare(ENDLESS, "7"))
    await asyncio.wait([grading], timeout=0.5)
    assert not grading.done()
    grading.cancel()
    await asyncio.wait([grading], timeout=DEADLINE)
    assert grading.cancelled()
    assert process.returncode == -signal.SIGKILL
    assert await graders.compare("0.5 + 0", r"\frac{1}{2}") == "right"


async def test_the_event_loop_runs_while_an_answer_is_compared() -> None:
    graders = Graders(1, seconds=DEADLINE)
    assert await graders.compare("1 + 0", "2") == "wrong"
    grading = asyncio.create_task(graders.compare(ENDLESS, "7"))
    began = time.monotonic()
    for _ in range(100):
        await asyncio.sleep(0.001)
    assert not grading.done()
    assert time.monotonic() - began < DEADLINE / 10
    grading.cancel()
    await asyncio.wait([grading], timeout=DEADLINE)


async def test_a_grader_without_a_parent_stops_itself() -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "anyio.to_process",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    request = pickle.dumps(("run", compare, (ENDLESS, "7", 0.5)))
    async with asyncio.timeout(DEADLINE):
        await process.communicate(request)
    assert process.returncode == -signal.SIGPROF


async def test_a_grader_that_neither_computes_nor_answers_is_killed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(graders_module, "compare", waits)
    monkeypatch.setattr(graders_module, "WALL_FACTOR", 3.0)
    async with asyncio.timeout(DEADLINE):
        assert await Graders(1, seconds=1).grade(r"\boxed{\sqrt{4}}", "2", "math") == "ungraded"


async def test_an_answer_that_nests_too_deeply_costs_one_sample(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nested = "1"
    for _ in range(2000):
        nested = f"({nested},1)"
    graders = Graders(1)
    async with asyncio.timeout(DEADLINE):
        assert await graders.compare(nested, nested.replace("1", "2")) in ("wrong", "ungraded")
        with monkeypatch.context() as patch:
            patch.setattr(graders_module, "compare", nests_too_deeply)
            assert await graders.compare(nested, "7") == "ungraded"
        assert await graders.compare(r"\sqrt{4}", "2") == "right"


async def test_a_number_without_an_end_costs_its_sample_at_most() -> None:
    metrics: tuple[Metric, ...] = ("number", "math")
    graders = Graders(1)
    async with asyncio.timeout(DEADLINE):
        for metric, answer in product(metrics, ("7" * 5000, f"1/{'3' * 5000}", f"0.{'1' * 5000}")):
            assert await graders.grade(rf"\boxed{{{answer}}}", "7", metric) in ("wrong", "ungraded")
            assert await graders.grade(rf"\boxed{{{answer}}}", answer, metric) == "right"
        assert await graders.grade(r"\boxed{\sqrt{4}}", "2", "number") == "right"


@pytest.mark.parametrize("executable", ["/bin/false", "/no/such/python"])
async def test_a_grader_that_does_not_start_is_an_error(
    executable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", executable)
    with pytest.raises(
        ConfigurationError,
        match=rf"the grader does not start.*: {executable} -m anyio.to_process says why",
    ):
        await Graders(1).grade(r"\boxed{\sqrt{4}}", "2", "math")


async def test_a_library_that_does_not_load_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graders_module, "compare", misses_a_library)
    with pytest.raises(ConfigurationError, match="does not start \\(there is no antlr4\\)"):
        await Graders(1).grade(r"\boxed{\sqrt{4}}", "2", "math")


def test_a_missing_library_is_named_with_the_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graders_module, "LIBRARY", "no_such_library")
    require_graders([Answer("7", "exact")])
    with pytest.raises(
        ConfigurationError, match=re.escape(f"needs no_such_library: {install_command('evals')}")
    ):
        require_graders([Answer("7", "exact"), Answer("7", "math")])


def test_a_gold_of_a_benchmark_says_whether_it_needs_the_library(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Check:
        needs_algebra = True

        async def grade(self, text: str, graders: Graders) -> Mark:
            return await graders.grade(text, "7", "math")

        def record(self) -> Mapping[str, Any]:
            return {"check": 7}

    monkeypatch.setattr(graders_module, "LIBRARY", "no_such_library")
    with pytest.raises(ConfigurationError, match="needs no_such_library"):
        require_graders([Check()])
