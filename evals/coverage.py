"""
Does the promise of `calibration` hold? ``python -m stepspec.evals.coverage``: many populations whose truth is known.

Every population has a loss for each threshold, growing from the strictest to the loosest, and some gains. A sample of
it is calibrated on; the promise is broken where the threshold that was found loses more than the limit in truth.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, TypeAlias

import numpy as np
import orjson
import typer
from numpy.random import Generator
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from .arms import wilson
from .calibration import Paired, chosen, fixed_sequence
from .testbed.progress import counting

THRESHOLDS = 10
Shares: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Population:
    """The true shares of problems lost and gained at every threshold, the strictest first."""

    lost: Shares
    gained: Shares

    @property
    def loss(self) -> Shares:
        return self.lost - self.gained

    def best(self, limit: float) -> int:
        """The last threshold up to which all keep to the *limit*; -1 if the first does not."""
        return int(np.argmax(np.append(self.loss, 1.0) > limit)) - 1

    def sample(self, rng: Generator, n: int) -> list[Paired]:
        """Outcomes at every threshold on the same *n* problems: one that is lost stays lost at looser ones."""
        place = rng.random(n)
        lost = [int((place < share).sum()) for share in self.lost]
        gained = [int((place > 1 - share).sum()) for share in self.gained]
        return [Paired(n, *counts) for counts in zip(lost, gained, strict=True)]


@dataclass(frozen=True, slots=True)
class Row:
    """
    What came out for one kind of population and one size of sample.

    *broken* is how often the promise was, *naively* how often it would be by trusting the observed loss. *near* is how
    often the threshold found is at most one step from the best that keeps to the limit, *none* how often none was.
    """

    kind: str
    n: int
    limit: float
    populations: int
    broken: float
    broken_interval: tuple[float, float]
    naively: float
    near: float
    none: float


def growing(rng: Generator, limit: float) -> Population:
    """Losses grow by steps of random size, to several times the *limit* for most; gains are a few of them."""
    steps = rng.exponential(rng.uniform(0.1, 0.8) * limit, THRESHOLDS)
    lost = np.minimum(np.cumsum(steps), 0.6)
    return Population(lost, np.cumsum(rng.uniform(0, 0.4) * steps * rng.random(THRESHOLDS)))


def flat(rng: Generator, limit: float) -> Population:
    """Hardly any loss at first, and then a cliff."""
    place = rng.integers(1, THRESHOLDS)
    lost = np.where(np.arange(THRESHOLDS) < place, rng.uniform(0, 0.2) * limit, rng.uniform(1.5, 8) * limit)
    return Population(np.minimum(lost, 0.6), np.zeros(THRESHOLDS))


def edge(rng: Generator, limit: float) -> Population:
    """The hardest: the strictest threshold loses just more than the *limit*, so that any choice breaks the promise."""
    gained = rng.uniform(0, 0.1) * np.ones(THRESHOLDS)
    return Population(gained + limit * 1.0001 + np.arange(THRESHOLDS) * limit, gained)


KINDS: dict[str, Callable[[Generator, float], Population]] = {"growing": growing, "a cliff": flat, "at the edge": edge}


def simulate(
    kind: str, n: int, limit: float, populations: int, *, level: float = 0.05, seed: int = 0,
    on_population: Callable[[], object] = lambda: None,
) -> Row:  # fmt: skip
    """Calibrate on a sample of *n* problems from each of so many *populations*."""
    rng = np.random.default_rng([seed, n, len(kind)])
    broken = naively = near = none = 0
    for _ in range(populations):
        population = KINDS[kind](rng, limit)
        seen = population.sample(rng, n)
        found = chosen(fixed_sequence(range(THRESHOLDS), partial(_seen, seen), limit, level))
        place = int(found.threshold) if found else -1
        trusted = next((k for k in range(THRESHOLDS) if seen[k].loss > limit), THRESHOLDS) - 1
        broken += bool(place >= 0 and population.loss[place] > limit)
        naively += bool(trusted >= 0 and population.loss[trusted] > limit)
        near += abs(place - population.best(limit)) <= 1
        none += place < 0
        on_population()
    interval = wilson(broken, populations)
    shares = (naively / populations, near / populations, none / populations)
    return Row(kind, n, limit, populations, interval.value, (interval.low, interval.high), *shares)


def _seen(samples: list[Paired], place: float) -> Paired:
    return samples[int(place)]


def main(
    populations: Annotated[int, typer.Option(min=1, help="Populations for each row.")] = 1000,
    limit: Annotated[float, typer.Option(help="The most that may be lost, as a share.")] = 0.02,
    seed: int = 0,
    json: Annotated[bool, typer.Option("--json", help="Print the rows as JSON instead.")] = False,
) -> None:
    """Simulate, print a table, and exit with 1 if a promise is broken more often than it may be."""
    sizes = (300, 1000, 4000)
    with counting(Console(stderr=True)) as progress:
        bar = progress.add_task("calibrating", total=len(KINDS) * len(sizes) * populations)
        rows = [
            simulate(kind, n, limit, populations, seed=seed, on_population=lambda: progress.advance(bar))
            for kind in KINDS
            for n in sizes
        ]
    if json:
        print(orjson.dumps(rows).decode())
    else:
        Console(width=120).print(table(rows))
    if any(row.broken_interval[0] > 0.05 for row in rows):
        raise typer.Exit(1)


def table(rows: list[Row]) -> Table:
    shown = Table(
        title=f"the promise: a loss of at most {rows[0].limit:.0%}, at 95% confidence",
        caption=f"{rows[0].populations} populations a row, {datetime.date.today()}",
    )
    for column in ("population", "problems", "broken (95% interval)", "if trusted naively", "within one step", "none"):
        shown.add_column(column, justify="left" if column == "population" else "right")
    for row in rows:
        low, high = row.broken_interval
        shown.add_row(
            row.kind, str(row.n), f"{row.broken:.1%} ({low:.1%} to {high:.1%})", f"{row.naively:.1%}",
            f"{row.near:.1%}", f"{row.none:.1%}",
        )  # fmt: skip
    return shown


if __name__ == "__main__":
    typer.run(main)
