"""What ``stepspec eval`` makes of its flags, before anything is measured."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import orjson
import pytest

from stepspec import Budget, Solver
from stepspec.evals import command
from stepspec.evals.arms import LARGE
from stepspec.evals.benchmarks import find, load
from stepspec.evals.plan import Plan
from stepspec.evals.summary import stand
from stepspec.orchestrator.errors import ConfigurationError
from stepspec.settings import Settings

from .test_summary import ARMS, done

DATA = Path(__file__).parent / "data"
TASKS = tuple(load(find("arithmetic"), limit=40))


class Unconnected:
    """A solver that has settings, and nothing else."""

    settings = Settings.model_validate({"budget": {"tokens": 900, "steps": 50}, "sampling": {"top_p": 0.9, "seed": 5}})


def plan(samples: int = 1, temperature: float | None = None, **budget: Any) -> Plan:
    make = command._plan  # pyright: ignore[reportPrivateUsage]
    return make(cast("Solver", Unconnected()), find("arithmetic"), TASKS, (LARGE,), samples, 3, temperature, budget, 2)


def test_what_is_not_said_comes_from_the_settings() -> None:
    made = plan()
    assert (made.sampling.temperature, made.sampling.top_p) == (0.6, 0.9)
    assert made.budget == Budget(900, 50)
    assert (made.metric, made.seed, made.concurrency, made.repeats) == ("exact", 3, 2, 1)
    said = plan(4, 1.0, tokens=300, seconds=9.0)
    assert (said.sampling.temperature, said.budget, said.repeats) == (1.0, Budget(300, 50, 9.0), 4)


def test_several_samples_at_temperature_0_are_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"--samples 2 at temperature 0 are the same one 2 times"):
        plan(2, 0.0)


def test_a_file_is_a_benchmark_of_its_own_and_a_name_may_have_its_data_elsewhere() -> None:
    chosen = command._chosen  # pyright: ignore[reportPrivateUsage]
    benchmark, path = chosen("mine.jsonl", None)
    assert (benchmark.name, benchmark.metric, path) == ("mine", "math", Path("mine.jsonl"))
    assert chosen("gsm8k", Path("x.parquet")) == (find("gsm8k"), Path("x.parquet"))


def test_halves_share_no_problem_and_leave_none_out(tmp_path: Path) -> None:
    pytest.importorskip("scipy")
    tasks = command._tasks  # pyright: ignore[reportPrivateUsage]
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b"".join(orjson.dumps({"problem": task.problem, "answer": task.answer}) + b"\n" for task in TASKS))
    report, calibration = (tasks(find("arithmetic"), path, 0, None, part) for part in ("report", "calibration"))
    assert {*report, *calibration} == set(tasks(find("arithmetic"), path, 0, None, None))
    assert len(report) + len(calibration) == len(TASKS)
    assert report
    assert calibration
    with pytest.raises(ConfigurationError, match="leave --half out"):
        tasks(find("arithmetic"), None, 0, None, "report")


def test_standings_are_shown_as_a_table_or_as_json(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    standings = stand(done(), ARMS)
    command._show(standings, as_json=True)  # pyright: ignore[reportPrivateUsage]
    (line,) = capfdbinary.readouterr().out.splitlines()
    assert [arm["result"]["name"] for arm in orjson.loads(line)] == [s.result.name for s in standings]
    command._show(standings, as_json=False)  # pyright: ignore[reportPrivateUsage]
    shown = capfdbinary.readouterr().out.decode()
    assert all(s.result.name in shown for s in standings)
    assert "\u2026" not in shown.partition("Brackets")[0]  # nothing is cut off, however narrow the terminal


@pytest.mark.parametrize("name", ["math500", "gsm8k"])
def test_a_benchmark_runs_as_a_module_too(name: str, tmp_path: Path) -> None:
    words = [sys.executable, "-m", f"stepspec.evals.{name}", "--data", str(DATA / f"{name}.jsonl")]
    run = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert (run.returncode, run.stdout) == (2, "")
    assert "error: no small model" in run.stderr
    assert "Traceback" not in run.stderr


def test_the_command_line_does_without_what_only_evals_need() -> None:
    code = "import sys, stepspec.cli; print(*{'datasets', 'math_verify', 'pyarrow', 'sympy'} & set(sys.modules))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert run.stdout.strip() == ""
