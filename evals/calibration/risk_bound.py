"""
How loose may a threshold be? A promise with a confidence, from paired outcomes. Pure: no models, no
I/O.

The loss of a method is how many more problems the large model alone gets right, as a share of all.
Thresholds are tested from the strictest to the loosest, each at the full level, until one fails:
fixed-sequence testing, which needs no correction (learn then test, Angelopoulos et al.,
arXiv:2110.01052, section 4).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the functions import numpy and scipy: `stepspec` has to start without them
    from numpy import float64
    from numpy.typing import NDArray

NUISANCE_SHARE = 0.1  # of the level, spent on the unknown share of gained problems
NUISANCE_POINTS = 48
MOST_PROBLEMS = 1_000_000


@dataclass(frozen=True, slots=True)
class Paired:
    """
    Outcomes on the same *n* problems: *lost* ones only the large model got right, *gained* ones
    only the method.

    Raise `ValueError` where they do not add up.
    """

    n: int
    lost: int
    gained: int

    def __post_init__(self) -> None:
        if min(self.n, self.lost, self.gained) < 0 or self.lost + self.gained > self.n:
            raise ValueError(f"{self.lost} lost and {self.gained} gained of {self.n} problems")

    @property
    def loss(self) -> float:
        """The observed loss; below 0 where the method did better."""
        return (self.lost - self.gained) / self.n if self.n else 0.0

    @classmethod
    def of(cls, large: Iterable[bool], ours: Iterable[bool]) -> Paired:
        """Count the outcomes of the large model and of the method, problem by problem."""
        pairs = list(zip(large, ours, strict=True))
        return cls(
            len(pairs), sum(a and not b for a, b in pairs), sum(b and not a for a, b in pairs)
        )


@lru_cache(maxsize=65536)
def p_value(paired: Paired, limit: float, level: float = 0.05) -> float:
    """
    The probability of an outcome as good as *paired*, or better, were the true loss the *limit* or
    more.

    Valid for any sample size, at the *level* it is compared with. The better of two exact tests,
    for the price of two: one counts the lost alone, which is all there is to see where hardly
    anything is gained; the other their difference.
    """
    from scipy.stats import binom

    alone = float(binom.cdf(paired.lost, paired.n, limit))
    return min(1.0, 2 * min(alone, _of_difference(paired, limit, level / 2)))


def _of_difference(paired: Paired, limit: float, level: float) -> float:
    """
    The p-value of the difference of lost and gained problems.

    Its distribution also depends on the unknown share of gained problems: the p-value is the worst
    case over a confidence interval of that share, plus the probability that the interval misses it
    (Berger and Boos, 1994).
    """
    import numpy as np
    from scipy.stats import beta

    spent = NUISANCE_SHARE * level
    most = (
        1.0
        if paired.gained == paired.n
        else float(beta.ppf(1 - spent, paired.gained + 1, paired.n - paired.gained))
    )
    gains = np.linspace(0.0, min(most, (1 - limit) / 2), NUISANCE_POINTS)
    worst = float(np.max(_at_most(paired.lost - paired.gained, paired.n, limit + gains, gains)))
    return min(1.0, worst + spent)


def _at_most(
    difference: int, n: int, lost: NDArray[float64], gained: NDArray[float64]
) -> NDArray[float64]:
    """
    The probability that at most *difference* more are lost than gained, for every pair of shares
    that are.
    """
    import numpy as np
    from scipy.stats import binom

    count = np.arange(int(binom.ppf(1 - 1e-12, n, gained.max())) + 1)
    lost_if_not_gained = np.minimum(1.0, lost / (1 - gained))
    chance: NDArray[float64] = np.multiply(
        binom.pmf(count, n, gained[:, None]),
        binom.cdf(difference + count, n - count, lost_if_not_gained[:, None]),
    )
    summed: NDArray[float64] = np.sum(chance, axis=1)
    return summed


@dataclass(frozen=True, slots=True)
class LossTest:
    """
    An exact test whether a loss is below a limit, on a number of problems that is fixed beforehand.
    """

    limit: float
    """The largest loss that may be promised, as a share of all problems."""
    level: float
    """The probability that the test passes although the loss is at the limit or above."""

    def p(self, paired: Paired) -> float:
        """
        The p-value of *paired*, to be compared with the level.

        It is 1 on fewer problems than would do if nothing were lost, also where much is gained:
        none is tried.
        """
        return self._p(paired) if self._p(Paired(paired.n, 0, 0)) <= self.level else 1.0

    def _p(self, paired: Paired) -> float:
        if paired.n == 0 or self.limit >= 1:
            return 1.0 if paired.n == 0 else 0.0
        return p_value(paired, self.limit, self.level)

    def at(self, threshold: float, paired: Paired) -> ThresholdTest:
        """Test the outcome at a *threshold*."""
        p = self.p(paired)
        return ThresholdTest(threshold, paired, p, p <= self.level)

    def needed(self, observed: Paired | None = None) -> int | None:
        """
        The number of problems that would pass at the *observed* rates of losses and gains; without,
        if none is lost.

        None if no number would do, because the observed loss is no less than the limit.
        """
        lost, gained = (
            (observed.lost / observed.n, observed.gained / observed.n)
            if observed and observed.n
            else (0.0, 0.0)
        )
        if lost - gained >= self.limit:
            return None

        def enough(n: int) -> bool:
            return self.p(Paired(n, math.ceil(n * lost), math.floor(n * gained))) <= self.level

        most = 1
        while not enough(most):
            most *= 2
            if most > MOST_PROBLEMS:
                return None
        least = most // 2
        while most - least > 1:
            middle = (least + most) // 2
            least, most = (least, middle) if enough(middle) else (middle, most)
        return most


@dataclass(frozen=True, slots=True)
class ThresholdTest:
    """The outcome at one threshold, its p-value, and whether the promise holds for it."""

    threshold: float
    paired: Paired
    p: float
    holds: bool
