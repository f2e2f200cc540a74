"""
How loose may a threshold be? A promise with a confidence, from paired outcomes. Pure.

The loss of a method is how many more problems the large model alone gets right, as a share of all.
Thresholds are tested from the strictest to the loosest, each at the full level, until one fails.
This is fixed-sequence testing, which needs no correction (learn then test, Angelopoulos et al.,
arXiv:2110.01052, section 4).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the functions import numpy and scipy: `stepspec` has to start without them
    from numpy import float64
    from numpy.typing import NDArray

NUISANCE_SHARE = 0.1
"""The part of the level that is spent on the unknown share of gained problems."""
NUISANCE_POINTS = 48
MAX_PROBLEMS = 1_000_000
"""The largest number of problems that is named as needed."""


@dataclass(frozen=True, slots=True)
class Paired:
    """Outcomes on the same problems."""

    n: int
    """The number of problems."""
    lost: int
    """Problems that only the large model got right."""
    gained: int
    """Problems that only the method got right."""

    @property
    def loss(self) -> float:
        """The observed loss; below 0 where the method did better."""
        return (self.lost - self.gained) / self.n if self.n else 0.0

    @classmethod
    def of(cls, large: Sequence[bool], ours: Sequence[bool]) -> Paired:
        """Count the outcomes of the large model and of the method, problem by problem."""
        pairs = Counter(zip(large, ours, strict=True))
        return cls(n=len(ours), lost=pairs[True, False], gained=pairs[False, True])


@lru_cache(maxsize=65536)
def p_value(paired: Paired, limit: float, level: float = 0.05) -> float:
    """
    Return the probability of *paired*, or of a better outcome, if the true loss is the *limit*.

    It is valid for any number of problems, at the *level* that it is compared with. It is the
    better one of two exact tests, at the price of two. One test counts the lost problems alone,
    which tells most if hardly any problem is gained. The other one counts the difference.
    """
    from scipy.stats import binom

    alone = float(binom.cdf(paired.lost, paired.n, limit))
    return min(1.0, 2 * min(alone, _of_difference(paired, limit, level / 2)))


def _of_difference(paired: Paired, limit: float, level: float) -> float:
    """
    Return the p-value of the difference of lost and gained problems.

    The distribution also depends on the unknown share of gained problems. The p-value is the worst
    case over a confidence interval of that share, plus the probability that the interval misses it
    (Berger and Boos, 1994).
    """
    import numpy as np
    from scipy.stats import beta

    spent = NUISANCE_SHARE * level
    most = 1.0
    if paired.gained < paired.n:
        most = float(beta.ppf(1 - spent, paired.gained + 1, paired.n - paired.gained))
    gains = np.linspace(0.0, min(most, (1 - limit) / 2), NUISANCE_POINTS)
    worst = float(
        np.max(
            _at_most(
                paired.lost - paired.gained,
                paired.n,
                limit + gains,
                gains,
            )
        )
    )
    return min(1.0, worst + spent)


def _at_most(
    difference: int,
    n: int,
    lost: NDArray[float64],
    gained: NDArray[float64],
) -> NDArray[float64]:
    """
    Return the probability that at most *difference* more of *n* problems are lost than gained.

    *lost* and *gained* are the true shares, pair by pair.
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
class ThresholdTest:
    """The outcome at one threshold."""

    threshold: float
    """The threshold."""
    paired: Paired
    """The outcomes of the problems."""
    p: float
    """The p-value."""
    holds: bool
    """Whether the promise holds for it."""


@dataclass(frozen=True, slots=True)
class LossTest:
    """An exact test of a loss, on a number of problems that is fixed beforehand."""

    limit: float
    """The largest loss that may be promised, as a share of all problems."""
    level: float
    """The probability that the test passes although the loss is at the limit or above."""

    def p(self, paired: Paired) -> float:
        """
        Return the p-value of *paired*, to be compared with the level.

        It is 1 on fewer problems than are needed if no problem is lost, however many are gained.
        """
        if self._p(Paired(paired.n, 0, 0)) > self.level:
            return 1.0
        return self._p(paired)

    def _p(self, paired: Paired) -> float:
        if paired.n == 0:
            return 1.0
        if self.limit >= 1:
            return 0.0
        return p_value(paired, self.limit, self.level)

    def at(self, threshold: float, paired: Paired) -> ThresholdTest:
        """Test the outcome at a *threshold*."""
        p = self.p(paired)
        return ThresholdTest(threshold, paired, p, holds=p <= self.level)

    def needed(self, observed: Paired | None = None) -> int | None:
        """
        Return the number of problems that would pass at the *observed* rates of losses and gains.

        Without *observed*, no problem is lost or gained. None if no number would do, because the
        observed loss is no less than the limit.
        """
        lost = 0.0
        gained = 0.0
        if observed and observed.n:
            lost = observed.lost / observed.n
            gained = observed.gained / observed.n
        if lost - gained >= self.limit:
            return None

        def enough(n: int) -> bool:
            return self.p(Paired(n, math.ceil(n * lost), math.floor(n * gained))) <= self.level

        most = 1
        while not enough(most):
            most *= 2
            if most > MAX_PROBLEMS:
                return None
        return bisect_left(range(most), True, lo=most // 2 + 1, key=enough)
