"""What `stepspec tune` says of simulated servers is what a simulation of whole problems gives."""

from __future__ import annotations

import pytest

from lab.simulation.grid import GPUS, Chains, find_pair
from lab.simulation.tuned import compared
from stepspec.cli.eval import arm

WHOLE_STEPS = "reading:tokens=formulas,threshold=2,draft_tokens=null,repair_tokens=null"


@pytest.mark.parametrize("pair", ["qwen3-32b-h200", "qwen3-32b-two-h200"])
def test_the_gain_is_right_alone_and_with_users(pair: str) -> None:
    methods = [arm("specreason"), arm(WHOLE_STEPS), arm("reading")]
    rows = list(compared(find_pair(GPUS, pair), methods, Chains(20, 50), 0.6, users=4))
    assert [(row["method"], row["users"]) for row in rows] == [
        (method.name, users) for method in methods for users in (1, 4)
    ]
    for row in rows:
        assert row["over"] == pytest.approx(1.0, abs=0.15), row
    assert all(row["low"] < row["simulated"] < row["high"] for row in rows if row["users"] == 1)
