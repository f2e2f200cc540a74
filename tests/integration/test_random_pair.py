"""
Models of random weights with Qwen's real vocabulary on real vLLM: text agrees with ids in runs of
every method.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from stepspec.policies import METHODS
from tests.random_pair import measure, servers
from tests.vocabularies import CACHE, real_vocabulary

from .conftest import serving

pytestmark = pytest.mark.servers


def test_ids_and_text_agree_in_runs_of_every_method(
    forked: tuple[str, ...], tmp_path: Path
) -> None:
    real_vocabulary("qwen")
    with serving(servers(tmp_path, cache=CACHE), forked) as served:
        rows = asyncio.run(
            measure(served, tuple(METHODS), runs=1, tokens=24, at_once=16, cache=CACHE)
        )
    assert [failure for row in rows for failure in row.failures] == []
    assert {row.method: row.runs for row in rows} == dict.fromkeys(METHODS, 1)
    assert all(row.steps for row in rows)
    assert sum(row.halves > 0 for row in rows) > len(rows) / 2
