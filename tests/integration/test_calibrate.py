"""
``stepspec calibrate`` that finds nothing on real servers; the tutorial's test finds a threshold and
serves it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import Pair

pytestmark = [pytest.mark.servers, pytest.mark.timeout(600)]

GREEDY = {"STEPSPEC_SAMPLING__TEMPERATURE": "0"}


def stepspec(folder: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = (sys.executable, "-m", "stepspec", *words)
    env = {**os.environ, **GREEDY, **environment}
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=300)


def test_a_judge_that_accepts_everything_promises_nothing(pair: Pair, tmp_path: Path) -> None:
    urls = ("--small", pair.small.base_url, "--large", pair.large.base_url)
    done = stepspec(
        tmp_path,
        "calibrate",
        "arithmetic",
        *urls,
        "--limit",
        "12",
        "--max-loss",
        "0.3",
        "--values",
        "0",
    )
    assert (done.returncode, "can be promised" in done.stdout) == (1, True), done.stderr
    assert not (tmp_path / "policy.toml").exists()
