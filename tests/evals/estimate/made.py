"""Measurements made by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from stepspec.evals.arms import SHIPPED
from stepspec.evals.estimate.measurements import (
    DraftTrial,
    Measurements,
    SeenChain,
    ServerMeasurement,
)

SMALL_SERVER = ServerMeasurement(
    "small", "http://s", "tiny", {1: (0.01,)}, (0.02,), prefix_cache=True
)
LARGE_SERVER = ServerMeasurement("large", "http://l", "big", {1: (0.1,)}, (0.2,), prefix_cache=True)
GOOD = DraftTrial(True, 10, 10, 0, 10, (0.11, 0.25))
BAD = DraftTrial(False, 10, 0, 10, 10, (0.11, 0.25))


def measured(accepted: int, rejected: int, **changes: Any) -> Measurements:
    """
    Measurements of SpecReason with so many accepted and rejected drafts, after a chain of 10 steps
    that ended.
    """
    trials = {SHIPPED.name: (GOOD,) * accepted + (BAD,) * rejected}
    chains = (SeenChain((10,) * 10, answer=0),)
    made = Measurements(SMALL_SERVER, LARGE_SERVER, (0.1,), (SHIPPED,), chains, trials, 100.0)
    return replace(made, **changes)
