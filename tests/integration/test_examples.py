"""Examples over the real pair: what they print is what real models wrote, graded and answered."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ..examples.running import run_example, settings
from ..program import serve
from .conftest import Pair

pytestmark = pytest.mark.servers
SUM = "(3 + 9 + 9) * 2 = 42"


async def test_the_stream_of_events_solves_its_problem(pair: Pair, tmp_path: Path) -> None:
    urls = settings(pair.small.base_url, pair.large.base_url)
    print(await run_example("stream_events.py", variables=urls, folder=tmp_path))
    assert 0


async def test_the_openai_sdk_solves_its_problem(pair: Pair, tmp_path: Path) -> None:
    urls = settings(pair.small.base_url, pair.large.base_url)
    async with serve(pair.small.base_url, pair.large.base_url, tmp_path / "log", settings=urls) as service:
        variables = {"OPENAI_BASE_URL": f"{service.base}/v1", "OPENAI_API_KEY": "none"}
        print(await run_example("openai_sdk.py", variables=variables, folder=tmp_path))
    assert 0
