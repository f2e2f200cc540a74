"""Agents of other people, unmodified: loops of at least three calls of tools, in front of the pair that calls tools."""

from __future__ import annotations

import json
from collections.abc import Generator
from pathlib import Path

import pytest

from lab.worlds.tool_problems import Problem
from stepspec.orchestrator.answer import extract

from ..conftest import Pair
from .conftest import MARKS, Service, serving_pair

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


@pytest.mark.parametrize("client", WAYS)
def test_an_agent_solves_loops_of_three_calls(service: Service, client: str, tmp_path: Path) -> None:
    report = service.report(client, "specreason", CUPS.text, json.dumps(CUPS.catalogue), folder=tmp_path)
    for way in WAYS[client]:
        assert extract(report[way]["answer"]) == str(CUPS.answer)
        assert report[way]["calls"] == ["lookup", "lookup", "calculator"]
