"""Models of random weights with Qwen's real vocabulary on real vLLM: text agrees with ids in runs of every method."""

from __future__ import annotations

import pytest

from stepspec.evals.testbed.random_pair import measure, serving
from stepspec.policies import METHODS
from tests.vocabularies import CACHE, real_vocabulary

pytestmark = pytest.mark.servers
RUNS = 2


async def test_ids_and_text_agree_in_runs_of_every_method() -> None:
    real_vocabulary("qwen")
    async with serving(cache=CACHE) as served:
        rows = await measure(served, tuple(METHODS), runs=RUNS, tokens=48, at_once=16, cache=CACHE)
    assert [failure for row in rows for failure in row.failures] == []
    assert {row.method: row.runs for row in rows} == dict.fromkeys(METHODS, RUNS)
    assert all(row.steps and row.halves for row in rows)
