"""Costs of a pass: their sum, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from lab.simulation import ServerCosts
from stepspec.orchestrator.errors import ConfigurationError


def test_a_pass_takes_the_sum_of_its_costs() -> None:
    costs = ServerCosts(0.03, per_sequence=0.001, per_prompt_token=0.0001, per_context_token=0.00001)
    assert costs.seconds(4, 100, 2000) == pytest.approx(0.03 + 0.004 + 0.01 + 0.02)


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"per_pass": -0.1}, "per_pass is -0.1, and has to be at least 0"),
        ({"per_pass": float("nan")}, "per_pass is nan"),
        ({"per_prompt_token": float("inf")}, "per_prompt_token is inf"),
        ({"sequences": 0}, "sequences is 0, and has to be at least 1"),
        ({"written": 0.5}, "written is 0.5, and has to be at least 1"),
        ({"cache": 0}, "cache is 0"),
        ({"sequences": 64, "tokens": 32}, "a pass of 32 tokens has no room for 64 sequences"),
    ],
)
def test_costs_that_cannot_be_are_refused(wrong: dict[str, Any], why: str) -> None:
    costs: dict[str, Any] = {"per_pass": 0.03, **wrong}
    with pytest.raises(ConfigurationError, match=why):
        ServerCosts(**costs)
