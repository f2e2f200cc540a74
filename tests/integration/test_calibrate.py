"""``stepspec calibrate`` on real servers; the tutorial's test finds a threshold, and serves with it."""

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


def test_a_sample_that_is_too_small_promises_nothing(pair: Pair, tmp_path: Path) -> None:
    urls = ("--small", pair.small.base_url, "--large", pair.large.base_url)
    done = stepspec(tmp_path, "calibrate", "arithmetic", *urls, "--limit", "6", "--max-loss", "0.01", "--values", "7")
    assert done.returncode == 1
    assert "it takes 390 even if none is lost" in " ".join(done.stderr.split())
    assert "can be promised" in done.stdout
    assert not (tmp_path / "policy.toml").exists()
