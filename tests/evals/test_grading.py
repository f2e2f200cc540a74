"""Grading by algebra: right where it is right, and no expression takes anything down but itself."""

from __future__ import annotations

import asyncio
import re
import signal
import sys
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any, cast

import orjson
import pytest

from stepspec.evals.grading import graders as graders_module
from stepspec.evals.grading.answers import Metric
from stepspec.evals.grading.graders import LIBRARY, SCRIPT, Answer, Graders, Mark, require_graders
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


async def test_answers_are_right_that_mean_the_same_and_no_others() -> None:
    known = list(known_grades())
    async with Graders(2) as graders:
        grades = await asyncio.gather(
            *(
                Answer(gold, cast("Metric", metric)).grade(text, graders)
                for text, gold, metric, _ in known
            )
        )
    assert [
        (case, grade) for case, grade in zip(known, grades, strict=True) if grade != case[-1]
    ] == []


async def test_an_endless_expression_and_a_grader_that_dies_cost_one_sample() -> None:
    async with Graders(1, seconds=1) as graders:
        answers = [r"\boxed{0.5}", rf"\boxed{{{ENDLESS}}}", r"\boxed{\frac{2}{4}}"]
        async with asyncio.timeout(DEADLINE):
            grades = await asyncio.gather(
                *(graders.grade(text, r"\frac{1}{2}", "math") for text in answers)
            )
        assert grades == ["right", "ungraded", "right"]
        assert await graders.algebra(r"\frac{1}{2}", "0.5 + 0") is True
        process = graders._workers[0]._process  # pyright: ignore[reportPrivateUsage]
        assert process is not None
        process.kill()
        await process.wait()
        assert await graders.algebra(r"\frac{1}{2}", "0.5 + 0") is None
        assert await graders.algebra(r"\frac{1}{2}", "0.5 + 0") is True


async def test_cancelling_a_grade_leaves_no_busy_process() -> None:
    async with Graders(1, seconds=DEADLINE) as graders:
        assert await graders.algebra("2", "1 + 0") is False
        process = graders._workers[0]._process  # pyright: ignore[reportPrivateUsage]
        assert process is not None
        grading = asyncio.create_task(graders.algebra("7", ENDLESS))
        await asyncio.sleep(0)
        grading.cancel()
        await asyncio.wait([grading], timeout=DEADLINE)
        assert grading.cancelled()
        assert process.returncode == -signal.SIGKILL
        assert await graders.algebra(r"\frac{1}{2}", "0.5 + 0") is True


async def test_a_grader_without_a_parent_stops_itself() -> None:
    process = await asyncio.create_subprocess_exec(
        *SCRIPT, "0.5", stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    request = orjson.dumps({"gold": "7", "answer": ENDLESS}) + b"\n"
    async with asyncio.timeout(DEADLINE):
        await process.communicate(request)
    assert process.returncode == -signal.SIGPROF


async def test_a_grader_that_neither_computes_nor_answers_is_killed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mute = "import sys, time; print('ready', flush=True); time.sleep(3600)"
    monkeypatch.setattr(graders_module, "SCRIPT", (sys.executable, "-c", mute))
    async with asyncio.timeout(DEADLINE), Graders(1, seconds=0.01) as graders:
        assert await graders.grade(r"\boxed{\sqrt{4}}", "2", "math") == "ungraded"


@pytest.mark.parametrize("reply", ["'Warning: what is this?'", "3", "'x' * 200_000"])
async def test_an_invalid_reply_of_a_grader_costs_one_sample(
    reply: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = f"print('ready', flush=True); input(); print({reply}, flush=True); input()"
    monkeypatch.setattr(graders_module, "SCRIPT", (sys.executable, "-c", odd))
    async with asyncio.timeout(DEADLINE), Graders(1) as graders:
        assert await graders.grade(r"\boxed{\sqrt{4}}", "2", "math") == "ungraded"
        assert graders._workers[0]._process is None  # pyright: ignore[reportPrivateUsage]


async def test_a_number_without_an_end_costs_its_sample_at_most() -> None:
    metrics: tuple[Metric, ...] = ("number", "math")
    async with asyncio.timeout(DEADLINE), Graders(1) as graders:
        for metric, answer in product(metrics, ("7" * 5000, f"1/{'3' * 5000}", f"0.{'1' * 5000}")):
            assert await graders.grade(rf"\boxed{{{answer}}}", "7", metric) in ("wrong", "ungraded")
            assert await graders.grade(rf"\boxed{{{answer}}}", answer, metric) == "right"
        assert await graders.grade(r"\boxed{\sqrt{4}}", "2", "number") == "right"


@pytest.mark.parametrize(
    "script", [(sys.executable, "-c", "raise SystemExit('broken')"), ("/no/such/python",)]
)
async def test_a_grader_that_does_not_start_is_an_error(
    script: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graders_module, "SCRIPT", script)
    async with Graders(1) as graders:
        with pytest.raises(ConfigurationError, match="the grader does not start"):
            await graders.grade(r"\boxed{\sqrt{4}}", "2", "math")


def test_a_missing_library_is_named_with_the_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graders_module, "LIBRARY", "no_such_library")
    require_graders([Answer("7", "exact")])
    with pytest.raises(
        ConfigurationError, match=re.escape(f"needs math-verify: {install_command('evals')}")
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
    with pytest.raises(ConfigurationError, match="needs math-verify"):
        require_graders([Check()])
