"""Agents of other people, unmodified: loops of at least three calls of tools, in front of the pair that calls tools."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from lab.worlds.tool_problems import Problem
from stepspec.orchestrator.answer import extract

from ..conftest import Pair
from .conftest import MARKS, OFFLINE, PATIENCE
from .environments import FOLDER, installed
from .service import KEY, Service, serving_pair

pytestmark = MARKS
CUPS = Problem("buy", "Ann", ((2, "cup"), (3, "pen")), (17, 23))
WAYS = {
    "openai_agents": ("responses", "responses, streamed", "chat", "chat, streamed"),
    "langgraph": ("invoke", "stream"),
}


@pytest.fixture(scope="module")
def service(tool_pair: Pair, tmp_path_factory: pytest.TempPathFactory) -> Generator[Service]:
    with serving_pair(tool_pair, tmp_path_factory.mktemp("agents") / "service.log") as running:
        yield running


def run(service: Service, client: str, problem: Problem, home: Path) -> dict[str, Any]:
    env = {"OPENAI_BASE_URL": service.base_url, "OPENAI_API_KEY": KEY, "HOME": str(home), **OFFLINE}
    prices = json.dumps(problem.catalogue)
    ended = subprocess.run(
        [installed(client) / "python", FOLDER / client / "client.py", "specreason", problem.text, prices],
        cwd=home,
        env=env,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert ended.returncode == 0, ended.stderr[-4000:]
    report: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return report


@pytest.mark.parametrize("client", WAYS)
def test_an_agent_solves_loops_of_three_calls(service: Service, client: str, tmp_path: Path) -> None:
    report = run(service, client, CUPS, tmp_path)
    for way in WAYS[client]:
        assert extract(report[way]["answer"]) == str(CUPS.answer)
        assert report[way]["calls"] == ["lookup", "lookup", "calculator"]
