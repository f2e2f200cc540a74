"""The cost of a problem: GPU-seconds, and money according to a price file."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from stepspec.orchestrator.chain import Party
from stepspec.orchestrator.errors import ConfigurationError

from ..arms import LARGE
from .figures import PARTIES, ArmFigures

HOUR = 3600.0


class GpuRental(BaseModel):
    """The GPUs that serve one model: their number, the price of one per hour (None: unknown), and their name."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    gpus: float = Field(default=1.0, gt=0, allow_inf_nan=False)  # a shared GPU may count as a fraction
    per_gpu_hour: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    gpu: str = ""


class Prices(BaseModel):
    """The GPUs of each party, and the currency. Without a price file: one GPU each, no prices."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    currency: str = ""
    small: GpuRental = GpuRental()
    large: GpuRental = GpuRental()
    critic: GpuRental = GpuRental()

    def of(self, party: Party) -> GpuRental:
        rentals: dict[Party, GpuRental] = {"small": self.small, "large": self.large, "critic": self.critic}
        return rentals[party]

    @property
    def summary(self) -> str:
        """The assumed GPUs and prices in one line."""
        rentals = {party: self.of(party) for party in PARTIES}
        parts = (f"{party}: {_describe(r, self.currency)}" for party, r in rentals.items() if r != GpuRental())
        return "; ".join(parts) or "one GPU for each model, no prices"


def _describe(rental: GpuRental, currency: str) -> str:
    gpus = f"{rental.gpus:g} x {rental.gpu or 'GPU'}"
    return gpus if rental.per_gpu_hour is None else f"{gpus} at {rental.per_gpu_hour:g} {currency} an hour".rstrip()


def load_prices(path: Path | None) -> Prices:
    """Read the price file at *path*; None: return the defaults. Raise `ConfigurationError` for an invalid file."""
    if path is None:
        return Prices()
    try:
        prices = Prices.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as exc:
        raise ConfigurationError(f"no price file at {path}: {exc}; docs/evals.md shows one") from exc
    except ValidationError as exc:
        errors = "; ".join(f"{'.'.join(map(str, error['loc']))}: {error['msg']}" for error in exc.errors())
        raise ConfigurationError(f"{path}: {errors}; docs/evals.md shows a price file") from exc
    priced = [rental for rental in (prices.small, prices.large) if rental.per_gpu_hour is not None]
    if priced and (len(priced) == 1 or not prices.currency):
        raise ConfigurationError(f"{path}: prices need a currency, and per_gpu_hour for both small and large")
    return prices


@dataclass(frozen=True, slots=True)
class Cost:
    """
    The mean cost of a problem for an arm. *held* are the GPU-seconds of all its GPUs for the duration of its runs.

    *busy* are the GPU-seconds with a request of the arm open, which is the cost if others use the GPUs in between.
    Amounts of money are None without prices.
    """

    name: str
    held: float
    busy: float
    money_held: float | None = field(default=None)
    money_busy: float | None = field(default=None)
    money_right: float | None = field(default=None)  # held, for each correct answer
    of_baseline: float | None = field(default=None)  # held, over the baseline; in money if there are prices


def compute_costs(arms: Sequence[ArmFigures], prices: Prices, baseline: str = LARGE.name) -> list[Cost]:
    """Compute the cost of every arm but the oracle, which cannot be run."""
    costs = [_cost(figures, prices) for figures in arms if not figures.bound]
    usual = next(cost for cost in costs if cost.name == baseline)
    return [_relative(cost, usual) for cost in costs]


def _cost(figures: ArmFigures, prices: Prices) -> Cost:
    result = figures.standing.result
    held: dict[Party, float] = {party: prices.of(party).gpus * result.seconds for party in figures.spent}
    busy: dict[Party, float] = {party: prices.of(party).gpus * figures.busy[party] for party in figures.spent}
    money_held, money_busy = _money(held, prices), _money(busy, prices)
    right = money_held / result.accuracy if money_held is not None and result.accuracy else None
    return Cost(result.name, sum(held.values()), sum(busy.values()), money_held, money_busy, right)


def _money(seconds: dict[Party, float], prices: Prices) -> float | None:
    priced = [(spent, prices.of(party).per_gpu_hour) for party, spent in seconds.items()]
    if any(price is None for _, price in priced):
        return None
    return sum(spent * (price or 0.0) / HOUR for spent, price in priced)


def _relative(cost: Cost, usual: Cost) -> Cost:
    """Add the ratio of *cost* to that of the baseline, *usual*."""
    numerator, denominator = (
        (cost.held, usual.held) if cost.money_held is None or not usual.money_held
        else (cost.money_held, usual.money_held)
    )  # fmt: skip
    return Cost(
        cost.name, cost.held, cost.busy, cost.money_held, cost.money_busy, cost.money_right,
        numerator / denominator if denominator else None,
    )  # fmt: skip
