"""An agent of the OpenAI Agents SDK, unmodified: a loop of three calls, in front of the pair that calls tools."""

from __future__ import annotations

import json
from pathlib import Path

from lab.worlds.tool_problems import Problem
from stepspec.orchestrator.answer import extract

from ..conftest import Pair
from .conftest import MARKS, serving_pair

pytestmark = MARKS
CUPS = Problem("buy", "Ann", ((2, "cup"), (3, "pen")), (17, 23))


def test_an_agent_solves_loops_of_three_calls(tool_pair: Pair, tmp_path: Path) -> None:
    arguments = ("specreason", CUPS.text, json.dumps(CUPS.catalogue))
    with serving_pair(tool_pair, tmp_path / "service.log") as service:
        report = service.report("openai_agents", *arguments, folder=tmp_path)
    for way in ("responses", "responses, streamed", "chat", "chat, streamed"):
        assert extract(report[way]["answer"]) == str(CUPS.answer)
        assert report[way]["calls"] == ["lookup", "lookup", "calculator"]
