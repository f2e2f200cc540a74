"""
Clients of other people, unmodified and each in its own environment, against the service on the real
pair.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from anyio.from_thread import start_blocking_portal

from stepspec.evals.benchmarks.miniature import Problem, generate
from stepspec.orchestrator.answer import extract

from ...program import logged, serve
from ..conftest import Pair
from .environments import FOLDER, installed

# the first test of each has to install it, from a network
MARKS = [pytest.mark.servers, pytest.mark.timeout(900)]
PATIENCE = 240.0  # seconds; most of them go into imports
KEY = "sesame"
SETTINGS = {"STEPSPEC_SERVICE__KEYS": KEY, "STEPSPEC_SAMPLING__TEMPERATURE": "0"}
OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
}
MODEL = "auto"
FOLLOWING, _, PROBLEM, *EXAMPLES = islice(generate(4, steps=(3, 3)), 13)

Report: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Service:
    """``stepspec serve`` as a program of its own: where it is reached, and what it logs."""

    base_url: str
    log: Path

    def run(self, client: str, *arguments: str, folder: Path) -> str:
        """Run the program of *client* in a *folder* against this service; return what it prints."""
        pinned = (FOLDER / client / "requirements.txt").is_file()
        programs = installed(client) if pinned else Path(sys.executable).parent
        script = FOLDER / client / "client.py"
        program = [programs / "python", script] if script.is_file() else [script.with_suffix(".sh")]
        path = os.pathsep.join([str(programs), os.environ["PATH"]])
        env = {
            "HOME": str(folder),
            "PATH": path,
            "OPENAI_BASE_URL": self.base_url,
            "OPENAI_API_KEY": KEY,
            **OFFLINE,
        }
        ended = subprocess.run(
            [*program, *arguments],
            cwd=folder,
            env=env,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        assert ended.returncode == 0, ended.stderr[-4000:]
        return ended.stdout

    def report(self, client: str, *arguments: str, folder: Path) -> Report:
        """Return what *client*, which prints it as JSON, has seen."""
        report: Report = json.loads(self.run(client, *arguments, folder=folder).splitlines()[-1])
        return report

    def logged(self, event: str) -> list[dict[str, Any]]:
        return [line for line in logged(self.log) if line["event"] == event]


@contextmanager
def serving_pair(pair: Pair, log: Path) -> Generator[Service]:
    """
    Start a service with a key over *pair*, greedy unless a request says otherwise, and stop it.
    """
    starting = serve(
        pair.small.base_url, pair.large.base_url, log, "--log-level", "debug", settings=SETTINGS
    )
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(starting) as program:
        yield Service(f"{program.base}/v1", log)


@pytest.fixture(scope="package")
def service(pair: Pair, tmp_path_factory: pytest.TempPathFactory) -> Generator[Service]:
    with serving_pair(pair, tmp_path_factory.mktemp("service") / "service.log") as running:
        yield running


def solved(text: str, problem: Problem = PROBLEM) -> bool:
    """Whether *text* ends in the right answer."""
    return extract(text) == str(problem.answer)
