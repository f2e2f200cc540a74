"""``stepspec tune`` on real servers: it agrees with what runs measure, and `solve` honours it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import orjson
import pytest

from stepspec.evals.testbed.solving_pair import fresh_tasks

from .conftest import Pair

pytestmark = [pytest.mark.servers, pytest.mark.timeout(600)]

GREEDY = {"STEPSPEC_SAMPLING__TEMPERATURE": "0"}
MINUTES = 1.5


def stepspec(*words: str) -> subprocess.CompletedProcess[str]:
    command = (sys.executable, "-m", "stepspec", *words)
    return subprocess.run(
        command, env={**os.environ, **GREEDY}, capture_output=True, text=True, timeout=400
    )


def test_a_method_is_found_and_its_settings_solve(paced_pair: Pair, tmp_path: Path) -> None:
    urls = ("--small", paced_pair.small.base_url, "--large", paced_pair.large.base_url)
    tasks = fresh_tasks(9, 23)
    problems = tmp_path / "problems.jsonl"
    rows = [orjson.dumps({"question": task.problem}).decode() for task in tasks[:8]]
    problems.write_text("\n".join(rows))
    toml = tmp_path / "settings.toml"
    options = ["--problems", str(problems), "--users", "2", "--minutes", str(MINUTES)]
    options += ["-p", "reading", "-p", "random:p=1", "-p", "specreason"]
    done = stepspec("tune", *urls, *options, "-o", str(toml), "--json")
    assert done.returncode in (0, 1, 2), done.stderr
    found = orjson.loads(done.stdout)
    assert ["pays", "does not pay", "not known"][done.returncode] == found["verdict"]
    assert found["headline"] in toml.read_text().replace("\n# ", " ")
    methods = {each["policy"]: each for each in found["methods"]}
    assert set(methods) == {"reading", "random", "specreason"}
    assert methods["random"]["accepted"]["value"] == 1
    assert 0.3 < methods["reading"]["accepted"]["value"] < 1
    # in so short a time, the errors that would call the control careless may be too few
    assert methods["random"]["errors"] is None or methods["random"]["careless"]
    assert not methods["reading"]["careless"]
    assert found["best"] is not None
    last = tasks[8]
    solved = stepspec("solve", last.problem, *urls, "--config", str(toml))
    assert (solved.returncode, solved.stdout.strip()) == (0, str(last.gold)), solved.stderr
