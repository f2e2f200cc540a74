"""``stepspec calibrate`` on real servers: the policy file that it writes is one that `solve` runs with."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from stepspec.evals.benchmarks import find

from .conftest import Pair

pytestmark = [pytest.mark.servers, pytest.mark.timeout(600)]

GREEDY = {"STEPSPEC_SAMPLING__TEMPERATURE": "0"}


def stepspec(folder: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = (sys.executable, "-m", "stepspec", *words)
    env = {**os.environ, **GREEDY, **environment}
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=300)


def test_the_threshold_that_is_found_is_one_to_solve_with(pair: Pair, tmp_path: Path) -> None:
    urls = ("--small", pair.small.base_url, "--large", pair.large.base_url)
    arguments = ("calibrate", "arithmetic", *urls, "--limit", "40", "--max-loss", "0.3", "--values", "9,7,0")
    done = stepspec(tmp_path, *arguments)
    assert done.returncode == 0, done.stderr
    assert "loses at most 30.0% of such problems to the large model alone, at 95% confidence" in " ".join(
        done.stdout.split()
    )
    found = tomllib.loads((tmp_path / "policy.toml").read_text())
    assert found["options"] == {"threshold": 7.0}, "at 0 everything is accepted, and the small model fails four in ten"
    assert found["calibration"]["problems"] == 40

    (task,) = find("arithmetic").made(5, 1)  # type: ignore[misc]
    config = str(tmp_path / "policy.toml")
    solved = stepspec(tmp_path, "solve", task.problem, *urls, STEPSPEC_CONFIG=config)
    assert (solved.returncode, solved.stdout.strip()) == (0, str(task.gold)), solved.stderr


def test_a_sample_that_is_too_small_promises_nothing(pair: Pair, tmp_path: Path) -> None:
    urls = ("--small", pair.small.base_url, "--large", pair.large.base_url)
    done = stepspec(tmp_path, "calibrate", "arithmetic", *urls, "--limit", "6", "--max-loss", "0.01")
    assert done.returncode == 1
    assert "it takes 390 even if none is lost" in " ".join(done.stderr.split())
    assert "can be promised" in done.stdout
    assert not (tmp_path / "policy.toml").exists()
