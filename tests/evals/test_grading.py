"""Grading by algebra: right where it is right, and no expression takes anything down but itself."""

from __future__ import annotations

import asyncio
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest

from stepspec.evals.benchmarks import find, load
from stepspec.evals.grading import graders as graders_module
from stepspec.evals.grading.__main__ import agreement
from stepspec.evals.grading.answers import Metric
from stepspec.evals.grading.graders import LIBRARY, SCRIPT, Answer, Graders, require
from stepspec.evals.sample import Task
from stepspec.orchestrator.errors import ConfigurationError
from stepspec.orchestrator.installation import install_command

from .known_answers import BOXED, WHOLE

pytest.importorskip(LIBRARY)

DATA = Path(__file__).parent / "data"
ENDLESS = r"9^{9^{9^{9}}}"  # which nobody has ever written down
DEADLINE = 120  # seconds, after which a test has failed


def known_grades() -> Iterator[tuple[str, str, Metric, str]]:
    for rows, template in ((BOXED, r"\boxed{%s}"), (WHOLE, "%s")):
        for metric, gold, right, wrong in rows:
            for text in right:
                yield template % text, gold, metric, "right"
            for text in wrong:
                yield template % text, gold, metric, "wrong"


async def test_answers_are_right_that_mean_the_same_and_no_others() -> None:
    known = list(known_grades())
    async with Graders(2) as graders:
        grades = await asyncio.gather(*(graders.grade(text, gold, metric) for text, gold, metric, _ in known))
    assert [(case, grade) for case, grade in zip(known, grades, strict=True) if grade != case[-1]] == []


async def test_an_endless_expression_costs_its_own_sample_and_nothing_else() -> None:
    async with Graders(1, seconds=1) as graders:
        answers = [r"\boxed{0.5}", rf"\boxed{{{ENDLESS}}}", r"\boxed{\frac{2}{4}}"]
        async with asyncio.timeout(DEADLINE):
            grades = await asyncio.gather(*(graders.grade(text, r"\frac{1}{2}", "math") for text in answers))
    assert grades == ["right", "ungraded", "right"]


async def test_a_grader_that_dies_costs_one_sample() -> None:
    async with Graders(1) as graders:
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


async def test_a_grader_that_neither_computes_nor_answers_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    mute = "import sys, time; print('ready', flush=True); time.sleep(3600)"
    monkeypatch.setattr(graders_module, "SCRIPT", (sys.executable, "-c", mute))
    async with asyncio.timeout(DEADLINE), Graders(1, seconds=0.01) as graders:
        assert await graders.grade(r"\boxed{\sqrt{4}}", "2", "math") == "ungraded"


@pytest.mark.parametrize("reply", ["'Warning: what is this?'", "3", "'x' * 200_000", "'{'"])
async def test_an_invalid_reply_of_a_grader_costs_one_sample(reply: str, monkeypatch: pytest.MonkeyPatch) -> None:
    odd = f"print('ready', flush=True); input(); print({reply}, flush=True); input()"
    monkeypatch.setattr(graders_module, "SCRIPT", (sys.executable, "-c", odd))
    async with asyncio.timeout(DEADLINE), Graders(1) as graders:
        assert await graders.grade(r"\boxed{\sqrt{4}}", "2", "math") == "ungraded"
        monkeypatch.setattr(graders_module, "SCRIPT", SCRIPT)
        assert await graders.grade(r"\boxed{\sqrt{4}}", "2", "math") == "right"


@pytest.mark.parametrize("metric", ["number", "math"])
async def test_a_number_without_an_end_costs_its_sample_at_most(metric: Metric) -> None:
    async with asyncio.timeout(DEADLINE), Graders(1) as graders:
        for answer in ("7" * 5000, f"1/{'3' * 5000}", f"0.{'1' * 5000}"):
            assert await graders.grade(rf"\boxed{{{answer}}}", "7", metric) in ("wrong", "ungraded")
            assert await graders.grade(rf"\boxed{{{answer}}}", answer, metric) == "right"
        assert await graders.grade(r"\boxed{\sqrt{4}}", "2", metric) == "right"


@pytest.mark.parametrize("script", [(sys.executable, "-c", "raise SystemExit('broken')"), ("/no/such/python",)])
async def test_a_grader_that_does_not_start_is_an_error(
    script: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graders_module, "SCRIPT", script)
    async with Graders(1) as graders:
        with pytest.raises(ConfigurationError, match="the grader does not start"):
            await graders.grade(r"\boxed{\sqrt{4}}", "2", "math")


@pytest.mark.parametrize("name", ["math500", "gsm8k", "arithmetic"])
async def test_a_benchmarks_own_solutions_are_right_and_those_of_others_are_not(name: str) -> None:
    benchmark, path = find(name), DATA / f"{name}.jsonl"
    tasks = load(benchmark, path if path.exists() else None, limit=5)
    found = await agreement(tasks, workers=1, seconds=DEADLINE)
    assert found.agreed == len(tasks)
    assert found.exceptions() == found.mistaken() == []


async def test_disagreements_are_listed_with_the_reason() -> None:
    tasks = load(find("math500"), DATA / "math500.jsonl")
    wrong = [*tasks[:2], Task("", Answer("(-2,3)"), "own/3", tasks[2].reference)]
    found = await agreement(wrong, workers=1, seconds=DEADLINE)
    assert found.exceptions() == ["own/3: the solution gives '(-2,2)', the answer is '(-2,3)'"]


def check(*arguments: str) -> tuple[int, list[str]]:
    """Run the command; return its exit code and what it printed."""
    words = [sys.executable, "-m", "stepspec.evals.grading", *arguments]
    run = subprocess.run(words, capture_output=True, text=True, timeout=DEADLINE)
    assert "Traceback" not in run.stderr
    return run.returncode, (run.stdout or run.stderr).splitlines()


def test_the_command_prints_the_agreement_also_with_swapped_answers() -> None:
    code, printed = check("math500", "--data", str(DATA / "math500.jsonl"), "--workers", "1")
    assert code == 0
    assert printed[0].startswith("3 of 3 solutions agree with the answer, in ")
    assert printed[1:] == ["against the next problem's answer: 0 agree, of which 0 have the same answer"]


def test_the_command_lists_the_exceptions_and_fails(tmp_path: Path) -> None:
    path = tmp_path / "wrong.jsonl"
    path.write_bytes((DATA / "math500.jsonl").read_bytes().replace(b'"answer": "(-2,2)"', b'"answer": "(-2,3)"'))
    code, printed = check("math500", "--data", str(path), "--workers", "1")
    assert code == 1
    assert printed[0].startswith("2 of 3 solutions agree")
    assert printed[1] == "  own/3: the solution gives '(-2,2)', the answer is '(-2,3)'"


def test_the_command_needs_solutions_to_compare(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"question": "q", "answer": "1"}\n')
    code, printed = check("amc23", "--data", str(path))
    assert code == 2
    assert printed[-1] == "error: amc23 comes without worked solutions: there is nothing to compare"


def test_a_missing_library_is_named_with_the_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graders_module, "LIBRARY", "no_such_library")
    require("exact")
    with pytest.raises(ConfigurationError, match=re.escape(f"needs math-verify: {install_command('evals')}")):
        require("math")
