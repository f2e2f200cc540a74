"""
Simulate calibrations on many populations whose true losses are known, and count the promises that
are broken.

``python -m lab.calibration_simulation`` prints a table.

Every population has a loss for each threshold, growing from the strictest to the loosest, and some
gains. Each calibration uses a sample of one population; its promise is broken if the true loss at
the promised threshold is above the limit.

The bar: at most one promise of twenty is broken in a row.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Annotated, TypeAlias

import numpy as np
import typer
from numpy.random import Generator
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from stepspec.cli.program import script
from stepspec.evals.calibration.risk_bound import LossTest, Paired
from stepspec.evals.progress import progress_bars
from stepspec.evals.results import Interval, wilson
from stepspec.orchestrator.errors import ConfigurationError

from .tables import Sheet

THRESHOLDS = 10
LEVEL = 0.05  # the share of promises that may be broken
LARGEST = 0.2  # limit, above which the populations here lose more than there is
EXAMPLES = """
Examples:

  python -m lab.calibration_simulation                        # a few minutes

  python -m lab.calibration_simulation --populations 200 --limit 0.05
"""
Shares: TypeAlias = NDArray[np.float64]
stderr = Console(stderr=True)


@dataclass(frozen=True, slots=True)
class Population:
    """The true shares of problems lost and gained at every threshold, the strictest first."""

    lost: Shares
    gained: Shares

    @property
    def loss(self) -> Shares:
        return self.lost - self.gained

    def sample(self, rng: Generator, n: int) -> list[Paired]:
        """
        Outcomes at every threshold on the same *n* problems; a lost problem stays lost at looser
        thresholds.
        """
        draw = rng.random(n)
        lost = [int((draw < share).sum()) for share in self.lost]
        gained = [int((draw > 1 - share).sum()) for share in self.gained]
        return [Paired(n, *counts) for counts in zip(lost, gained, strict=True)]


@dataclass(frozen=True, slots=True)
class Row:
    """
    The results for one *kind* of population in one *case*, as shares of all populations.

    *broken* counts broken promises, *none* calibrations that promised no threshold, and *naively*
    the promises that trusting the observed loss would break, None where that is not counted.
    """

    kind: str
    case: str
    populations: int
    broken: Interval
    none: float
    naively: float | None = None


def growing(rng: Generator, limit: float) -> Population:
    """
    Losses grow by steps of random size, to several times the *limit* for most; gains are a few of
    them.
    """
    steps = rng.exponential(rng.uniform(0.1, 0.8) * limit, THRESHOLDS)
    lost = np.minimum(np.cumsum(steps), 0.6)
    return Population(lost, np.cumsum(rng.uniform(0, 0.4) * steps * rng.random(THRESHOLDS)))


def flat(rng: Generator, limit: float) -> Population:
    """Hardly any loss at first, and then a cliff."""
    place = rng.integers(1, THRESHOLDS)
    lost = np.where(
        np.arange(THRESHOLDS) < place, rng.uniform(0, 0.2) * limit, rng.uniform(1.5, 8) * limit
    )
    return Population(np.minimum(lost, 0.6), np.zeros(THRESHOLDS))


def edge(rng: Generator, limit: float) -> Population:
    """
    The hardest: the strictest threshold loses just more than the *limit*, so that any choice breaks
    the promise.
    """
    gained = rng.uniform(0, 0.1) * np.ones(THRESHOLDS)
    return Population(
        np.minimum(gained + limit * 1.0001 + np.arange(THRESHOLDS) * limit, 0.6), gained
    )


Kinds: TypeAlias = dict[str, Callable[[Generator, float], Population]]
KINDS: Kinds = {"growing": growing, "a cliff": flat, "at the edge": edge}


def simulate(
    kind: str, n: int, limit: float, populations: int, *, level: float = LEVEL, seed: int = 0,
    on_population: Callable[[], object] = lambda: None,
) -> Row:  # fmt: skip
    """Calibrate on a sample of *n* problems from each of a number of *populations*."""
    rng = np.random.default_rng([seed, n, len(kind)])
    broken = naively = none = 0
    for _ in range(populations):
        population = KINDS[kind](rng, limit)
        outcomes = population.sample(rng, n)
        index = _loosest(outcomes, limit, level)
        trusted = next((k for k in range(THRESHOLDS) if outcomes[k].loss > limit), THRESHOLDS) - 1
        broken += bool(index >= 0 and population.loss[index] > limit)
        naively += bool(trusted >= 0 and population.loss[trusted] > limit)
        none += index < 0
        on_population()
    share = wilson(broken, populations)
    return Row(kind, f"{n} problems", populations, share, none / populations, naively / populations)


def _loosest(outcomes: list[Paired], limit: float, level: float) -> int:
    """The index of the threshold that a calibration on these *outcomes* promises; -1 for none."""
    test = LossTest(limit, level)
    return sum(1 for _ in takewhile(lambda outcome: test.at(0, outcome).holds, outcomes)) - 1


def main(
    populations: Annotated[int, typer.Option(min=1, help="Populations for each row.")] = 1000,
    limit: Annotated[float, typer.Option(help="The most that may be lost, as a share.")] = 0.02,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the populations.")] = 0,
) -> None:
    """
    Simulate, print a table, and exit with 1 if promises are broken more often than the confidence
    allows.
    """
    if not 0 < limit <= LARGEST:
        raise ConfigurationError(
            f"--limit {limit}: the populations here are made for limits up to {LARGEST}, above 0"
        )
    sizes = (300, 1000, 4000)
    with progress_bars(stderr) as progress:
        bar = progress.add_task("calibrating", total=len(KINDS) * len(sizes) * populations)
        rows = [
            simulate(
                kind, n, limit, populations, seed=seed, on_population=lambda: progress.advance(bar)
            )
            for kind in KINDS
            for n in sizes
        ]
    about = f"a loss of at most {limit:.0%}, at 95% confidence, {datetime.date.today()}"
    Console(width=130).print(table(f"the promise: {about}", rows))
    failures = missed(rows)
    for line in failures:
        stderr.print(line, style="red", highlight=False, soft_wrap=True)
    if failures:
        raise typer.Exit(1)


def missed(rows: Sequence[Row]) -> list[str]:
    """The rows in which too many promises are broken, one sentence each."""
    return [
        f"missed: {row.kind}, {row.case}: broken in {row.broken.value:.1%}, which is more than"
        f" {LEVEL:.0%}"
        for row in rows
        if row.broken.low > LEVEL
    ]


def table(title: str, rows: Sequence[Row]) -> Table:
    columns = (
        "population",
        "",
        "populations",
        "broken [95% interval]",
        "none",
        "if trusted naively",
    )
    texts = [
        (
            *(row.kind, row.case, str(row.populations), f"{row.broken:.1%}", f"{row.none:.1%}"),
            "" if row.naively is None else f"{row.naively:.1%}",
        )
        for row in rows
    ]
    return Sheet(columns, texts, title).table()


if __name__ == "__main__":
    script(main, EXAMPLES)
