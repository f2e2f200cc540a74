"""Examples over the real pair: what they print is what real models wrote, graded and answered."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ..examples.running import run_example, settings
from ..program import serve
from .conftest import Pair

pytestmark = pytest.mark.servers
SUMS = ("3 + 9 = 12.", "12 + 9 = 21.", "21 * 2 = 42.")  # of the examples' own problem


async def test_the_stream_of_events_solves_its_problem(pair: Pair, tmp_path: Path) -> None:
    urls = settings(pair.small.base_url, pair.large.base_url)
    printed = await run_example("stream_events.py", variables=urls, folder=tmp_path)
    committed = re.findall(r"^\+ +\d+  (?:small  \d\.\d|large     )  (.+)$", printed, re.MULTILINE)
    assert [sum(step.endswith(each) for step in committed) for each in SUMS] == [1, 1, 1]
    assert "\nanswer: 42\n" in printed
    assert re.search(r"^[1-9]\d* of [1-9]\d* drafts accepted", printed, re.MULTILINE)


async def test_the_openai_sdk_solves_its_problem(pair: Pair, tmp_path: Path) -> None:
    urls = settings(pair.small.base_url, pair.large.base_url)
    async with serve(
        pair.small.base_url, pair.large.base_url, tmp_path / "log", settings=urls
    ) as service:
        variables = {"OPENAI_BASE_URL": f"{service.base}/v1", "OPENAI_API_KEY": "none"}
        printed = await run_example("openai_sdk.py", variables=variables, folder=tmp_path)
    assert "\ncontent: \\boxed{42}\n" in printed
    streamed = re.findall(r"^\[(?:small, grade \d\.\d|large)\] (.+)$", printed, re.MULTILINE)
    assert [sum(step.endswith(each) for step in streamed) for each in SUMS] == [1, 1, 1]
    assert "\nmethod: specreason, answer: 42, finish reason: stop\n" in printed
    # no miniature model has learnt JSON
    assert re.search(r"^parsed: count=\d+$", printed, re.MULTILINE)
