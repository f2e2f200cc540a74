"""What `auto` makes of simulated servers, beside the better of its method and the large model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import sqrt
from statistics import fmean, stdev

from scipy.stats import t as student

from stepspec.evals.arms import LARGE, SHIPPED
from stepspec.evals.sample import Arm

from .grid import Chains, Pair, simulate_cell

AUTO = Arm.of("auto", "specreason", auto=True)


@dataclass(frozen=True, slots=True)
class Choice:
    """The arms under one condition; each figure has a value for each seed."""

    pair: str
    """The pair of models and its servers."""
    users: int
    """Problems at the same time."""
    accepted: float
    """The share of the drafts that is accepted."""
    method: Sequence[float]
    """The time of the method over that of the large model alone."""
    auto: Sequence[float]
    """The time of `auto` over that of the large model alone."""

    @property
    def over_the_better(self) -> list[float]:
        """The time of `auto` over that of the better of both, for each seed."""
        pairs = zip(self.auto, self.method, strict=True)
        return [auto / min(1.0, method) for auto, method in pairs]

    def row(self) -> dict[str, object]:
        """Return the condition and its figures, for a table."""
        low, high = interval(self.over_the_better)
        return {
            "pair": self.pair,
            "users": self.users,
            "accepted": self.accepted,
            "method": fmean(self.method),
            "auto": fmean(self.auto),
            "auto over the better": fmean(self.over_the_better),
            "low": low,
            "high": high,
        }


def choose(
    pair: Pair,
    users: int,
    accepted: float,
    chains: Chains,
    problems: int,
    seeds: int,
) -> Choice:
    """Simulate *problems* problems by each arm, once for each of *seeds* seeds."""
    method = list[float]()
    auto = list[float]()
    for seed in range(seeds):
        drawn = replace(chains, seed=seed)
        large, always, deciding = (
            simulate_cell(
                pair,
                arm,
                users,
                drawn,
                accepted,
                problems,
            ).figures.mean
            for arm in (LARGE, SHIPPED, AUTO)
        )
        method.append(always / large)
        auto.append(deciding / large)
    return Choice(pair.name, users, accepted, method, auto)


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the 95% interval of the mean of *values*, by Student's t; of one value, itself."""
    mean = fmean(values)
    if len(values) < 2:
        return mean, mean
    error = stdev(values) / sqrt(len(values))
    low, high = student.interval(0.95, len(values) - 1, mean, error)
    return float(low), float(high)
