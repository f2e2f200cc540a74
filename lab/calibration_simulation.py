"""
Simulate calibrations on many populations whose true losses are known, and count broken promises.

``python -m lab.calibration_simulation`` prints a table. Every population has a loss for each
threshold, which grows from the strictest to the loosest, and some gains. Each calibration uses a
sample of one population. Its promise is broken if the true loss at the promised threshold is above
the limit. At most one promise of twenty may be broken in a row.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
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

from .tables import Sheet, exit_with

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
    """What a method loses and gains at every threshold, the strictest first."""

    lost: Shares
    """The true shares of problems that are lost."""
    gained: Shares
    """The true shares of problems that are gained."""

    @property
    def loss(self) -> Shares:
        return self.lost - self.gained

    def sample(self, rng: Generator, n: int) -> list[Paired]:
        """
        Return the outcomes at every threshold on the same *n* problems.

        A lost problem stays lost at looser thresholds.
        """
        draw = rng.random(n)
        lost = [int((draw < share).sum()) for share in self.lost]
        gained = [int((draw > 1 - share).sum()) for share in self.gained]
        return [Paired(n, *counts) for counts in zip(lost, gained, strict=True)]


@dataclass(frozen=True, slots=True)
class Row:
    """The results for one kind of population, as shares of all populations."""

    kind: str
    """The kind of the populations."""
    case: str
    """The size of the samples."""
    populations: int
    """The number of the populations."""
    broken: Interval
    """Broken promises."""
    none: float
    """Calibrations that promised no threshold."""
    naively: float = 0.0
    """Promises that trusting the observed loss would break."""


def growing(rng: Generator, limit: float) -> Population:
    """Let losses grow by random steps, to several times the *limit* for most populations."""
    steps = rng.exponential(rng.uniform(0.1, 0.8) * limit, THRESHOLDS)
    lost = np.minimum(np.cumsum(steps), 0.6)
    return Population(lost, np.cumsum(rng.uniform(0, 0.4) * steps * rng.random(THRESHOLDS)))


def flat(rng: Generator, limit: float) -> Population:
    """Let hardly any problem be lost at first, and then many."""
    place = rng.integers(1, THRESHOLDS)
    low = rng.uniform(0, 0.2) * limit
    high = rng.uniform(1.5, 8) * limit
    lost = np.where(np.arange(THRESHOLDS) < place, low, high)
    return Population(np.minimum(lost, 0.6), np.zeros(THRESHOLDS))


def edge(rng: Generator, limit: float) -> Population:
    """Let the strictest threshold lose more than the *limit*: any choice breaks the promise."""
    gained = rng.uniform(0, 0.1) * np.ones(THRESHOLDS)
    lost = gained + limit * 1.0001 + np.arange(THRESHOLDS) * limit
    return Population(np.minimum(lost, 0.6), gained)


Kinds: TypeAlias = dict[str, Callable[[Generator, float], Population]]
KINDS: Kinds = {"growing": growing, "a cliff": flat, "at the edge": edge}


def simulate(
    kind: str,
    n: int,
    limit: float,
    populations: int,
    *,
    seed: int = 0,
    on_population: Callable[[], object] = lambda: None,
) -> Row:
    """Calibrate on a sample of *n* problems from each of *populations* populations."""
    rng = np.random.default_rng([seed, n, len(kind)])
    test = LossTest(limit, LEVEL)
    broken = 0
    naively = 0
    none = 0
    for _ in range(populations):
        population = KINDS[kind](rng, limit)
        outcomes = population.sample(rng, n)
        promised = _passing(outcomes, lambda outcome: test.at(0, outcome).holds)
        trusted = _passing(outcomes, lambda outcome: outcome.loss <= limit)
        broken += bool(promised and population.loss[promised - 1] > limit)
        naively += bool(trusted and population.loss[trusted - 1] > limit)
        none += promised == 0
        on_population()
    share = wilson(broken, populations)
    return Row(
        kind,
        f"{n} problems",
        populations,
        share,
        none / populations,
        naively / populations,
    )


def _passing(outcomes: Sequence[Paired], passes: Callable[[Paired], bool]) -> int:
    """Return how many thresholds pass, from the strictest on, before the first that does not."""
    return len([*takewhile(passes, outcomes)])


def main(
    populations: Annotated[int, typer.Option(min=1, help="Populations for each row.")] = 1000,
    limit: Annotated[float, typer.Option(help="The most that may be lost, as a share.")] = 0.02,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the populations.")] = 0,
) -> None:
    """
    Simulate and print a table. Exit with 1 if promises are broken more often than the confidence
    allows.
    """
    if not 0 < limit <= LARGEST:
        raise ConfigurationError(
            f"--limit {limit}: the populations here are made for limits up to {LARGEST}, above 0",
        )
    sizes = (300, 1000, 4000)
    with progress_bars(stderr) as progress:
        bar = progress.add_task("calibrating", total=len(KINDS) * len(sizes) * populations)
        advance = partial(progress.advance, bar)
        rows = [
            simulate(
                kind,
                n,
                limit,
                populations,
                seed=seed,
                on_population=advance,
            )
            for kind in KINDS
            for n in sizes
        ]
    about = f"a loss of at most {limit:.0%}, at 95% confidence, {datetime.date.today()}"
    Console(width=130).print(table(f"the promise: {about}", rows))
    exit_with(missed(rows), stderr)


def missed(rows: Sequence[Row]) -> list[str]:
    """Return a sentence for each row in which too many promises are broken."""
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
            row.kind,
            row.case,
            str(row.populations),
            f"{row.broken:.1%}",
            f"{row.none:.1%}",
            f"{row.naively:.1%}",
        )
        for row in rows
    ]
    return Sheet(columns, texts, title).table()


if __name__ == "__main__":
    script(main, EXAMPLES)
