"""Clients of other people, unmodified and each in its own environment, against the service on the real pair."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Generator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import pytest

from stepspec.evals.testbed.problems import Difficulty, Problem, generate
from stepspec.orchestrator.answer import extract

from ..conftest import Pair
from .environments import FOLDER, installed
from .service import KEY, Service, serving_pair

MARKS = [pytest.mark.servers, pytest.mark.timeout(900)]  # the first test of each has to install it, from a network
PATIENCE = 240.0  # seconds; most of them go into imports
OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
MODEL = "auto"
FOLLOWING, _, PROBLEM, *EXAMPLES = islice(generate(4, "test", Difficulty(steps=(3, 3))), 13)

Report: TypeAlias = Mapping[str, Any]


class Run(Protocol):
    """Runs the program of one client against the service, and returns what it printed."""

    def __call__(self, client: str, *arguments: str, key: str = KEY, folder: Path | None = None) -> str: ...


@pytest.fixture(scope="package")
def service(pair: Pair, tmp_path_factory: pytest.TempPathFactory) -> Generator[Service]:
    with serving_pair(pair, tmp_path_factory.mktemp("service") / "service.log") as running:
        yield running


@pytest.fixture(scope="package")
def run(service: Service, tmp_path_factory: pytest.TempPathFactory) -> Run:
    def run(client: str, *arguments: str, key: str = KEY, folder: Path | None = None) -> str:
        home = folder or tmp_path_factory.mktemp(client)
        openai = {"OPENAI_BASE_URL": service.base_url, "OPENAI_API_KEY": key}
        anthropic = {"ANTHROPIC_BASE_URL": service.base_url.removesuffix("/v1"), "ANTHROPIC_API_KEY": key}
        env = {"HOME": str(home), **openai, **anthropic, **OFFLINE}
        ended = subprocess.run(
            [*_program(client), *arguments],
            cwd=home,
            env=env | {"PATH": _path(client)},
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        assert ended.returncode == 0, ended.stderr[-4000:]
        return ended.stdout

    return run


def _program(client: str) -> list[str]:
    script, pins = FOLDER / client / "client.py", FOLDER / client / "requirements.txt"
    if not script.is_file():
        return [str(script.with_suffix(".sh"))]
    return [str(installed(client) / "python") if pins.is_file() else sys.executable, str(script)]


def _path(client: str) -> str:
    own = [str(installed(client))] if (FOLDER / client / "requirements.txt").is_file() else []
    return os.pathsep.join([*own, os.environ["PATH"]])


def run_client(run: Run, client: str, *arguments: str) -> Report:
    """Return what a client sees that asks for the same two problems in every way that it knows."""
    printed = run(client, MODEL, PROBLEM.text, FOLLOWING.text, *arguments)
    report: Report = json.loads(printed.splitlines()[-1])
    return report


def solved(text: str, problem: Problem = PROBLEM) -> bool:
    """Whether *text* ends in the right answer."""
    return extract(text) == str(problem.answer)


def counted(usage: Mapping[str, int], prompt: str = "prompt_tokens", completion: str = "completion_tokens") -> bool:
    """Whether the tokens add up."""
    return usage["total_tokens"] == usage[prompt] + usage[completion] and min(usage[prompt], usage[completion]) > 0
