"""What a problem costs: GPU-seconds, and money by a price file."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from stepspec.orchestrator.chain import Party
from stepspec.orchestrator.errors import ConfigurationError

from ..experiments.arms import LARGE
from .figures import PARTIES, Figures

HOUR = 3600.0


class Rented(BaseModel):
    """The GPUs that serve one model: how many, what one costs an hour, and what they are, for the reader."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    gpus: float = Field(default=1.0, gt=0, allow_inf_nan=False)  # half a GPU is one that is shared
    per_gpu_hour: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    gpu: str = ""


class Prices(BaseModel):
    """What each role is served on; without a price file one GPU each, and no money."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    currency: str = ""
    small: Rented = Rented()
    large: Rented = Rented()
    critic: Rented = Rented()

    def of(self, party: Party) -> Rented:
        found: dict[Party, Rented] = {"small": self.small, "large": self.large, "critic": self.critic}
        return found[party]

    @property
    def said(self) -> str:
        """One line that says what was assumed."""
        told = (f"{party}: {_said(self.of(party), self.currency)}" for party in PARTIES if self.of(party) != Rented())
        return "; ".join(told) or "one GPU for each model, no prices"


def _said(rented: Rented, currency: str) -> str:
    cards = f"{rented.gpus:g} x {rented.gpu or 'GPU'}"
    return cards if rented.per_gpu_hour is None else f"{cards} at {rented.per_gpu_hour:g} {currency} an hour".rstrip()


def load(path: Path | None) -> Prices:
    """Read a price file. Raise `ConfigurationError` if it is none."""
    if path is None:
        return Prices()
    try:
        prices = Prices.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as exc:
        raise ConfigurationError(f"no price file at {path}: {exc}; docs/reports.md shows one") from exc
    except ValidationError as exc:
        wrong = "; ".join(f"{'.'.join(map(str, error['loc']))}: {error['msg']}" for error in exc.errors())
        raise ConfigurationError(f"{path}: {wrong}; docs/reports.md shows a price file") from exc
    priced = [rented for rented in (prices.small, prices.large) if rented.per_gpu_hour is not None]
    if priced and (len(priced) == 1 or not prices.currency):
        raise ConfigurationError(f"{path}: prices need a currency, and per_gpu_hour for both small and large")
    return prices


@dataclass(frozen=True, slots=True)
class Cost:
    """
    What an arm costs a problem. GPU-seconds *held* are those of all GPUs that it needs, for as long as it takes; *busy*
    are those with a request of its own open, which is what is left to pay for if others use the GPUs in between.
    """

    name: str
    held: float
    busy: float
    money_held: float | None = field(default=None)
    money_busy: float | None = field(default=None)
    money_right: float | None = field(default=None)  # held, for each problem that is answered rightly
    of_large: float | None = field(default=None)  # held, by money where there are prices


def costs(arms: Sequence[Figures], prices: Prices) -> list[Cost]:
    """What each arm costs; nothing is said of the oracle, whose choices nobody can make."""
    found = [_cost(figures, prices) for figures in arms if not figures.bound]
    large = next(cost for cost in found if cost.name == LARGE.name)
    return [_compared(cost, large) for cost in found]


def _cost(figures: Figures, prices: Prices) -> Cost:
    result = figures.standing.result
    held: dict[Party, float] = {party: prices.of(party).gpus * result.seconds for party in figures.spent}
    busy: dict[Party, float] = {party: prices.of(party).gpus * figures.busy[party] for party in figures.spent}
    money_held, money_busy = _money(held, prices), _money(busy, prices)
    right = money_held / result.accuracy if money_held is not None and result.accuracy else None
    return Cost(result.name, sum(held.values()), sum(busy.values()), money_held, money_busy, right)


def _money(seconds: dict[Party, float], prices: Prices) -> float | None:
    each = [(spent, prices.of(party).per_gpu_hour) for party, spent in seconds.items()]
    if any(price is None for _, price in each):
        return None
    return sum(spent * (price or 0.0) / HOUR for spent, price in each)


def _compared(cost: Cost, large: Cost) -> Cost:
    ours, theirs = (
        (cost.held, large.held) if cost.money_held is None or not large.money_held
        else (cost.money_held, large.money_held)
    )  # fmt: skip
    return Cost(
        cost.name, cost.held, cost.busy, cost.money_held, cost.money_busy, cost.money_right,
        ours / theirs if theirs else None,
    )  # fmt: skip
