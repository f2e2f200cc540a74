"""
``stepspec estimate`` on real servers: it measures both, and `solve` runs with the settings that it
writes.
"""

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


def stepspec(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = (sys.executable, "-m", "stepspec", *words)
    return subprocess.run(
        command,
        env={**os.environ, **GREEDY, **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_what_is_estimated_of_both_servers_and_the_settings_to_use(
    pair: Pair, tmp_path: Path
) -> None:
    urls = ("--small", pair.small.base_url, "--large", pair.large.base_url)
    tasks, problems, toml = (
        fresh_tasks(7, 23),
        tmp_path / "problems.txt",
        tmp_path / "settings.toml",
    )
    problems.write_text("\n".join(task.problem for task in tasks[:6]))
    options = ("--problems", str(problems), "-p", "specreason", "--users", "4", "--minutes", "0.6")
    done = stepspec("estimate", *urls, *options, "--output", str(toml), "--json")
    assert done.returncode in (0, 1), done.stderr
    found = orjson.loads(done.stdout)
    assert found["pays"] == (done.returncode == 0)
    (method,) = found["methods"]
    assert method["policy"] == "specreason"
    assert 0.3 < method["accepted"]["value"] < 1, (
        "the small model solves six problems in ten, step by step"
    )
    assert method["drafts"] > 6
    assert [each["concurrency"] for each in method["gains"]] == [1, 4]
    assert found["plain"], "the large model's server answers ordinary requests"
    for server in found["servers"].values():
        assert all(times > 0 for seconds in server["between"].values() for times in seconds)
    solved = stepspec("solve", tasks[6].problem, *urls, STEPSPEC_CONFIG=str(toml))
    assert (solved.returncode, solved.stdout.strip()) == (0, str(tasks[6].gold)), solved.stderr
